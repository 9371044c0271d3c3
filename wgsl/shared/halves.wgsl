{# Macros: stored bytes as float16, which holds every value of a type of one byte. Import it with its context: EMULATED
   does without float16 arithmetic. #}

{# Sixteen stored bytes as two times eight float16: the even bytes, and the odd ones. f8e4m3 comes out 256 times too
   small: its bits are those of float16 with an exponent 8 too low, and all ones become a NaN. #}
{% macro halves(dtype) -%}
%% if dtype == "i8"
// Two bytes with their signs turned, below the bits of 1024: as float16 these are 1152 more than the bytes say.
fn less_1152(word: u32) -> u32 {
%% if EMULATED
    return pack2x16float(unpack2x16float(word) - 1152.0);
%% else
    return bitcast<u32>(bitcast<vec2<f16>>(word) - vec2<f16>(1152.0h));
%% endif
}

fn even_halves(words: vec4u) -> vec4u {
    let four = (words & vec4u(0x00ff00ffu)) ^ vec4u(0x64806480u);
    return vec4u(less_1152(four.x), less_1152(four.y), less_1152(four.z), less_1152(four.w));
}

fn odd_halves(words: vec4u) -> vec4u {
    return even_halves(words >> vec4u(8u));
}
%% elif dtype == "f8e4m3"
// Bytes without their signs, all ones as 0xff: the bit below the sign of a float16 makes of these a NaN.
fn without_signs(words: vec4u) -> vec4u {
    let plain = words & vec4u(0x7f7f7f7fu);
    return plain | ((plain + vec4u(0x01010101u)) & vec4u(0x80808080u));
}

fn even_halves(words: vec4u) -> vec4u {
    return ((without_signs(words) << vec4u(7u)) & vec4u(0x7f807f80u)) | ((words << vec4u(8u)) & vec4u(0x80008000u));
}

fn odd_halves(words: vec4u) -> vec4u {
    return ((without_signs(words) >> vec4u(1u)) & vec4u(0x7f807f80u)) | (words & vec4u(0x80008000u));
}
%% elif dtype == "f8e5m2"
fn even_halves(words: vec4u) -> vec4u {
    return (words << vec4u(8u)) & vec4u(0xff00ff00u);
}

fn odd_halves(words: vec4u) -> vec4u {
    return words & vec4u(0xff00ff00u);
}
%% endif
{%- endmacro %}
