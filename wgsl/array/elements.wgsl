{#
Elements of arrays that are bound as words. `load(name, dtype)` makes `load_name(index)`; `store(dtype)` makes
`encode(value)`, the bits of one element; `cast(name, source, dtype)` makes `name(value)`, from the register `source`
(f32, i32, u32 or bool) to that of `dtype`. Rounding is integer arithmetic, so that NaN, subnormals and ties are the
same on every device.
#}
{#
Floats narrower than float32, by their codes without sign: the mantissa bits they drop, what moves the exponent, the
first normal, the step of subnormals, the float32 whose last bit is that step, the first code that is no number, and
what makes it one of float32.
#}
{% set narrow = {
    "f16": {"sign": 15, "drop": 13, "bias": 0x38000000, "normal": 0x400, "step": "5.9604644775390625e-8", "anchor": 0x3f000000,
            "limit": 0x7c00, "special": 0x38000000, "nan": 0x7e00},
    "f8e4m3": {"sign": 7, "drop": 20, "bias": 0x3c000000, "normal": 8, "step": "0.001953125", "anchor": 0x46800000,
               "limit": 0x7f, "special": 0x3bd00000, "nan": 0x7f},
    "f8e5m2": {"sign": 7, "drop": 21, "bias": 0x38000000, "normal": 4, "step": "1.52587890625e-5", "anchor": 0x43000000,
               "limit": 0x7c, "special": 0x38000000, "nan": 0x7e},
} %}

{% macro register(dtype) -%}
{{ {"f32": "f32", "f16": "f32", "bf16": "f32", "i32": "i32", "u32": "u32", "bool": "bool", "i8": "i32", "u8": "u32", "i4": "i32",
    "f8e4m3": "f32", "f8e5m2": "f32"}[dtype] }}
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
%% elif dtype in narrow
{% set float = narrow[dtype] %}
    let sign = (bits >> {{ float.sign }}u) << 31u;
    let magnitude = bits & {{ "0x%xu" % (2 ** float.sign - 1) }};
    let special = select(0u, {{ "0x%xu" % float.special }}, magnitude >= {{ "0x%xu" % float.limit }});
    let normal = (magnitude << {{ float.drop }}u) + {{ "0x%xu" % float.bias }} + special;
    let small = bitcast<u32>(f32(magnitude) * {{ float.step }});
    return bitcast<f32>(sign | select(normal, small, magnitude < {{ "0x%xu" % float.normal }}));
%% elif dtype == "i32"
    return bitcast<i32>(bits);
%% elif dtype == "i8"
    return bitcast<i32>(bits << 24u) >> 24u;
%% elif dtype == "i4"
    return bitcast<i32>(bits << 28u) >> 28u;
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
%% elif dtype in narrow
{% set float = narrow[dtype] %}
    let magnitude = bitcast<u32>(value) & 0x7fffffffu;
    let odd = (magnitude >> {{ float.drop }}u) & 1u;
    let normal = (magnitude - {{ "0x%xu" % float.bias }} + {{ "0x%xu" % (2 ** (float.drop - 1) - 1) }} + odd) >> {{ float.drop }}u;
    let small = bitcast<u32>(bitcast<f32>(magnitude) + bitcast<f32>({{ "0x%xu" % float.anchor }})) - {{ "0x%xu" % float.anchor }};
    var found = min(select(normal, small, magnitude < {{ "0x%xu" % (float.bias + 0x800000) }}), {{ "0x%xu" % float.limit }});
    found = select(found, {{ "0x%xu" % float.nan }}, magnitude > 0x7f800000u);
    return ((bitcast<u32>(value) >> 31u) << {{ float.sign }}u) | found;
%% elif dtype == "i8"
    return bitcast<u32>(value) & 0xffu;
%% elif dtype == "i4"
    return bitcast<u32>(value) & 0xfu;
%% elif dtype == "u8"
    return value & 0xffu;
%% elif dtype == "bool"
    return select(0u, 1u, value);
%% else
    return value;
%% endif
}
{% endmacro %}

{# How a value of one register type becomes an element of `dtype`: floats are clamped to an integer's range, integers
   wrap. #}
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
%% elif dtype == "i4"
    return i32(clamp(value, -8.0, 7.0));
%% else
    return u32(clamp(value, 0.0, 255.0));
%% endif
%% endif
}
{% endmacro %}
