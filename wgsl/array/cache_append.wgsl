{% include "shared/prelude.wgsl" %}
{% import "array/elements.wgsl" as elements %}
{% import "shared/rotations.wgsl" as rotations %}

// Writes the rows of new tokens into a cache. LANES threads share the row of a token and head; a thread writes
// {{ unit }} elements at a time, as whole words, zeros behind the row's end. A launch sees the rows of storage that one
// binding holds, and leaves others.
{% set quantised = stored in ("i8", "u8") %}
%% if not quantised
{{ elements.store(stored) }}
%% endif
{% set each = {"f32": 1, "f16": 2, "bf16": 2}.get(stored, 4) %}

%% if rotated
{{ rotations.rotation() }}
%% endif
%% for side, source in sides
%% if source == stored and not (rotated and side == "key")
{{ elements.load_bits("new_" ~ side, source) }}
%% else
{{ elements.load("new_" ~ side, source) }}
%% endif
%% endfor

// A new token: whether it is written, where it stands in its sequence, and its row of storage (tokens of all entries or
// pages).
struct Token {
    written: bool,
    position: u32,
    row: u32,
}

// Where a sequence's new tokens start, and how many there are.
fn new_tokens(b: u32) -> vec2u {
    let length = u32(max({{ "rows" if packed else "lengths" }}[parameters.lengths_at + b], 0));
%% if "counts" in small
    let count = u32(clamp({{ "rows" if packed else "counts" }}[parameters.counts_at + b], 0, i32(parameters.T)));
%% else
    let count = parameters.T;
%% endif
%% if ring
    return vec2u(length, count);
%% else
    let start = min(length, parameters.capacity);
    return vec2u(start, min(count, parameters.capacity - start));
%% endif
}

fn token(b: u32, t: u32) -> Token {
    let tokens = new_tokens(b);
    let position = tokens.x + t;
    var written = t < tokens.y;
%% if ring
    // what this very append would write over again is not written
    let turn = parameters.capacity - parameters.pinned;
    var slot = position;
    if (position >= parameters.pinned) {
        slot = parameters.pinned + (position - parameters.pinned) % turn;
        written = written && position + turn >= tokens.x + tokens.y;
    }
%% else
    let slot = min(position, parameters.capacity - 1u);
%% endif
%% if "pages" in small
    let page = {{ "rows" if packed else "pages" }}[parameters.pages_at + b * parameters.pages + (slot >> parameters.page_bits)];
    written = written && page >= 0 && u32(page) < parameters.pool;
    let row = (u32(page) << parameters.page_bits) | (slot & ((1u << parameters.page_bits) - 1u));
%% else
    let row = b * parameters.capacity + slot;
%% endif
    return Token(written && row - parameters.first_row < parameters.rows, position, row - parameters.first_row);
}

%% for side, source in sides
%% if rotated and side == "key"
// Element h of a new key, turned to its position.
fn {{ side }}_element(at: u32, h: u32, position: i32) -> f32 {
    let step = parameters.new_{{ side }}_h;
    let own = load_new_{{ side }}(at + h * step);
    let pairs = parameters.rope_pairs;
    if (h >= 2u * pairs) { return own; }
%% if rotated == "half"
    let second = h >= pairs;
    let pair = select(h, h - pairs, second);
    let other = select(h + pairs, h - pairs, second);
%% else
    let second = (h & 1u) == 1u;
    let pair = h >> 1u;
    let other = h ^ 1u;
%% endif
    let turn = rotation(position, pair);
    return own * turn.x + load_new_{{ side }}(at + other * step) * select(-turn.y, turn.y, second);
}

%% elif source != stored
fn {{ side }}_element(at: u32, h: u32, position: i32) -> f32 {
    return load_new_{{ side }}(at + h * parameters.new_{{ side }}_h);
}

%% endif
%% endfor

