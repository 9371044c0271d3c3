{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% import "shared/matrices.wgsl" as matrices with context %}

// Decode on matrix units, for float8 caches: a workgroup is one subgroup, and takes TILE_K keys at a time. Their bytes
// become float16 in workgroup memory, exactly, PART_DIM of the head dims at a time: so little is staged that many
// workgroups run beside each other. A query row is two rows of a matrix, a float16 and the float16 of what that leaves
// out, and so is a row of weights: nothing is lost by them, but matrix units add without rounding. What its lanes write
// to workgroup memory, they read in the order of the text.
// Lane l has the logits of head l / HEAD_LANES, of as many keys one after another as there are heads.
{% set heads = range(HEADS) %}
{% set quads = range(HEADS // 4) %}
{% set pieces = range(TILE_K * PART_DIM // 16 // 32) %}
{% set key_parts = range(KEY_PARTS) %}
{% set value_parts = range(VALUE_PARTS) %}
{% set steps = range(PART_DIM // 16) %}
{% set blocks = range(TILE_K // 16) %}
{# What a key without a page, or of another segment, has for a value must not reach the sums, where 0 · NaN is NaN. #}
{% set guarded = problem.paged or problem.segments %}
{# What orders the lanes' writes before their reads. #}
{% macro settle() %}{{ "workgroupBarrier();" if EMULATED }}{% endmacro %}
{% macro slot(s) %}{{ "key_slot(b, %s)" % s if problem.paged else s }}{% endmacro %}
{# The next keys that a lane reads, sixteen bytes of each. #}
{% macro reads_of(first) -%}
%% for i in pieces
        let s_{{ i }} = min({{ first }} + {{ 8 * i }}u + row, keys.y - 1u);
        let slot_{{ i }} = {{ slot("s_%d" % i) }};
%% endfor
{%- endmacro %}
{% macro read(name, part, i) %}{{ name }}[{{ name }}_base + slot_{{ i }} * {{ name }}_step + {{ part * PART_DIM // 16 }}u]{% endmacro %}
{# The first eight of sixteen bytes go to the first half of a row, the others to the second, against bank conflicts. #}
{% macro put(name, part) %}
%% for i in pieces
        tile[put_at + {{ 8 * i }}u * PITCH] = vec4u(widen({{ name }}_{{ part }}_{{ i }}.x), widen({{ name }}_{{ part }}_{{ i }}.y));
        tile[put_at + {{ 8 * i }}u * PITCH + {{ PART_DIM // 16 }}u] = vec4u(widen({{ name }}_{{ part }}_{{ i }}.z), widen({{ name }}_{{ part }}_{{ i }}.w));
        {{ name }}_{{ part }}_{{ i }} = {{ read(name, part, i) }};
%% endfor
        {{ settle() }}
{% endmacro %}
// TILE_K · PITCH · 16 bytes: Q; keys and values, as float16; logits
var<workgroup> tile: array<vec4u, TILE_K * PITCH>;
// EXCHANGE · 16 bytes: weights, as float16; sums
var<workgroup> exchange: array<vec4u, EXCHANGE>;
// 2 · HEADS · 4 bytes: of each head a factor or a total, and the maximum
var<workgroup> of_heads: array<f32, 2 * HEADS>;
%% if EMULATED
// 128 bytes: the lanes' maxima
var<workgroup> highs: array<f32, 32>;

%% endif
{{ matrices.emulation(("tile", "exchange"), ("tile",), (), ("tile", "exchange")) }}

{% include "attention/decode_matrix_bytes.wgsl" %}

// A float16 that holds most of x, by bits: a compiler may take the rounding of a number for the number itself.
fn coarse(x: vec4f) -> vec4f {
    return bitcast<vec4f>(bitcast<vec4u>(x) & vec4u(0xffffe000u));
}

fn packed(x: vec4f) -> vec2u {
    return vec2u(pack2x16float(x.xy), pack2x16float(x.zw));
}

// The largest magnitude of four numbers, by bits, where NaN is above all.
fn largest(four: vec4f) -> u32 {
    let bits = bitcast<vec4u>(four) & vec4u(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

fn weights_of(y: vec4f, top: f32) -> vec4f {
    return vec4f(weight(y.x, top), weight(y.y, top), weight(y.z, top), weight(y.w, top));
}

@compute @workgroup_size(32)
fn decode_matrix(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
{% include "attention/decode_place.wgsl" %}
    let lane = thread;
%% if EMULATED
    matrix_lane = lane;
%% endif
    let own_head = lane / HEAD_LANES;
    let own_first = lane % HEAD_LANES * HEADS;
    let item_head = lane % ITEMS / 4u;
    let chunk = lane % {{ PART_DIM // 16 }}u;
    let row = lane / 8u + lane / 4u % 2u * 4u;
    let put_at = row * PITCH + chunk;
    let own_sums = lane % 16u * SUM_PITCH + lane / 16u * 2u;

    // Q: each row is brought to a largest number from 512 to 1,024, by a power of two.
    let scale = query_scale(b);
    let q_chunk = min(lane, {{ KEY_PARTS * PART_DIM // 4 - 1 }}u);
%% for g in heads
    let q_{{ g }} = load_query(query_row(b, 0u, min(n_first + {{ g }}u, n_last)), q_chunk);
%% if EMULATED
    workgroupBarrier();
    exchange[lane].x = largest(q_{{ g }});
    workgroupBarrier();
    var most_{{ g }} = 0u;
    for (var i = 0u; i < 32u; i++) {
        most_{{ g }} = max(most_{{ g }}, exchange[i].x);
    }
%% else
    let most_{{ g }} = subgroupMax(largest(q_{{ g }}));
%% endif
%% endfor
    var own_most = most_0;
%% for g in heads if g
    own_most = select(own_most, most_{{ g }}, own_head == {{ g }}u);
%% endfor
    // NaN in the unit makes the whole row NaN, as NaN and infinities in a query do.
    let own_unit = scale / WIDE * select(bitcast<f32>(0x7fc00000u | (thread >> 31u)), 1.0 / digit_factor(own_most), own_most < 0x7f800000u);
%% for part in key_parts
    for (var i = lane; i < 16u * PITCH; i += 32u) {
        tile[i] = vec4u();
    }
    workgroupBarrier();
    if (lane / {{ PART_DIM // 4 }}u == {{ part }}u) {
        // Within four, numbers lie as those of a word of bytes do.
        let at = lane % 4u / 2u * {{ PART_DIM // 16 }}u + lane % {{ PART_DIM // 4 }}u / 4u;
        let half = lane % 2u * 2u;
%% for g in heads
        {
            let n = select(vec4f(), digit_factor(most_{{ g }}) * q_{{ g }}.xzyw, most_{{ g }} < 0x7f800000u);
            let low = packed(n - coarse(n));
            let high = packed(coarse(n));
            tile[{{ g }}u * PITCH + at][half] = high.x;
            tile[{{ g }}u * PITCH + at][half + 1u] = high.y;
            tile[(HEADS + {{ g }}u) * PITCH + at][half] = low.x;
            tile[(HEADS + {{ g }}u) * PITCH + at][half + 1u] = low.y;
        }
%% endfor
    }
    workgroupBarrier();
%% for c in steps
    let query_{{ part }}_{{ c }} = {{ matrices.load("right", "tile", "%du" % (2 * c), "PITCH", "col_major") }};
%% endfor
    workgroupBarrier();
%% endfor

    let from_key = parameters.key_first + part * parameters.part_keys;
    let keys = block_keys(b, 0u, 0u, from_key, min(from_key + parameters.part_keys, parameters.key_end));
    let kept = kept_keys(b, 0u);
    // Where this lane's share of key 0 lies, and how far it is to the next key's, in reads; rows may be reversed.
    let key_step = bitcast<u32>(bitcast<i32>(parameters.key_s) / 16);
    let value_step = bitcast<u32>(bitcast<i32>(parameters.value_s) / 16);
    let key_base = key_rows(b, k) / 16u + chunk{{ " - parameters.key_first * key_step" if not problem.paged }};
    let value_base = value_rows(b, k) / 16u + chunk{{ " - parameters.key_first * value_step" if not problem.paged }};
%% for n in range(VALUE_PARTS * PART_DIM // 16)
    var o_{{ n }} = {{ matrices.zero() }};
%% endfor
    var top = MASKED;
    var total = 0.0;
%% for i in pieces
%% for part in key_parts
    var key_{{ part }}_{{ i }} = vec4u();
%% endfor
%% for part in value_parts
    var value_{{ part }}_{{ i }} = vec4u();
%% endfor
%% endfor
    if (keys.x < keys.y) {
        {{ reads_of("keys.x") }}
%% for i in pieces
%% for part in key_parts
        key_{{ part }}_{{ i }} = {{ read("key", part, i) }};
%% endfor
%% for part in value_parts
        value_{{ part }}_{{ i }} = {{ read("value", part, i) }};
%% endfor
%% endfor
    }
    var started = false;
    for (var at = keys.x; at < keys.y; at += TILE_K) {
%% if guarded
        // Values that are no key's are not multiplied by 0 but left out.
%% for i in pieces
        {
            let s = min(at + {{ 8 * i }}u + row, keys.y - 1u);
            if (!(key_there(b, s){{ " && same_segment(b, 0u, s)" if problem.segments }})) {
%% for part in value_parts
                value_{{ part }}_{{ i }} = vec4u();
%% endfor
            }
        }
%% endfor
%% endif
        {{ reads_of("at + TILE_K") }}
%% for t in blocks
        var product_{{ t }} = {{ matrices.zero() }};
%% endfor
%% for part in key_parts
        {{ put("key", part) }}
%% for c in steps
%% for t in blocks
        {
            let k_part = {{ matrices.load("left", "tile", "%du * PITCH + %du" % (16 * t, 2 * c), "PITCH") }};
            product_{{ t }} = {{ matrices.multiply_add("k_part", "query_%d_%d" % (part, c), "product_%d" % t) }};
        }
%% endfor
%% endfor
        {{ settle() }}
%% endfor
%% for t in blocks
        {{ matrices.store("tile", "%du" % (4 * t), "PITCH", "product_%d" % t, "col_major") }};
%% endfor
        {{ settle() }}
%% for i in quads
        var y_{{ i }} = own_unit * (bitcast<vec4f>(tile[own_head * PITCH + own_first / 4u + {{ i }}u]) + bitcast<vec4f>(tile[(HEADS + own_head) * PITCH + own_first / 4u + {{ i }}u]));
%% if NAN_IS_INFINITE
        y_{{ i }} = without_infinities(y_{{ i }});
%% endif
%% for e in range(4)
        {
            let s = at + own_first + {{ 4 * i + e }}u;
            let here = logit(y_{{ i }}.{{ "xyzw"[e] }}, b, min(n_first + own_head, n_last), 0u, min(s, keys.y - 1u), kept);
            y_{{ i }}.{{ "xyzw"[e] }} = select(MASKED, here, s < keys.y);
        }
%% endfor
%% endfor
        {{ settle() }}
        {{ put("value", 0) }}

        var high = MASKED;
%% for i in quads
%% for e in range(4)
        high = max(high, y_{{ i }}.{{ "xyzw"[e] }});
%% endfor
%% endfor
        // A maximum is followed where it grew much: weights stay below what float16 holds, and rescaling is rare.
%% if EMULATED
        {
%% else
        if (subgroupAny(high > top + SLACK)) {
%% endif
%% if EMULATED
            workgroupBarrier();
            highs[lane] = high;
            workgroupBarrier();
            for (var i = own_head * HEAD_LANES; i < (own_head + 1u) * HEAD_LANES; i++) {
                high = max(high, highs[i]);
            }
%% else
%% for mask in (4, 2, 1) if mask < HEAD_LANES
            high = max(high, subgroupShuffleXor(high, {{ mask }}u));
%% endfor
%% endif
            high = max(high, top);
            let fade = decay(top, high);
            top = high;
            total *= fade;
            of_heads[own_head] = fade;
            if (started) {
                {{ settle() }}
                let row_fade = of_heads[lane % HEADS];
%% for n in range(VALUE_PARTS * PART_DIM // 16)
                {{ matrices.store("exchange", "0u", "SUM_PITCH", "o_%d" % n) }};
                {{ settle() }}
                exchange[own_sums] = bitcast<vec4u>(row_fade * bitcast<vec4f>(exchange[own_sums]));
                exchange[own_sums + 1u] = bitcast<vec4u>(row_fade * bitcast<vec4f>(exchange[own_sums + 1u]));
                {{ settle() }}
                o_{{ n }} = {{ matrices.load("result", "exchange", "0u", "SUM_PITCH") }};
                {{ settle() }}
%% endfor
            }
        }
        started = true;
        {{ settle() }}
%% for i in quads
        let w_{{ i }} = weights_of(y_{{ i }}, top);
        total += (w_{{ i }}.x + w_{{ i }}.y) + (w_{{ i }}.z + w_{{ i }}.w);
        let v_{{ i }} = LARGE * w_{{ i }};
        let high_{{ i }} = packed(coarse(v_{{ i }}));
        let low_{{ i }} = packed(v_{{ i }} - coarse(v_{{ i }}));
%% endfor
        {
            let to = own_head * WEIGHT_PITCH + own_first / 8u;
%% if HEADS == 8
            exchange[to] = vec4u(high_0, high_1);
            exchange[to + HEADS * WEIGHT_PITCH] = vec4u(low_0, low_1);
%% else
            let half = lane % 2u * 2u;
            exchange[to][half] = high_0.x;
            exchange[to][half + 1u] = high_0.y;
            exchange[to + HEADS * WEIGHT_PITCH][half] = low_0.x;
            exchange[to + HEADS * WEIGHT_PITCH][half + 1u] = low_0.y;
%% endif
        }
        {{ settle() }}
%% for t in blocks
        let weights_{{ t }} = {{ matrices.load("left", "exchange", "%du" % (2 * t), "WEIGHT_PITCH") }};
%% endfor
%% for part in value_parts
%% if part
        {{ settle() }}
        {{ put("value", part) }}
%% endif
%% for t in blocks
%% for c in steps
        {
            let v_part = {{ matrices.load("right", "tile", "%du * PITCH + %du" % (16 * t, 2 * c), "PITCH") }};
            o_{{ part * (PART_DIM // 16) + c }} = {{ matrices.multiply_add("weights_%d" % t, "v_part", "o_%d" % (part * (PART_DIM // 16) + c)) }};
        }
%% endfor
%% endfor
%% endfor
        {{ settle() }}
    }

    workgroupBarrier();
    exchange[lane].x = bitcast<u32>(total);
    workgroupBarrier();
    total = 0.0;
    for (var i = own_head * HEAD_LANES; i < (own_head + 1u) * HEAD_LANES; i++) {
        total += bitcast<f32>(exchange[i].x);
    }
    of_heads[own_head] = total;
    of_heads[HEADS + own_head] = top;
    workgroupBarrier();
    let item_total = of_heads[item_head];
    let item_top = of_heads[HEADS + item_head];
%% if problem.empty_rows == "mean"
    let means = ends_as_mean(b, 0u, item_total);
%% endif
    let there = lane < ITEMS && n_first + item_head <= n_last;
%% for n in range(VALUE_PARTS * PART_DIM // 16)
    workgroupBarrier();
    {{ matrices.store("exchange", "0u", "SUM_PITCH", "o_%d" % n) }};
    workgroupBarrier();
    if (there) {
        // Where these four of a row of a matrix lie among the head dims, whose fours were put apart.
        let eight = {{ n % (PART_DIM // 16) * 2 }}u + lane % 4u / 2u;
        let to = {{ n // (PART_DIM // 16) * (PART_DIM // 4) }}u + eight % {{ PART_DIM // 16 }}u * 4u + eight / {{ PART_DIM // 16 }}u * 2u + lane % 2u;
        var all_values = vec4f();
%% if problem.empty_rows == "mean"
        if (means) {
            all_values = sum_for_mean(part, b, k, to);
        }
%% endif
        let sum = bitcast<vec4f>(exchange[item_head * SUM_PITCH + lane % 4u]) + bitcast<vec4f>(exchange[(HEADS + item_head) * SUM_PITCH + lane % 4u]);
        let four = 1.0 / (LARGE * WIDE) * sum.xzyw;
        finish_chunk(part, b, 0u, n_first + item_head, item_top, item_total, to, {{ "without_infinities(four)" if NAN_IS_INFINITE else "four" }}, all_values);
    }
%% endfor
    if (there && lane % 4u == 0u) {
        finish_row(part, b, 0u, n_first + item_head, item_top, item_total);
    }
}
