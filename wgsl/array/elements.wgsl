{#
Elements of arrays that are bound as words. `load(name, dtype)` makes `load_name(index)`; `store(dtype)` makes `encode(value)`, the bits
of one element; `cast(name, source, dtype)` makes `name(value)` from the register `source` (f32, i32, u32 or bool) to the one of `dtype`.
Rounding is integer arithmetic, so that NaN, subnormals and ties are the same on every device.
#}
{% macro register(dtype) -%}
{{ {"f32": "f32", "f16": "f32", "bf16": "f32", "i32": "i32", "u32": "u32", "bool": "bool", "i8": "i32", "u8": "u32"}[dtype] }}
{%- endmacro %}

{% macro bits(dtype) -%}
{{ {"f32": 32, "i32": 32, "u32": 32, "f16": 16, "bf16": 16}.get(dtype, 8) }}
{%- endmacro %}

{% macro load_bits(name, dtype) %}
fn load_bits_{{ name }}(index: u32) -> u32 {
%% if bits(dtype) == "32"
    return {{ name }}[index];
%% elif bits(dtype) == "16"
    return (({{ name }}[index >> 1u]) >> ((index & 1u) << 4u)) & 0xffffu;
%% else
    return (({{ name }}[index >> 2u]) >> ((index & 3u) << 3u)) & 0xffu;
%% endif
}
{% endmacro %}

{% macro load(name, dtype) %}
{{ load_bits(name, dtype) }}
fn load_{{ name }}(index: u32) -> {{ register(dtype) }} {
    let bits = load_bits_{{ name }}(index);
%% if dtype == "f32"
    return bitcast<f32>(bits);
%% elif dtype == "bf16"
    return bitcast<f32>(bits << 16u);
%% elif dtype == "f16"
    let sign = (bits & 0x8000u) << 16u;
    let magnitude = bits & 0x7fffu;
    let special = select(0u, 0x38000000u, magnitude >= 0x7c00u);
    let normal = (magnitude << 13u) + 0x38000000u + special;
    let small = bitcast<u32>(f32(magnitude) * 5.9604645e-8); // 2^-24, exact
    return bitcast<f32>(sign | select(normal, small, magnitude < 0x400u));
%% elif dtype == "i32"
    return bitcast<i32>(bits);
%% elif dtype == "i8"
    return bitcast<i32>(bits << 24u) >> 24u;
%% elif dtype == "bool"
    return bits != 0u;
%% else
    return bits;
%% endif
}
{% endmacro %}

{% macro store(dtype) %}
// Round to nearest, ties to even; a NaN stays one.
fn encode(value: {{ register(dtype) }}) -> u32 {
%% if dtype in ("f32", "i32")
    return bitcast<u32>(value);
%% elif dtype == "bf16"
    let bits = bitcast<u32>(value);
    let rounded = (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
    return select(rounded, ((bits >> 16u) & 0x8000u) | 0x7fc0u, (bits & 0x7fffffffu) > 0x7f800000u);
%% elif dtype == "f16"
    let bits = bitcast<u32>(value);
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    var found = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13u) & 1u)) >> 13u;
    if (magnitude < 0x38800000u) { // below 2^-14: adding 1/2 leaves the multiples of 2^-24 in the low bits
        found = bitcast<u32>(bitcast<f32>(magnitude) + 0.5) - 0x3f000000u;
    } else if (magnitude > 0x7f800000u) {
        found = 0x7e00u;
    } else if (magnitude >= 0x477ff000u) { // 65520 and above
        found = 0x7c00u;
    }
    return sign | found;
%% elif dtype == "i8"
    return bitcast<u32>(value) & 0xffu;
%% elif dtype == "u8"
    return value & 0xffu;
%% elif dtype == "bool"
    return select(0u, 1u, value);
%% else
    return value;
%% endif
}
{% endmacro %}

{# How a value of one register type becomes an element of `dtype`: floats are clamped to an integer's range, integers wrap. #}
{% macro cast(name, source, dtype) %}
fn {{ name }}(value: {{ source }}) -> {{ register(dtype) }} {
%% if source == register(dtype)
    return value;
%% elif source == "bool"
    return {{ register(dtype) }}(value);
%% elif dtype == "bool" and source == "f32"
    return (bitcast<u32>(value) & 0x7fffffffu) != 0u;
%% elif dtype == "bool"
    return value != 0;
%% elif register(dtype) == "f32"
    return f32(value);
%% elif source != "f32"
    return bitcast<{{ register(dtype) }}>(value);
%% else
    let bits = bitcast<u32>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) { return 0{{ register(dtype)[0] }}; }
%% if dtype == "i32"
    if (value >= 2147483648.0) { return 2147483647; }
    if (value < -2147483648.0) { return i32(-2147483647) - 1; }
    return i32(value);
%% elif dtype == "u32"
    if (value >= 4294967296.0) { return 0xffffffffu; }
    return u32(max(value, 0.0));
%% elif dtype == "i8"
    return i32(clamp(value, -128.0, 127.0));
%% else
    return u32(clamp(value, 0.0, 255.0));
%% endif
%% endif
}
{% endmacro %}
