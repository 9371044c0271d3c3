{# How decode_subgroups takes keys and values of one byte: widened to float32, times WIDE where there is one; int8 keys
   as they are, against a query row whose numbers are written as int8 digits. Needs key_name, DIGITS. #}
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
%% else
// As float16 with the same mantissa the exponent is 8 too low.
const WIDE: f32 = 0.00390625;
// NaN, of e4m3 all ones but for the sign, would be 480. Ones are looked for beside the products: of keys, adding one to
// each byte then turns its top, or one of a byte above it in the same word; of values, the byte's alone.
const TOPS_OF_BYTES: u32 = 0x80808080u;

fn widen(word: u32) -> vec4f {
    let even = unpack2x16float(((word << 7u) & 0x3f803f80u) | ((word << 8u) & 0x80008000u));
    let odd = unpack2x16float(((word >> 1u) & 0x3f803f80u) | (word & 0x80008000u));
    return vec4f(even.x, odd.x, even.y, odd.y);
}

fn ones_of_key(seen: u32, word: u32) -> u32 {
    return seen | ((word + 0x01010101u) ^ word);
}

fn ones_of_value(seen: u32, word: u32) -> u32 {
    return seen | ((word & 0x7f7f7f7fu) + 0x01010101u);
}

fn nan_if(none: bool, x: f32) -> f32 {
    return bitcast<f32>(select(bitcast<u32>(x), 0x7fc00000u, none));
}

fn with_nan(seen: u32, four: vec4f) -> vec4f {
    let none = (vec4u(seen) & vec4u(0x80u, 0x8000u, 0x800000u, 0x80000000u)) != vec4u();
    return bitcast<vec4f>(select(bitcast<vec4u>(four), vec4u(0x7fc00000u), none));
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
