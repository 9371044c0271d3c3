{# How decode_matrix takes keys and values of one byte: four of a word as float16, those of even places first, times
   WIDE where there is one. Needs key_name, EMULATED. #}
{% macro pair(bits, change) %}{{ ("pack2x16float(unpack2x16float(%s) %s)" if EMULATED else "bitcast<u32>(bitcast<vec2<f16>>(%s) %sh)") % (bits, change) }}{% endmacro %}
%% if key_name == "i8"
const WIDE: f32 = 1.0;

// A byte in the lower bits of a float16 between 1024 and 2048 is 1024 more; with its sign's bit turned, 128 more.
fn widen(word: u32) -> vec2u {
    let even = (word & 0x00ff00ffu) ^ 0x64806480u;
    let odd = ((word >> 8u) & 0x00ff00ffu) ^ 0x64806480u;
    return vec2u({{ pair("even", "- 1152.0") }}, {{ pair("odd", "- 1152.0") }});
}
%% elif key_name == "f8e5m2"
const WIDE: f32 = 1.0;

// The upper bytes of float16.
fn widen(word: u32) -> vec2u {
    return vec2u((word << 8u) & 0xff00ff00u, word & 0xff00ff00u);
}
%% else
// As float16 with the same mantissa the exponent is 8 too low, and the pattern of NaN is 1.875, above all others: times
// 9 · 2^12, which rounds nothing, it alone is infinite.
const WIDE: f32 = 144.0;

fn widen(word: u32) -> vec2u {
    let even = ((word << 7u) & 0x3f803f80u) | ((word << 8u) & 0x80008000u);
    let odd = ((word >> 1u) & 0x3f803f80u) | (word & 0x80008000u);
    return vec2u({{ pair("even", "* 36864.0") }}, {{ pair("odd", "* 36864.0") }});
}

// NaN for an infinity, by bits: comparisons with infinities may be folded.
fn without_infinities(four: vec4f) -> vec4f {
    let bits = bitcast<vec4u>(four);
    return bitcast<vec4f>(select(bits, vec4u(0x7fc00000u), (bits & vec4u(0x7f800000u)) == vec4u(0x7f800000u)));
}
%% endif

// What brings a row whose largest number has the bits `most` to one from 512 to 1,024; rows below 2^-100 stay below.
fn digit_factor(most: u32) -> f32 {
    let exponent = clamp(most & 0x7f800000u, 0x0d800000u, 0x70000000u);
    return 512.0 * bitcast<f32>(0x7f000000u - exponent);
}
