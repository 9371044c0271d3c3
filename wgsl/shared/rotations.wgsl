{# Macros: rotary position embedding of rows as they are read. They need the binding rope_tables and load_NAME. #}

{# `pairs`: how many pairs of elements a row of the tables has. #}
{% macro rotation(pairs="parameters.rope_pairs") -%}
// cos and sin at a position, for one pair of elements: the product of the rotations of the position's digits
// (4096 · 1024 · 1024), each of which has a table; the last digit is signed.
fn rotation(position: i32, pair: u32) -> vec2f {
    let bits = bitcast<u32>(position);
    var turn = rope_tables[(bits & 4095u) * {{ pairs }} + pair];
    if (bits > 4095u) {
        turn = turned(turn, rope_tables[(4096u + ((bits >> 12u) & 1023u)) * {{ pairs }} + pair]);
        if ((bits >> 22u) != 0u) {
            turn = turned(turn, rope_tables[(5120u + (bits >> 22u)) * {{ pairs }} + pair]);
        }
    }
    return turn;
}

fn turned(a: vec2f, b: vec2f) -> vec2f {
    return vec2f(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}
{% endmacro %}

{# Elements 4 · chunk to 4 · chunk + 3 of a row at a position. `rope`: how pairs lie, as in AttentionProblem;
   `row_type`: what says where a row lies. #}
{% macro rotated_reader(name, rope, row_type="u32") -%}
fn load_{{ name }}_rotated(row: {{ row_type }}, chunk: u32, position: i32) -> vec4f {
    let plain = load_{{ name }}(row, chunk);
    let first = 4u * chunk;
    let pairs = parameters.rope_pairs;
    if (first >= 2u * pairs) {
        return plain;
    }
%% if rope == "interleaved"
    let a = rotation(position, 2u * chunk);
    let xy = vec2f(plain.x * a.x - plain.y * a.y, plain.x * a.y + plain.y * a.x);
    if (2u * chunk + 1u >= pairs) {
        return vec4f(xy, plain.zw);
    }
    let b = rotation(position, 2u * chunk + 1u);
    return vec4f(xy, plain.z * b.x - plain.w * b.y, plain.z * b.y + plain.w * b.x);
%% elif rope == "half4"
    let upper = first >= pairs;
    let pair = select(first, first - pairs, upper);
    let other = load_{{ name }}(row, select(chunk + pairs / 4u, chunk - pairs / 4u, upper));
    let a = rotation(position, pair);
    let b = rotation(position, pair + 1u);
    let c = rotation(position, pair + 2u);
    let d = rotation(position, pair + 3u);
    let sines = vec4f(a.y, b.y, c.y, d.y);
    return plain * vec4f(a.x, b.x, c.x, d.x) + select(-sines, sines, upper) * other;
%% else
    var four = plain;
    for (var i = 0u; i < 4u; i++) {
        let element = first + i;
        if (element < 2u * pairs) {
            let upper = element >= pairs;
            let pair = select(element, element - pairs, upper);
            let partner = select(element + pairs, element - pairs, upper);
%% if row_type == "u32"
            let other = element_{{ name }}(row + partner);
%% else
            let other = load_{{ name }}(row, partner / 4u)[partner % 4u];
%% endif
            let turn = rotation(position, pair);
            four[i] = plain[i] * turn.x + select(-turn.y, turn.y, upper) * other;
        }
    }
    return four;
%% endif
}
{% endmacro %}
