{# Macros: how rows of elements are read and written. Every reader answers f32, whatever is stored.
   `quads`: four consecutive elements start at a multiple of four, so one wide access serves them; bindings are then
   of the types that storage_element() in kernel.py gives. 16-bit pairs are packed by built-ins, which are quick;
   array/elements.wgsl does it in integers, bit for bit as NumPy. #}

{# Two values of a 16-bit type from one word. #}
{% macro unpack_pair(dtype) -%}
%% if dtype == "f16"
fn unpack_f16(word: u32) -> vec2f {
    return unpack2x16float(word);
}
%% elif dtype == "bf16"
fn unpack_bf16(word: u32) -> vec2f {
    return vec2f(bitcast<f32>(word << 16u), bitcast<f32>(word & 0xffff0000u));
}
%% endif
{%- endmacro %}

{# Four values of a type of at most 8 bits from the bytes of one word, or of int4 ("u8") from its lower half. #}
{% macro unpack_four(dtype) -%}
%% if dtype == "i8"
fn unpack_i8(word: u32) -> vec4f {
    return vec4f(bitcast<vec4i>(vec4u(word << 24u, word << 16u, word << 8u, word)) >> vec4u(24u));
}
%% elif dtype == "u8"
fn unpack_u8(word: u32) -> vec4f {
    return vec4f(bitcast<vec4i>(vec4u(word << 28u, word << 24u, word << 20u, word << 16u)) >> vec4u(28u));
}
%% elif dtype == "f8e4m3"
// Bytes 0 and 2 as float16 with the same mantissa, whose exponent is 8 too low; all ones, of e4m3 the only NaN, become
// one of float16.
fn widen_f8e4m3(word: u32) -> vec2f {
    let ones = ((word & 0x007f007fu) + 0x00010001u) & 0x00800080u;
    return 256.0 * unpack2x16float(((word & 0x00800080u) << 8u) | ((word & 0x007f007fu) << 7u) | (ones * 0xf8u));
}

fn unpack_f8e4m3(word: u32) -> vec4f {
    let even = widen_f8e4m3(word);
    let odd = widen_f8e4m3(word >> 8u);
    return vec4f(even.x, odd.x, even.y, odd.y);
}
%% elif dtype == "f8e5m2"
// The upper bytes of float16.
fn unpack_f8e5m2(word: u32) -> vec4f {
    let even = unpack2x16float((word & 0x00ff00ffu) << 8u);
    let odd = unpack2x16float(word & 0xff00ff00u);
    return vec4f(even.x, odd.x, even.y, odd.y);
}
%% endif
{%- endmacro %}

{% macro pack_pair(dtype) -%}
%% if dtype == "f16"
fn pack_f16(pair: vec2f) -> u32 {
    return pack2x16float(pair);
}
%% elif dtype == "bf16"
// Round to nearest even; a NaN keeps a payload bit, so that rounding cannot turn it into infinity.
fn round_bf16(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let rounded = (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
    return select(rounded, (bits >> 16u) | 0x40u, (bits & 0x7fffffffu) > 0x7f800000u);
}

fn pack_bf16(pair: vec2f) -> u32 {
    return round_bf16(pair.x) | (round_bf16(pair.y) << 16u);
}
%% endif
{%- endmacro %}

{# Elements 4 · chunk to 4 · chunk + 3 of the row that starts at element `row`; zero from element `live` on. Rows of
   int4 ("u8") are counted in bytes, two elements each, and start at whole words. #}
{% macro row_reader(name, dtype, quads, live, exact, prefix="load") -%}
fn {{ prefix }}_{{ name }}(row: u32, chunk: u32) -> vec4f {
%% if not exact
    let first = 4u * chunk;
    if (first >= {{ live }}) {
        return vec4f();
    }
%% endif
%% if dtype in ("i8", "u8", "f8e4m3", "f8e5m2") and (quads or dtype == "u8")
%% if dtype == "u8"
    let four = unpack_u8({{ name }}[row / 4u + chunk / 2u] >> (16u * (chunk % 2u)));
%% else
    let four = unpack_{{ dtype }}({{ name }}[row / 4u + chunk]);
%% endif
%% if exact
    return four;
%% else
    return select(vec4f(), four, vec4u(0u, 1u, 2u, 3u) < vec4u({{ live }} - first));
%% endif
%% elif quads and dtype == "f32"
    return {{ name }}[row / 4u + chunk];
%% elif quads
    let words = {{ name }}[row / 4u + chunk];
    return vec4f(unpack_{{ dtype }}(words.x), unpack_{{ dtype }}(words.y));
%% elif exact
    let at = row + 4u * chunk;
    return vec4f(element_{{ name }}(at), element_{{ name }}(at + 1u), element_{{ name }}(at + 2u), element_{{ name }}(at + 3u));
%% else
    let at = row + first;
    let left = {{ live }} - first;
    var four = vec4f(element_{{ name }}(at), 0.0, 0.0, 0.0);
    if (left > 1u) {
        four.y = element_{{ name }}(at + 1u);
    }
    if (left > 2u) {
        four.z = element_{{ name }}(at + 2u);
    }
    if (left > 3u) {
        four.w = element_{{ name }}(at + 3u);
    }
    return four;
%% endif
}
{%- endmacro %}

{# Four elements of a word of `unit` bytes: number `quad` of those that it holds. #}
{% macro quad_of(dtype, unit, word, quad) -%}
{% if dtype == "f32" %}bitcast<vec4f>({{ word }})
{%- elif dtype in ("f16", "bf16") %}vec4f(unpack_{{ dtype }}({{ word }}.{{ "xz"[quad] }}), unpack_{{ dtype }}({{ word }}.{{ "yw"[quad] }}))
{%- else %}unpack_{{ dtype }}({{ word }}{{ "." + "xyzw"[quad] if unit > 4 }})
{%- endif %}
{%- endmacro %}

{# How many times four elements a word of `unit` bytes holds. #}
{% macro quads_of(dtype, unit) -%}
{{ unit // {"f32": 16, "f16": 8, "bf16": 8}.get(dtype, 4) }}
{%- endmacro %}

{# row_reader for a binding of words of `unit` bytes, in rows that start and end with one. #}
{% macro unit_reader(name, dtype, unit, live, exact, prefix="load") -%}
{% set quads = quads_of(dtype, unit) | int %}
fn {{ prefix }}_{{ name }}(row: u32, chunk: u32) -> vec4f {
%% if not exact
    if (4u * chunk >= {{ live }}) {
        return vec4f();
    }
%% endif
    let word = {{ name }}[row / {{ 4 * quads }}u + chunk / {{ quads }}u];
%% if quads == 1
    return {{ quad_of(dtype, unit, "word", 0) }};
%% else
    var four = {{ quad_of(dtype, unit, "word", 0) }};
%% for quad in range(1, quads)
    if (chunk % {{ quads }}u == {{ quad }}u) {
        four = {{ quad_of(dtype, unit, "word", quad) }};
    }
%% endfor
    return four;
%% endif
}
{%- endmacro %}

{# One element, at an index that counts elements from the binding's start. #}
{% macro element_reader(name, dtype, quads) -%}
fn element_{{ name }}(index: u32) -> f32 {
%% if dtype == "f32"
%% if quads
    return {{ name }}[index / 4u][index % 4u];
%% else
    return {{ name }}[index];
%% endif
%% elif dtype in ("i8", "f8e4m3", "f8e5m2")
    return unpack_{{ dtype }}({{ name }}[index / 4u])[index % 4u];
%% else
%% if quads
    let word = {{ name }}[index / 4u][(index / 2u) % 2u];
%% else
    let word = {{ name }}[index / 2u];
%% endif
    return unpack_{{ dtype }}(word)[index % 2u];
%% endif
}
{%- endmacro %}

{# Elements 4 · chunk to 4 · chunk + 3 of a row whose first element stands at the start of a word; none past `live`. #}
{% macro row_writer(name, dtype, quads, live) -%}
fn store_{{ name }}(row: u32, chunk: u32, four: vec4f) {
    let first = 4u * chunk;
    if (first >= {{ live }}) {
        return;
    }
%% if quads and dtype == "f32"
    {{ name }}[row / 4u + chunk] = four;
%% elif quads
    {{ name }}[row / 4u + chunk] = vec2u(pack_{{ dtype }}(four.xy), pack_{{ dtype }}(four.zw));
%% elif dtype == "f32"
    let left = {{ live }} - first;
    let at = row + first;
    {{ name }}[at] = four.x;
    if (left > 1u) {
        {{ name }}[at + 1u] = four.y;
    }
    if (left > 2u) {
        {{ name }}[at + 2u] = four.z;
    }
    if (left > 3u) {
        {{ name }}[at + 3u] = four.w;
    }
%% else
    let word = row / 2u + 2u * chunk;
    {{ name }}[word] = pack_{{ dtype }}(four.xy);
    if ({{ live }} - first > 2u) {
        {{ name }}[word + 1u] = pack_{{ dtype }}(four.zw);
    }
%% endif
}
{%- endmacro %}

{# How many scales a key's row has, those of its value behind them: of int4 one a block of 32 values. #}
{% macro key_scales(blocks) -%}
fn key_scales() -> u32 {
    return {{ "(parameters.H + 31u) / 32u" if blocks else "1u" }};
}
{%- endmacro %}