%% if quantised
// A float32 without its sign as mantissa · 2^exponent, the mantissa from 2^23 on but for 0. Quotients are rounded in
// integers, as IEEE says: division in a shader may be off in its last bits, and subnormal numbers may be lost.
struct Magnitude {
    mantissa: u32,
    exponent: i32,
}

fn magnitude(bits: u32) -> Magnitude {
    let field = (bits >> 23u) & 0xffu;
    let fraction = bits & 0x7fffffu;
    if (field != 0u) { return Magnitude(fraction | 0x800000u, i32(field) - 150); }
    let shift = countLeadingZeros(fraction) - 8u;
    return Magnitude(fraction << shift, -149 - i32(shift));
}

// The bits of the float32 nearest to peak / MOST; NaN where the peak is not finite.
fn scale_of(peak: u32) -> u32 {
    if (peak == 0u) { return 0u; }
    if (peak >= 0x7f800000u) { return 0x7fc00000u; }
    let x = magnitude(peak);
    let shifted = x.mantissa << 8u;
    let whole = shifted / MOST;
    let drop = u32(max(8 - i32(countLeadingZeros(whole)), -149 - (x.exponent - 8)));
    let kept = whole >> drop;
    let low = whole & ((1u << drop) - 1u);
    let half = 1u << (drop - 1u);
    let odd = (kept & 1u) == 1u || whole * MOST != shifted;
    let rounded = kept + select(0u, 1u, low > half || (low == half && odd));
    return (u32(x.exponent - 8 + i32(drop) + 149) << 23u) + rounded;
}

// value / scale, rounded to float32 and then half to even, at most MOST from 0.
fn quantise(value: f32, scale: u32) -> u32 {
    if (scale == 0u || scale >= 0x7f800000u) { return 0u; }
    let x = magnitude(bitcast<u32>(value) & 0x7fffffffu);
    let s = magnitude(scale);
    let apart = x.exponent - s.exponent;
    if (x.mantissa == 0u || apart < -1) { return 0u; }
    var found = MOST;
    if (apart <= 7) {
        let doubled = x.mantissa << u32(apart + 1);
        let halves = doubled / s.mantissa;
        let rest = doubled - halves * s.mantissa;
        // so near to a tie that the quotient in float32 is one
        let near = s.mantissa >> (24u - firstLeadingBit(halves));
        let odd = (halves & 1u) == 1u;
        let tie = select(s.mantissa - rest <= near, rest <= near, odd);
        let below = halves >> 1u;
        found = min(below + select(select(0u, 1u, odd), below & 1u, tie), MOST);
    }
    return select(found, 0u - found, (bitcast<u32>(value) >> 31u) == 1u);
}

%% for side, source in sides
// The largest magnitude, as bits, of {{ unit }} elements of a new {{ side }}.
fn {{ side }}_peak(at: u32, unit: u32, position: i32) -> u32 {
    var peak = 0u;
    let end = min({{ unit }}u * (unit + 1u), parameters.{{ side }}_dim);
    for (var h = {{ unit }}u * unit; h < end; h++) {
        peak = max(peak, bitcast<u32>({{ side }}_element(at, h, position)) & 0x7fffffffu);
    }
    return peak;
}

fn {{ side }}_bits(at: u32, h: u32, position: i32, scale: u32) -> u32 {
    if (h >= parameters.{{ side }}_dim) { return 0u; }
    return quantise({{ side }}_element(at, h, position), scale) & {{ "0xfu" if stored == "u8" else "0xffu" }};
}

%% endfor
%% else
%% if saturated
// Within the finite range of {{ stored }}; NaN stays NaN.
fn clipped(value: f32) -> f32 {
    let bits = bitcast<u32>(value);
    let plain = bits & 0x7fffffffu;
    return bitcast<f32>((bits & 0x80000000u) | select(min(plain, {{ "0x%xu" % saturated }}), plain, plain > 0x7f800000u));
}

