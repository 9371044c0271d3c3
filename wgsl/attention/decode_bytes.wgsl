{# How decode_subgroups takes keys and values of one byte: widened to float32, times WIDE where there is one; int8 keys as they
   are, against a query row whose numbers are written as int8 digits. Needs key_name, DIGITS, HALF. #}
%% if key_name == "i8"
// A byte in the lower bits of a float16 between 1024 and 2048 is 1024 more; with its sign's bit turned, 128 more.
fn widen(word: u32) -> vec4f {
    let even = unpack2x16float((word & 0x00ff00ffu) ^ 0x64806480u) - 1152.0;
    let odd = unpack2x16float(((word >> 8u) & 0x00ff00ffu) ^ 0x64806480u) - 1152.0;
    return vec4f(even.x, odd.x, even.y, odd.y);
}
%% elif key_name == "f8e5m2"
fn widen(word: u32) -> vec4f {
    return unpack_f8e5m2(word);
}
%% elif HALF
// As float16 with the same mantissa the exponent is 8 too low, and the pattern of NaN is 1.875, above all others: times
// 9 · 2^12, which rounds nothing, it alone is infinite.
const WIDE: f32 = 144.0;

fn widen(word: u32) -> vec4f {
    let even = ((word & 0x007f007fu) << 7u) | ((word & 0x00800080u) << 8u);
    let odd = ((word & 0x7f007f00u) >> 1u) | (word & 0x80008000u);
    let a = vec2f(vec2<f16>(unpack2x16float(even)) * vec2<f16>(36864.0h));
    let b = vec2f(vec2<f16>(unpack2x16float(odd)) * vec2<f16>(36864.0h));
    return vec4f(a.x, b.x, a.y, b.y);
}

// NaN for an infinity, by bits: comparisons with infinities may be folded.
fn without_infinity(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    return bitcast<f32>(select(bits, 0x7fc00000u, (bits & 0x7f800000u) == 0x7f800000u));
}

fn without_infinities(four: vec4f) -> vec4f {
    let bits = bitcast<vec4u>(four);
    return bitcast<vec4f>(select(bits, vec4u(0x7fc00000u), (bits & vec4u(0x7f800000u)) == vec4u(0x7f800000u)));
}
%% else
const WIDE: f32 = 0.00390625;

// float16 with the same mantissa, whose exponent is 8 too low; all ones, the only NaN, become one of float16.
fn widen_pair(word: u32) -> vec2f {
    let ones = ((word & 0x007f007fu) + 0x00010001u) & 0x00800080u;
    return unpack2x16float(((word & 0x00800080u) << 8u) | ((word & 0x007f007fu) << 7u) | (ones * 0xf8u));
}

fn widen(word: u32) -> vec4f {
    let even = widen_pair(word);
    let odd = widen_pair(word >> 8u);
    return vec4f(even.x, odd.x, even.y, odd.y);
}
%% endif
%% if DIGITS

// A query row is written as integers times a unit, and those as DIGITS digits from -128 to 127, lowest last.
const MOST: f32 = {{ {2: "32512.0", 3: "8323072.0"}[DIGITS] }};
// Rows whose numbers are all below 2^-100 are zero: MOST over them might be no number.
const LEAST_BITS: u32 = 0x0d800000u;

// The largest magnitude of four numbers, by bits, where NaN is above all.
fn largest(four: vec4f) -> u32 {
    let bits = bitcast<vec4u>(four) & vec4u(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

// NaN in the unit makes the whole row NaN, as NaN and infinities in a query do.
fn unit_of(most: u32) -> f32 {
    return bitcast<f32>(select(0x7fc00000u, most, most < 0x7f800000u)) / {{ "MOST" if DIGITS == 2 else "32512.0" }};
}

fn integers(four: vec4f, most: u32) -> vec4i {
    let there = most >= LEAST_BITS && most < 0x7f800000u;
    return vec4i(round(select(vec4f(), four * (MOST / bitcast<f32>(select(LEAST_BITS, most, there))), vec4<bool>(there))));
}

fn above_lowest(integers: vec4i) -> vec4i {
    return (integers + vec4i(128)) >> vec4u(8u);
}
%% endif
