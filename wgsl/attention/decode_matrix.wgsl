{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% import "shared/halves.wgsl" as halves with context %}
{% import "shared/matrices.wgsl" as matrices with context %}

// Decode on matrix units: one query row a head against many keys. A workgroup takes up to eight query heads of a group,
// and TILE keys at a time. Each number that meets a key or a value is split into two of float16, and these are two rows
// of a 16-row matrix, g and g + 8: so products are as exact as in float32. Keys and values are staged as float16, which
// holds every type that is read here. The next tile is read while this one is computed.
// Bytes are staged even ones first, then odd ones: query and output follow that order.
{% set BYTES = STORED != "f16" %}
// What the second part of a number was multiplied by before it was rounded.
const FINE: f32 = 2048.0;

// 16 · KEY_PITCH · 16 bytes: query rows as float16
var<workgroup> query_rows: array<vec4u, 16 * KEY_PITCH>;
// TILE · KEY_PITCH · 16 bytes
var<workgroup> key_tile: array<vec4u, TILE * KEY_PITCH>;
// TILE · VALUE_PITCH · 16 bytes; after the last key the sums, in rows of float32
var<workgroup> value_tile: array<vec4u, TILE * VALUE_PITCH>;
// 16 · WEIGHT_PITCH · 16 bytes: weights as float16
var<workgroup> weight_rows: array<vec4u, 16 * WEIGHT_PITCH>;
// SCORES · 16 bytes: logits before they are joined and masked; while sums are rescaled, 16 x 16 of them a subgroup
var<workgroup> score_rows: array<vec4f, SCORES>;
%% if problem.scales
// 2 · TILE · 4 bytes: the keys' scales, then the values'
var<workgroup> tile_scales: array<f32, 2 * TILE>;
%% endif
// 8 · 4 bytes: what a head's sums are multiplied by before this tile; after the last key, what they are in units of
var<workgroup> fades: array<f32, 8>;
// 8 · 4 bytes
var<workgroup> tops: array<f32, 8>;
// 8 · 4 bytes
var<workgroup> totals: array<f32, 8>;
// 4 bytes: whether any of the fades is not 1
var<workgroup> faded: u32;

{{ matrices.emulation(("query_rows", "weight_rows"), ("key_tile", "value_tile"), ("score_rows",), ("value_tile",)) }}
{{ halves.halves(STORED) }}

// 2^-e for a number of [2^e, 2^(e + 1)), and the other way round for a power of two.
fn unit_of(number: f32) -> f32 {
    return bitcast<f32>(0x7f000000u - clamp(bitcast<u32>(number) & 0x7f800000u, 0x00800000u, 0x7e800000u));
}

%% for name, chunks in (("key", "KEY_CHUNKS"), ("value", "VALUE_CHUNKS"))
// Sixteen bytes of a tile's {{ name }}s, of the last one where the keys end before the tile does.
fn read_{{ name }}(rows: u32, b: u32, tile: u32, end: u32, item: u32) -> vec4u {
    let s = min(tile + item / {{ chunks }}, end - 1u);
    return {{ name }}[(rows + key_slot(b, s) * parameters.{{ name }}_s) / PER_CHUNK + item % {{ chunks }}];
}

%% endfor
%% if problem.scales
fn read_scale(rows: u32, b: u32, tile: u32, end: u32, item: u32) -> f32 {
    let s = min(tile + item % TILE, end - 1u);
    return scales[rows + key_slot(b, s) * parameters.scales_s + min(item / TILE, 1u)];
}

%% endif
fn logit_before(end: u32, product: f32, b: u32, n: u32, s: u32, kept: Kept) -> f32 {
    if (s >= end) {
        return MASKED;
    }
    return logit(product, b, n, 0u, s, kept);
}