%% endif
%% for side, source in sides
fn {{ side }}_bits(at: u32, h: u32, position: i32) -> u32 {
    if (h >= parameters.{{ side }}_dim) { return 0u; }
%% if source == stored and not (rotated and side == "key")
    return load_bits_new_{{ side }}(at + h * parameters.new_{{ side }}_h);
%% elif saturated
    return encode(clipped({{ side }}_element(at, h, position)));
%% else
    return encode({{ side }}_element(at, h, position));
%% endif
}

%% endfor
%% endif

%% if stored == "i8"
// 4 · WORKGROUP bytes
var<workgroup> peaks: array<u32, WORKGROUP>;

%% endif
@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    let group = folded_index(workgroup, workgroups);
    let entry = group * WORKGROUP + thread;
    if (entry < parameters.B) {
        let tokens = new_tokens(parameters.first_b + entry);
        new_lengths[parameters.first_b + entry] = i32(min(tokens.x + tokens.y, 0x7fffffffu));
    }
    let side = group / parameters.groups;
    let item = (group % parameters.groups) * (WORKGROUP / LANES) + thread / LANES;
    let lane = thread % LANES;
    let k = item % parameters.K;
    let t = (item / parameters.K) % parameters.piece;
    let b = item / (parameters.K * parameters.piece);
    var written = side < {{ sides | length }}u && b < parameters.B;
    var place = Token(false, 0u, 0u);
    if (written) {
        place = token(parameters.first_b + b, parameters.first_t + t);
        written = place.written;
    }
    let position = i32(place.position);
    let row = place.row * parameters.K + k;
%% for side, source in sides
    let {{ side }}_at = parameters.new_{{ side }}_at + b * parameters.new_{{ side }}_b + t * parameters.new_{{ side }}_t
        + k * parameters.new_{{ side }}_k;
    let {{ side }}_row = parameters.{{ side }}_at + row * parameters.{{ side }}_words;
    let {{ side }}_units = (parameters.{{ side }}_dim + {{ unit - 1 }}u) / {{ unit }}u;
%% endfor
%% if stored == "i8"
    var peak = 0u;
%% for side, source in sides
    if (written && side == {{ loop.index0 }}u) {
        for (var unit = lane; unit < {{ side }}_units; unit += LANES) {
            peak = max(peak, {{ side }}_peak({{ side }}_at, unit, position));
        }
    }
%% endfor
    peaks[thread] = peak;
    workgroupBarrier();
    for (var other = 0u; other < LANES; other++) {
        peak = max(peak, peaks[thread - lane + other]);
    }
    let scale = scale_of(peak);
%% endif
    if (!written) { return; }
%% for side, source in sides
    if (side == {{ loop.index0 }}u) {
%% if stored == "i8"
        if (lane == 0u) {
            scales[parameters.scales_at + row * parameters.blocks + parameters.{{ side }}_block] = scale;
        }
%% endif
        for (var unit = lane; unit < {{ side }}_units; unit += LANES) {
%% if stored == "u8"
            let scale = scale_of({{ side }}_peak({{ side }}_at, unit, position));
            scales[parameters.scales_at + row * parameters.blocks + parameters.{{ side }}_block + unit] = scale;
            for (var word = 4u * unit; word < 4u * unit + 4u; word++) {
                var found = 0u;
                for (var i = 0u; i < 8u; i++) {
                    found = found | ({{ side }}_bits({{ side }}_at, 8u * word + i, position, scale) << (4u * i));
                }
                {{ side }}[{{ side }}_row + word] = found;
            }
%% else
            for (var word = {{ 4 // each }}u * unit; word < {{ 4 // each }}u * (unit + 1u); word++) {
                var found = 0u;
                for (var i = 0u; i < {{ each }}u; i++) {
                    let bits = {{ side }}_bits({{ side }}_at, {{ each }}u * word + i, position{{ ", scale" if quantised }});
                    found = found | (bits << ({{ 32 // each % 32 }}u * i));
                }
                {{ side }}[{{ side }}_row + word] = found;
            }
%% endif
        }
    }
%% endfor
}
