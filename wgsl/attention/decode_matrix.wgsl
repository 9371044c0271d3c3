{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% import "shared/matrices.wgsl" as matrices with context %}

// Decode on matrix units, for caches of one byte: a workgroup is one subgroup, and takes TILE_K keys at a time. Their
// bytes become float16 in workgroup memory, exactly, 2,048 of them at a time: so little is staged that many workgroups
// run beside each other. Query rows and weights are the columns of matrices of eight: of up to four heads in two
// digits, a float16 and the float16 of what that leaves out, of up to eight in one. Matrix units add without rounding:
// every FLUSH keys, and where a maximum grew much, lanes take the sums out of the matrices and add them up. What lanes
// write to workgroup memory, they read in the order of the text.
// Lane l has the logits of head l / HEAD_LANES, of as many keys one after another as there are heads; and the sums of
// column l % 8, four head dims of each sixteen.
{% set staged = {"key": staged_key, "value": staged_value} %}
{% set heads = range(HEADS) %}
{% set quads = range(HEADS // 4) %}
{% set blocks = range(TILE_K // 16) %}
{% set sums = range(VALUE_DIM // 16) %}
{% set by_range = problem.keys.clauses | length == 1 and not (problem.ring or problem.dense or problem.paged) %}
{# What a key without a page, or of another segment, has for a value must not reach the sums, where 0 · NaN is NaN. #}
{% set guarded = problem.paged or problem.segments %}
{# What orders the lanes' writes before their reads. #}
{% macro settle() %}{{ "workgroupBarrier();" if EMULATED }}{% endmacro %}
{% macro slot(s) %}{{ "key_slot(b, %s)" % s if problem.paged else s }}{% endmacro %}
{# Read i of a tile: sixteen bytes of a key, which lies `row` keys behind its first. #}
{% macro read(name, first, i) -%}
{{ name }}[{{ name }}_base + {{ slot("min(%s + %du + %s_row, keys.y - 1u)" % (first, staged[name].rows * i, name)) }} * {{ name }}_step]
{%- endmacro %}
{# What the matrices have summed goes to the lanes' own sums. #}
{% macro flush() %}
%% for n in sums
            {{ matrices.store("exchange", "0u", "SUM_PITCH", "fresh_%d" % n, "col_major") }};
            {{ settle() }}
            sum_{{ n }} += bitcast<vec4f>(exchange[own_sums]);
            {{ settle() }}
%% endfor
{% endmacro %}
{# The first eight of sixteen bytes go to the first half of a row, the others to the second, against bank conflicts. #}
{% macro put(name, stage) %}
{% set how = staged[name] %}
%% for piece in range(how.pieces)
{% set i = stage * how.pieces + piece %}
        tile[{{ name }}_put + {{ how.rows * how.pitch * piece }}u] = vec4u(widen({{ name }}_{{ i }}.x), widen({{ name }}_{{ i }}.y));
        tile[{{ name }}_put + {{ how.rows * how.pitch * piece + how.chunks }}u] = vec4u(widen({{ name }}_{{ i }}.z), widen({{ name }}_{{ i }}.w));
        {{ name }}_{{ i }} = {{ read(name, "at + TILE_K", i) }};
%% endfor
        {{ settle() }}
{% endmacro %}
// TILE · 16 bytes: Q; keys and values, as float16; logits
var<workgroup> tile: array<vec4u, TILE>;
// EXCHANGE · 16 bytes: scales; weights, as float16; sums
var<workgroup> exchange: array<vec4u, EXCHANGE>;
// 3 · HEADS · 4 bytes: of each head a factor or a total, the maximum, and the exponent of the sums' unit
var<workgroup> of_heads: array<f32, 3 * HEADS>;
%% if EMULATED
// 128 bytes: the lanes' maxima
var<workgroup> highs: array<f32, 32>;

%% endif
{{ matrices.emulation(("tile",), ("tile", "exchange"), (), ("tile", "exchange")) }}

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
    let own_sums = lane % 8u * SUM_PITCH + lane / 8u;
    let sums_head = lane % HEADS;
%% for name, how in staged.items()
    let {{ name }}_chunk = lane % {{ how.chunks }}u;
    let {{ name }}_row = {{ how.row_of_lane }};
    let {{ name }}_put = {{ name }}_row * {{ how.pitch }}u + {{ name }}_chunk;
%% endfor

    // Q: each row is brought to a largest number from 512 to 1,024, by a power of two.
{% set how = staged.key %}
    let scale = query_scale(b);
    let q_chunk = min(lane, {{ HEAD_DIM // 4 - 1 }}u);
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
    for (var i = lane; i < {{ 8 * how.pitch }}u; i += 32u) {
        tile[i] = vec4u();
    }
    workgroupBarrier();
    if (lane < {{ HEAD_DIM // 4 }}u) {
        // Within four, numbers lie as those of a word of bytes do.
        let at = lane % 4u / 2u * {{ how.chunks }}u + lane / 4u;
        let half = lane % 2u * 2u;
%% for g in heads
        {
            let n = select(vec4f(), digit_factor(most_{{ g }}) * q_{{ g }}.xzyw, most_{{ g }} < 0x7f800000u);
            let high = packed({{ "coarse(n)" if QUERY_DIGITS == 2 else "n" }});
            tile[{{ g * how.pitch }}u + at][half] = high.x;
            tile[{{ g * how.pitch }}u + at][half + 1u] = high.y;
%% if QUERY_DIGITS == 2
            let low = packed(n - coarse(n));
            tile[{{ (HEADS + g) * how.pitch }}u + at][half] = low.x;
            tile[{{ (HEADS + g) * how.pitch }}u + at][half + 1u] = low.y;
%% endif
        }
%% endfor
    }
    workgroupBarrier();
%% for c in range(how.chunks)
    let query_{{ c }} = {{ matrices.load("right", "tile", "%du" % (2 * c), "%du" % how.pitch, "col_major") }};
%% endfor
    workgroupBarrier();

    let from_key = parameters.key_first + part * parameters.part_keys;
    let keys = block_keys(b, 0u, 0u, from_key, min(from_key + parameters.part_keys, parameters.key_end));
%% if not by_range
    let kept = kept_keys(b, 0u);
%% endif
    // Where this lane's share of key 0 lies, and how far it is to the next key's, in reads; rows may be reversed.
    let key_step = bitcast<u32>(bitcast<i32>(parameters.key_s) / 16);
    let value_step = bitcast<u32>(bitcast<i32>(parameters.value_s) / 16);
    let key_base = key_rows(b, k) / 16u + key_chunk{{ " - parameters.key_first * key_step" if not problem.paged }};
    let value_base = value_rows(b, k) / 16u + value_chunk{{ " - parameters.key_first * value_step" if not problem.paged }};
%% for n in sums
    var sum_{{ n }} = vec4f();
    var fresh_{{ n }} = {{ matrices.zero() }};
%% endfor
    var top = MASKED;
    var total = 0.0;
%% if problem.scales
    // Sums are in the unit of a weight at weighted_top, which follows weights times their scales as `top` does weights.
    var weighted_top = MASKED;
    var key_scale = 0.0;
    var value_scale = 0.0;
%% endif
%% for name, how in staged.items()
%% for i in range(how.pieces * how.stages)
    var {{ name }}_{{ i }} = vec4u();
%% endfor
%% endfor
    if (keys.x < keys.y) {
%% for name, how in staged.items()
%% for i in range(how.pieces * how.stages)
        {{ name }}_{{ i }} = {{ read(name, "keys.x", i) }};
%% endfor
%% endfor
%% if problem.scales
        let scales_first = scales_at(b, key_slot(b, min(keys.x + lane, keys.y - 1u)), k);
        key_scale = scales[scales_first];
        value_scale = scales[scales_first + 1u];
%% endif
    }
    {# The lanes' vote keeps compilers from unrolling the loop, whose code is then too long for the instruction cache. #}
    for (var at = keys.x; {{ "at < keys.y" if EMULATED else "subgroupAny(at + key_row < keys.y)" }}; at += TILE_K) {
%% if guarded
        // Values that are no key's are not multiplied by 0 but left out.
%% for i in range(staged.value.pieces * staged.value.stages)
        {
            let s = min(at + {{ staged.value.rows * i }}u + value_row, keys.y - 1u);
            if (!(key_there(b, s){{ " && same_segment(b, 0u, s)" if problem.segments }})) {
                value_{{ i }} = vec4u();
            }
        }
%% endfor
%% endif
%% if problem.scales
        exchange[lane / 4u][lane % 4u] = bitcast<u32>(key_scale);
        exchange[8u + lane / 4u][lane % 4u] = bitcast<u32>({{ "select(0.0, value_scale, key_there(b, min(at + lane, keys.y - 1u)))" if problem.paged else "value_scale" }});
        let scales_next = scales_at(b, key_slot(b, min(at + TILE_K + lane, keys.y - 1u)), k);
        key_scale = scales[scales_next];
        value_scale = scales[scales_next + 1u];
%% endif
%% for t in blocks
        var product_{{ t }} = {{ matrices.zero() }};
%% endfor
{% set how = staged.key %}
%% for stage in range(how.stages)
        {{ put("key", stage) }}
%% for c in range(how.chunks)
%% for block in range(how.keys // 16)
{% set product = "product_%d" % (stage * how.keys // 16 + block) %}
        {
            let k_part = {{ matrices.load("left", "tile", "%du" % (16 * block * how.pitch + 2 * c), "%du" % how.pitch) }};
            {{ product }} = {{ matrices.multiply_add("k_part", "query_%d" % c, product) }};
        }
%% endfor
%% endfor
        {{ settle() }}
%% endfor
%% for t in blocks
        {{ matrices.store("tile", "%du" % (4 * t), "LOGIT_PITCH", "product_%d" % t, "col_major") }};
%% endfor
        {{ settle() }}
%% for i in quads
{% set at = "tile[%sown_head * LOGIT_PITCH + own_first / 4u + %du]" %}
        var y_{{ i }} = own_unit * {{ "(bitcast<vec4f>(%s) + bitcast<vec4f>(%s))" % (at % ("", i), at % ("HEADS * LOGIT_PITCH + ", i)) if QUERY_DIGITS == 2 else "bitcast<vec4f>(%s)" % (at % ("", i)) }};
%% if NAN_IS_INFINITE
        y_{{ i }} = without_infinities(y_{{ i }});
%% endif
%% if problem.scales
        y_{{ i }} *= bitcast<vec4f>(exchange[own_first / 4u + {{ i }}u]);
        let value_scale_{{ i }} = bitcast<vec4f>(exchange[8u + own_first / 4u + {{ i }}u]);
%% endif
%% for e in range(4)
{% set y = "y_%d.%s" % (i, "xyzw"[e]) %}
        {
            let s = at + own_first + {{ 4 * i + e }}u;
            let here = {{ "capped(%s)" % y if by_range else "logit(%s, b, min(n_first + own_head, n_last), 0u, min(s, keys.y - 1u), kept)" % y }};
            {{ y }} = select(MASKED, here, s < keys.y);
        }
%% endfor
%% endfor
        {{ settle() }}
        {{ put("value", 0) }}

        var high = MASKED;
%% if problem.scales
        var weighted_high = MASKED;
%% endif
%% for i in quads
%% for e in range(4)
        high = max(high, y_{{ i }}.{{ "xyzw"[e] }});
%% if problem.scales
        weighted_high = max(weighted_high, y_{{ i }}.{{ "xyzw"[e] }} + {{ "log" if NATURAL else "log2" }}(max(abs(value_scale_{{ i }}.{{ "xyzw"[e] }}), LEAST_SCALE)));
%% endif
%% endfor
%% endfor
        // A maximum is followed where it grew much: weights stay below what float16 holds, and rescaling is rare.
%% if EMULATED
        {
%% else
        if (subgroupAny(high > top + SLACK{{ " || weighted_high > weighted_top + SLACK" if problem.scales }}) || (at - keys.x) % FLUSH == 0u) {
%% endif
%% for value in ("high", "weighted_high") if value == "high" or problem.scales
%% if EMULATED
            workgroupBarrier();
            highs[lane] = {{ value }};
            workgroupBarrier();
            for (var i = own_head * HEAD_LANES; i < (own_head + 1u) * HEAD_LANES; i++) {
                {{ value }} = max({{ value }}, highs[i]);
            }
%% else
%% for mask in (4, 2, 1) if mask < HEAD_LANES
            {{ value }} = max({{ value }}, subgroupShuffleXor({{ value }}, {{ mask }}u));
%% endfor
%% endif
%% endfor
            high = max(high, top);
            let fade = decay(top, high);
            top = high;
            total *= fade;
%% if problem.scales
            weighted_high = max(weighted_high, weighted_top);
            of_heads[own_head] = decay(weighted_top, weighted_high);
            weighted_top = weighted_high;
%% else
            of_heads[own_head] = fade;
%% endif
            {{ settle() }}
            let sums_fade = of_heads[sums_head];
            {{ flush() }}
%% for n in sums
            fresh_{{ n }} = {{ matrices.zero() }};
            sum_{{ n }} *= sums_fade;
%% endfor
        }
%% if problem.scales
        let unit = LARGE * decay(top, weighted_top);
%% endif
        {{ settle() }}
%% for i in quads
        let w_{{ i }} = weights_of(y_{{ i }}, top);
        total += (w_{{ i }}.x + w_{{ i }}.y) + (w_{{ i }}.z + w_{{ i }}.w);
        let v_{{ i }} = {{ "unit * (value_scale_%d * w_%d)" % (i, i) if problem.scales else "LARGE * w_%d" % i }};
        let high_{{ i }} = packed({{ "coarse(v_%d)" % i if HEADS == 4 else "v_%d" % i }});
%% endfor
        {
            let to = own_head * WEIGHT_PITCH + own_first / 8u;
%% if HEADS == 8
            exchange[to] = vec4u(high_0, high_1);
%% else
            let low = packed(v_0 - coarse(v_0));
            let half = lane % 2u * 2u;
            exchange[to][half] = high_0.x;
            exchange[to][half + 1u] = high_0.y;
            exchange[to + HEADS * WEIGHT_PITCH][half] = low.x;
            exchange[to + HEADS * WEIGHT_PITCH][half + 1u] = low.y;
%% endif
        }
        {{ settle() }}
%% for t in blocks
        let weights_{{ t }} = {{ matrices.load("right", "exchange", "%du" % (2 * t), "WEIGHT_PITCH", "col_major") }};
%% endfor
{% set how = staged.value %}
%% for stage in range(how.stages)
%% if stage
        {{ settle() }}
        {{ put("value", stage) }}
%% endif
%% for block in range(how.keys // 16)
%% for n in sums
        {
            let v_part = {{ matrices.load("left", "tile", "%du" % (16 * block * how.pitch + 2 * n), "%du" % how.pitch, "col_major") }};
            fresh_{{ n }} = {{ matrices.multiply_add("v_part", "weights_%d" % (stage * how.keys // 16 + block), "fresh_%d" % n) }};
        }
%% endfor
%% endfor
%% endfor
        {{ settle() }}
    }
    {{ flush() }}

    workgroupBarrier();
    exchange[lane].x = bitcast<u32>(total);
    workgroupBarrier();
    total = 0.0;
    for (var i = own_head * HEAD_LANES; i < (own_head + 1u) * HEAD_LANES; i++) {
        total += bitcast<f32>(exchange[i].x);
    }
    of_heads[own_head] = total;
    of_heads[HEADS + own_head] = top;
    of_heads[2u * HEADS + own_head] = {{ "decay(weighted_top, top) / (LARGE * WIDE)" if problem.scales else "1.0 / (LARGE * WIDE)" }};
    workgroupBarrier();
    let sums_total = of_heads[sums_head];
    let sums_top = of_heads[HEADS + sums_head];
    let sums_unit = of_heads[2u * HEADS + sums_head];
%% if problem.empty_rows == "mean"
    let means = ends_as_mean(b, 0u, sums_total);
%% endif
    let there = lane % 8u < HEADS && n_first + sums_head <= n_last;
%% for n in sums
%% if HEADS == 4
    workgroupBarrier();
    exchange[lane] = bitcast<vec4u>(sum_{{ n }});
    workgroupBarrier();
    sum_{{ n }} += bitcast<vec4f>(exchange[lane ^ HEADS]);
%% endif
    if (there) {
        // Where these four of a row of a matrix lie among the head dims, whose fours were put apart.
        let eight = {{ 2 * n }}u + lane / 16u;
        let to = eight % {{ how.chunks }}u * 4u + eight / {{ how.chunks }}u * 2u + lane / 8u % 2u;
        var all_values = vec4f();
%% if problem.empty_rows == "mean"
        if (means) {
            all_values = sum_for_mean(part, b, k, to);
        }
%% endif
        let four = sums_unit * sum_{{ n }}.xzyw;
        finish_chunk(part, b, 0u, n_first + sums_head, sums_top, sums_total, to, {{ "without_infinities(four)" if NAN_IS_INFINITE else "four" }}, all_values);
    }
%% endfor
    if (there && lane < 8u) {
        finish_row(part, b, 0u, n_first + sums_head, sums_top, sums_total);
    }
}