// Elements 4 · chunk … of one row of the sums.
fn sums_at(row: u32, chunk: u32) -> vec4f {
%% if BYTES
    let even = value_tile[row * SUM_PITCH + chunk / 2u];
    let odd = value_tile[row * SUM_PITCH + SUM_PITCH / 2u + chunk / 2u];
    if (chunk % 2u == 0u) {
        return bitcast<vec4f>(vec4u(even.x, odd.x, even.y, odd.y));
    }
    return bitcast<vec4f>(vec4u(even.z, odd.z, even.w, odd.w));
%% else
    return bitcast<vec4f>(value_tile[row * SUM_PITCH + chunk]);
%% endif
}
{% macro read_tile(tile) %}
%% for i in range(KEY_ITEMS)
key_{{ i }} = read_key(k_rows, b, {{ tile }}, keys.y, thread + {{ i }}u * THREADS);
%% endfor
%% for i in range(VALUE_ITEMS)
value_{{ i }} = read_value(v_rows, b, {{ tile }}, keys.y, thread + {{ i }}u * THREADS);
%% endfor
%% if problem.scales
%% for i in range(SCALE_ITEMS)
scale_{{ i }} = read_scale(scale_rows, b, {{ tile }}, keys.y, thread + {{ i }}u * THREADS);
%% endfor
%% endif
{% endmacro %}
{% macro stage(name, items, chunks, pitch) %}
%% for i in range(items)
{
    let item = thread + {{ i }}u * THREADS;
%% if i * THREADS + THREADS > TILE * chunks
    if (item < TILE * {{ chunks }}u) {
%% else
    {
%% endif
        let at = item / {{ chunks }}u * {{ pitch }} + item % {{ chunks }}u;
%% if BYTES
        {{ name }}_tile[at] = even_halves({{ name }}_{{ i }});
        {{ name }}_tile[at + {{ chunks }}u] = odd_halves({{ name }}_{{ i }});
%% else
        {{ name }}_tile[at] = {{ name }}_{{ i }};
%% endif
    }
}
%% endfor
{% endmacro %}

@compute @workgroup_size(THREADS)
fn decode(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    // Key/value heads lie closest, since their rows do.
    let head_blocks = (parameters.G + HEADS - 1u) / HEADS;
    var index = folded_index(workgroup, workgroups);
    let units = parameters.N / parameters.G * head_blocks;
    let unit = index % units;
    index /= units;
    let part = index % parameters.parts;
    let b = index / parameters.parts;
    if (b >= parameters.batch) {
        return;
    }
    let n_first = unit / head_blocks * parameters.G + unit % head_blocks * HEADS;
    let n_last = min(n_first + HEADS, (unit / head_blocks + 1u) * parameters.G) - 1u;
    let k = key_head(n_first);
    let lane = thread % LANES;
    let crew = thread / LANES;
    let subgroup = thread / 32u;
%% if EMULATED
    matrix_lane = thread % 32u;
%% endif

    let from_key = parameters.key_first + part * parameters.part_keys;
    let keys = block_keys(b, 0u, 0u, from_key, min(from_key + parameters.part_keys, parameters.key_end));
    let kept = kept_keys(b, 0u);
    let k_rows = key_rows(b, k);
    let v_rows = value_rows(b, k);
%% if problem.scales
    let scale_rows = scales_at(b, 0u, k);
%% endif
%% for i in range(KEY_ITEMS)
    var key_{{ i }} = vec4u();
%% endfor
%% for i in range(VALUE_ITEMS)
    var value_{{ i }} = vec4u();
%% endfor
%% if problem.scales
%% for i in range(SCALE_ITEMS)
    var scale_{{ i }} = 0.0;
%% endfor
%% endif
    if (keys.x < keys.y) {
        {{ read_tile("keys.x") | indent(8) }}
    }

    // A subgroup prepares the rows of its own heads, and later weighs their keys: every row in a unit of its own.
    let scale = query_scale(b);
%% for j in range(OWN_HEADS)
    let g_{{ j }} = crew + {{ j * CREWS }}u;
    var query_unit_{{ j }} = 1.0;
    var top_{{ j }} = MASKED;
    var total_{{ j }} = 0.0;
%% if problem.scales
    var weight_unit_{{ j }} = 1.0;
    var reach_{{ j }} = 0.0;
%% endif
    if (g_{{ j }} < HEADS) {
        let row = query_row(b, 0u, min(n_first + g_{{ j }}, n_last));
        var largest = 0.0;
        for (var chunk = lane; chunk < HEAD_DIM / 4u; chunk += LANES) {
            let four = abs(scale * load_query(row, chunk));
            largest = max(largest, max(max(four.x, four.y), max(four.z, four.w)));
        }
        query_unit_{{ j }} = unit_of(subgroupMax(largest));
        for (var eight = lane; eight < HEAD_DIM / 16u; eight += LANES) {
%% for c in range(4)
            let all_{{ c }} = query_unit_{{ j }} * scale * load_query(row, 4u * eight + {{ c }}u);
%% endfor
%% if BYTES
            let first = vec4u({% for c in range(4) %}{{ ", " if c }}pack2x16float(all_{{ c }}.xz){% endfor %});
            let second = vec4u({% for c in range(4) %}{{ ", " if c }}pack2x16float(all_{{ c }}.yw){% endfor %});
            let first_at = g_{{ j }} * KEY_PITCH + eight;
            let second_at = first_at + HEAD_DIM / 16u;
{% set parts = (("first", "all_0.xz", "all_1.xz", "all_2.xz", "all_3.xz"), ("second", "all_0.yw", "all_1.yw", "all_2.yw", "all_3.yw")) %}
%% else
            let first = vec4u(pack2x16float(all_0.xy), pack2x16float(all_0.zw), pack2x16float(all_1.xy), pack2x16float(all_1.zw));
            let second = vec4u(pack2x16float(all_2.xy), pack2x16float(all_2.zw), pack2x16float(all_3.xy), pack2x16float(all_3.zw));
            let first_at = g_{{ j }} * KEY_PITCH + 2u * eight;
            let second_at = first_at + 1u;
{% set parts = (("first", "all_0.xy", "all_0.zw", "all_1.xy", "all_1.zw"), ("second", "all_2.xy", "all_2.zw", "all_3.xy", "all_3.zw")) %}
%% endif
%% for part, x, y, z, w in parts
            query_rows[{{ part }}_at] = {{ part }};
            query_rows[{{ part }}_at + 8u * KEY_PITCH] = vec4u(
                pack2x16float(FINE * ({{ x }} - unpack2x16float({{ part }}.x))),
                pack2x16float(FINE * ({{ y }} - unpack2x16float({{ part }}.y))),
                pack2x16float(FINE * ({{ z }} - unpack2x16float({{ part }}.z))),
                pack2x16float(FINE * ({{ w }} - unpack2x16float({{ part }}.w))),
            );
%% endfor
        }
        query_unit_{{ j }} = KEY_UNIT * unit_of(query_unit_{{ j }});
    }
%% endfor
    workgroupBarrier();
%% if HOLD_QUERY
%% for i in range(HEAD_DIM // 16)
    let query_{{ i }} = {{ matrices.load("left", "query_rows", "%du" % (2 * i), "KEY_PITCH") }};
%% endfor
%% endif
%% for i in range(VALUE_OWN)
    let column_{{ i }} = min(subgroup + {{ i * SUBGROUPS }}u, VALUE_DIM / 16u - 1u);
    var sum_{{ i }} = {{ matrices.zero() }};
%% endfor

    for (var tile = keys.x; tile < keys.y; tile += TILE) {
        {{ stage("key", KEY_ITEMS, KEY_CHUNKS, "KEY_PITCH") | indent(8) }}
        {{ stage("value", VALUE_ITEMS, VALUE_CHUNKS, "VALUE_PITCH") | indent(8) }}
%% if problem.scales
%% for i in range(SCALE_ITEMS)
        if (thread + {{ i }}u * THREADS < 2u * TILE) {
            tile_scales[thread + {{ i }}u * THREADS] = scale_{{ i }};
        }
%% endfor
%% endif
        if (thread == 0u) {
            faded = 0u;
        }
        workgroupBarrier();
        {{ read_tile("tile + TILE") | indent(8) }}

        // Every subgroup sixteen keys: their products with all rows.
%% for i in range(KEY_OWN)
        {
            let first = min(subgroup + {{ i * SUBGROUPS }}u, TILE / 16u - 1u);
            var score = {{ matrices.zero() }};
%% for c in range(HEAD_DIM // 16)
%% if not HOLD_QUERY
            let query_{{ c }} = {{ matrices.load("left", "query_rows", "%du" % (2 * c), "KEY_PITCH") }};
%% endif
            let keys_{{ c }} = {{ matrices.load("right", "key_tile", "first * 16u * KEY_PITCH + %du" % (2 * c), "KEY_PITCH", "col_major") }};
            score = {{ matrices.multiply_add("query_%d" % c, "keys_%d" % c, "score") }};
%% endfor
            {{ matrices.store("score_rows", "4u * first", "SCORE_PITCH", "score") }};
        }
%% endfor
        workgroupBarrier();

        // Every subgroup its heads, a lane pairs of keys. A maximum is followed only where it grew much.
%% for j in range(OWN_HEADS)
        if (g_{{ j }} < HEADS) {
            let n = min(n_first + g_{{ j }}, n_last);
            var high = MASKED;
%% for i in range(PAIRS)
            let at_{{ i }} = lane + {{ i }}u * LANES;
            let s_{{ i }} = tile + 2u * at_{{ i }};
            let four_{{ i }} = score_rows[g_{{ j }} * SCORE_PITCH + at_{{ i }} / 2u] + score_rows[(g_{{ j }} + 8u) * SCORE_PITCH + at_{{ i }} / 2u] / FINE;
            let product_{{ i }} = query_unit_{{ j }} * select(four_{{ i }}.xy, four_{{ i }}.zw, at_{{ i }} % 2u == 1u);
%% if problem.scales
            let key_scale_{{ i }} = vec2f(tile_scales[2u * at_{{ i }}], tile_scales[2u * at_{{ i }} + 1u]);
%% endif
            let y_{{ i }} = vec2f(
                logit_before(keys.y, {{ "key_scale_%d.x * " % i if problem.scales }}product_{{ i }}.x, b, n, s_{{ i }}, kept),
                logit_before(keys.y, {{ "key_scale_%d.y * " % i if problem.scales }}product_{{ i }}.y, b, n, s_{{ i }} + 1u, kept),
            );
            high = max(high, max(y_{{ i }}.x, y_{{ i }}.y));
%% endfor
            var fade = 1.0;
            let grew = subgroupAny(high > top_{{ j }} + SLACK);
            if (grew) {
                high = max(subgroupMax(high), top_{{ j }});
                fade = decay(top_{{ j }}, high);
                total_{{ j }} *= fade;
                top_{{ j }} = high;
            }
%% for i in range(PAIRS)
            var w_{{ i }} = vec2f(weight(y_{{ i }}.x, top_{{ j }}), weight(y_{{ i }}.y, top_{{ j }}));
            total_{{ j }} += w_{{ i }}.x + w_{{ i }}.y;
%% endfor
%% if problem.scales
            // Scaled weights are kept in a unit that the largest of them sets, so that float16 holds them all.
            var far = 0.0;
%% for i in range(PAIRS)
            w_{{ i }} *= vec2f(
                select(0.0, tile_scales[TILE + 2u * at_{{ i }}], s_{{ i }} < keys.y),
                select(0.0, tile_scales[TILE + 2u * at_{{ i }} + 1u], s_{{ i }} + 1u < keys.y),
            );
            far = max(far, max(w_{{ i }}.x, w_{{ i }}.y));
%% endfor
            if (grew || subgroupAny(far * weight_unit_{{ j }} > 256.0)) {
                reach_{{ j }} = max(reach_{{ j }} * fade, subgroupMax(far));
                let unit_here = unit_of(reach_{{ j }});
                fade = fade * unit_here / weight_unit_{{ j }};
                weight_unit_{{ j }} = unit_here;
            }
%% endif
%% for i in range(PAIRS)
%% if problem.scales
            w_{{ i }} *= weight_unit_{{ j }};
%% endif
            let whole_{{ i }} = pack2x16float(w_{{ i }});
            weight_rows[g_{{ j }} * WEIGHT_PITCH + at_{{ i }} / 4u][at_{{ i }} % 4u] = whole_{{ i }};
            weight_rows[(g_{{ j }} + 8u) * WEIGHT_PITCH + at_{{ i }} / 4u][at_{{ i }} % 4u] = pack2x16float(FINE * (w_{{ i }} - unpack2x16float(whole_{{ i }})));
%% endfor
            if (lane == 0u) {
                fades[g_{{ j }}] = fade;
                if (fade != 1.0) {
                    faded = 1u;
                }
            }
        }
%% endfor
        // Matrices give no access to their elements, so they are rescaled where they can be: in workgroup memory.
        if (workgroupUniformLoad(&faded) != 0u) {
%% for i in range(VALUE_OWN)
            {{ matrices.store("score_rows", "64u * subgroup", "4u", "sum_%d" % i) }};
            workgroupBarrier();
            for (var i = thread; i < 64u * SUBGROUPS; i += THREADS) {
                score_rows[i] *= fades[i / 4u % 8u];
            }
            workgroupBarrier();
            sum_{{ i }} = {{ matrices.load("result", "score_rows", "64u * subgroup", "4u") }};
            workgroupBarrier();
%% endfor
        }

        // Every subgroup its columns: the weighted values.
%% for t in range(TILE // 16)
        let weights_{{ t }} = {{ matrices.load("left", "weight_rows", "%du" % (2 * t), "WEIGHT_PITCH") }};
%% endfor
%% for i in range(VALUE_OWN)
%% for t in range(TILE // 16)
        let values_{{ i }}_{{ t }} = {{ matrices.load("right", "value_tile", "%du * VALUE_PITCH + 2u * column_%d" % (16 * t, i), "VALUE_PITCH") }};
        sum_{{ i }} = {{ matrices.multiply_add("weights_%d" % t, "values_%d_%d" % (i, t), "sum_%d" % i) }};
%% endfor
%% endfor
        workgroupBarrier();
    }

%% for i in range(VALUE_OWN)
    {{ matrices.store("value_tile", "4u * column_%d" % i, "SUM_PITCH", "sum_%d" % i) }};
%% endfor
%% for j in range(OWN_HEADS)
    if (g_{{ j }} < HEADS) {
        let total = subgroupAdd(total_{{ j }});
        if (lane == 0u) {
            tops[g_{{ j }}] = top_{{ j }};
            totals[g_{{ j }}] = total;
            fades[g_{{ j }}] = VALUE_UNIT{{ " * unit_of(weight_unit_%d)" % j if problem.scales }};
        }
    }
%% endfor
    workgroupBarrier();
    for (var i = thread; i < HEADS * SUM_PITCH; i += THREADS) {
        let g = i / SUM_PITCH;
        let chunk = i % SUM_PITCH;
        if (n_first + g <= n_last) {
            let sum = fades[g] * (sums_at(g, chunk) + sums_at(g + 8u, chunk) / FINE);
            var all_values = vec4f();
%% if problem.empty_rows == "mean"
            if (ends_as_mean(b, 0u, totals[g])) {
                all_values = sum_for_mean(part, b, k, chunk);
            }
%% endif
            finish_chunk(part, b, 0u, n_first + g, tops[g], totals[g], chunk, sum, all_values);
        }
    }
    if (thread < HEADS && n_first + thread <= n_last) {
        finish_row(part, b, 0u, n_first + thread, tops[thread], totals[thread]);
    }
}
