{# Macros: how flash_matrix brings rows into workgroup memory, and multiplies Q and K there. Import it with its context. #}
{% import "shared/matrices.wgsl" as matrices with context %}
{% set blocks = range(BLOCKS) %}
{% set key_blocks = range(KEY_BLOCKS) %}
{% set head_steps = range(HEAD_STEPS) %}

{# How eight numbers become a word of four, each of two float16. #}
{% macro packing() -%}
fn eight(a: vec4f, b: vec4f) -> vec4u {
    return vec4u(pack2x16float(a.xy), pack2x16float(a.zw), pack2x16float(b.xy), pack2x16float(b.zw));
}

%% if PARTS == 2
// The bits of a number that float16 has. By bits: a compiler may take the rounding of a number for the number itself.
fn coarse(x: vec4f) -> vec4f {
    return bitcast<vec4f>(bitcast<vec4u>(x) & vec4u(0xffffe000u));
}

%% endif
{%- endmacro %}

{# Eight elements of Q or K, where `there`, as they are or rotated, into a row of key_tile. #}
{% macro stage(name, there, at, position, to_row) %}
            var low = vec4f();
            var high = vec4f();
            if ({{ there }}) {
                let at = {{ at }};
%% if problem.rope is not none
                let p = {{ position }};
                low = load_{{ name }}_rotated(at, 2u * chunk, p);
                high = load_{{ name }}_rotated(at, 2u * chunk + 1u, p);
%% else
                low = load_{{ name }}(at, 2u * chunk);
                high = load_{{ name }}(at, 2u * chunk + 1u);
%% endif
            }
%% if PARTS == 2
            key_tile[{{ to_row }} * KEY_PITCH + chunk] = eight(coarse(low), coarse(high));
            key_tile[{{ to_row }} * KEY_PITCH + HEAD_EIGHTS + chunk] = eight(low - coarse(low), high - coarse(high));
%% else
            key_tile[{{ to_row }} * KEY_PITCH + chunk] = eight(low, high);
%% endif
{% endmacro %}

{# K or V of a tile, read into registers. #}
{% macro fetch(name, words, pieces, tile) %}
%% if unit
{% if not problem.paged %}
        if ({{ tile }} + TILE_K <= keys.y) {
%% for i in range(pieces)
%% if (i + 1) * SUBGROUPS * 32 > KEY_BLOCKS * 16 * words
            if (thread + {{ i }}u * WORKGROUP < TILE_K * {{ words }}u)
%% endif
            {
                let i = thread + {{ i }}u * WORKGROUP;
                {{ name }}_{{ i }} = {{ name }}[{{ name }}_base + key_slot(b, {{ tile }} + i / {{ words }}u) * {{ name }}_step + i % {{ words }}u];
            }
%% endfor
        } else {
{% else %}
        {
{% endif %}
%% for i in range(pieces)
            {
                let i = thread + {{ i }}u * WORKGROUP;
                let s = {{ tile }} + i / {{ words }}u;
                {{ name }}_{{ i }} = vec4u();
                if (i < TILE_K * {{ words }}u && s < keys.y{{ " && key_there(b, s)" if problem.paged and name == "value" }}) {
                    {{ name }}_{{ i }} = {{ name }}[{{ name }}_base + key_slot(b, s) * {{ name }}_step + i % {{ words }}u];
                }
            }
%% endfor
        }
%% endif
{% endmacro %}
{# K or V of a tile into workgroup memory, from registers, or element by element from storage. #}
{% macro put(name, pitch, words, pieces, tile) %}
%% if unit
%% for i in range(pieces)
%% if (i + 1) * SUBGROUPS * 32 > KEY_BLOCKS * 16 * words
        if (thread + {{ i }}u * WORKGROUP < TILE_K * {{ words }}u)
%% endif
        {
            let i = thread + {{ i }}u * WORKGROUP;
            {{ name }}_tile[{{ name }}_at + i / {{ words }}u * {{ pitch }} + i % {{ words }}u] = {{ name }}_{{ i }};
        }
%% endfor
%% else
        for (var i = thread; i < TILE_K * {{ words }}u; i += WORKGROUP) {
            let staged = i / {{ words }}u;
            let chunk = i % {{ words }}u;
            let s = {{ tile }} + staged;
%% if name == "key"
            {{ stage("key", "s < keys.y", "key_row(b, key_slot(b, s), k)", "key_position(b, s)", "key_at / KEY_PITCH + staged") }}
%% else
            var words = vec4u();
            if (s < keys.y && key_there(b, s)) {
                let at = value_row(b, key_slot(b, s), k);
                words = eight(load_value(at, 2u * chunk), load_value(at, 2u * chunk + 1u));
            }
            value_tile[value_at + staged * {{ pitch }} + chunk] = words;
%% endif
        }
%% endif
{% endmacro %}
{% macro fetch_key(tile) %}{{ fetch("key", HEAD_EIGHTS, KEY_PIECES, tile) }}{% endmacro %}
{% macro fetch_value(tile) %}{{ fetch("value", VALUE_EIGHTS, VALUE_PIECES, tile) }}{% endmacro %}
{% macro put_key(tile) %}{{ put("key", "KEY_PITCH", HEAD_EIGHTS, KEY_PIECES, tile) }}{% endmacro %}
{% macro put_value(tile) %}{{ put("value", "VALUE_PITCH", VALUE_EIGHTS, VALUE_PIECES, tile) }}{% endmacro %}

{# The products of Q and the K that lies there, into matrices s_… #}
{% macro products(name) %}
%% for r in blocks
%% for t in key_blocks
            {{ name }}_{{ r }}_{{ t }} = {{ matrices.zero() }};
%% endfor
%% endfor
%% for c in head_steps
%% for t in key_blocks
            {
                let k_part = {{ matrices.load("right", "key_tile", "key_at + %du * KEY_PITCH + %du" % (16 * t, 2 * c), "KEY_PITCH", "col_major") }};
%% for r in blocks
                {{ name }}_{{ r }}_{{ t }} = {{ matrices.multiply_add("q_%d_%d" % (r, c), "k_part", "%s_%d_%d" % (name, r, t)) }};
%% endfor
%% if PARTS == 2
                let k_rest = {{ matrices.load("right", "key_tile", "key_at + %du * KEY_PITCH + %du" % (16 * t, 2 * (HEAD_STEPS + c)), "KEY_PITCH", "col_major") }};
%% for r in blocks
                {{ name }}_{{ r }}_{{ t }} = {{ matrices.multiply_add("q_%d_%d" % (r, HEAD_STEPS + c), "k_part", "%s_%d_%d" % (name, r, t)) }};
                {{ name }}_{{ r }}_{{ t }} = {{ matrices.multiply_add("q_%d_%d" % (r, c), "k_rest", "%s_%d_%d" % (name, r, t)) }};
%% endfor
%% endif
            }
%% endfor
%% endfor
{% endmacro %}
