{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% import "shared/halves.wgsl" as halves with context %}
{% import "shared/matrices.wgsl" as matrices with context %}

// Decode on matrix units: one query row a head against many keys. A workgroup takes up to eight query heads of a group,
// and TILE keys at a time, sixteen for each of its few subgroups: many small workgroups hide each other's waits. Each
// number that meets a key or a value is split into two of float16, which are two rows of a 16-row matrix, g and g + 8:
// so products are as exact as in float32. Keys and values are staged as float16, which holds every type that is read
// here, bytes even ones first: query and output follow that order. The next tile is read while this one is computed.
{% set BYTES = STORED != "f16" %}
// What the second part of a number was multiplied by before it was rounded.
const FINE: f32 = 2048.0;
// What a weight of 1 is held as: weights reach 2^SLACK, and float16 holds small numbers with few bits.
const ONE: f32 = 128.0;

// TILE · TILE_PITCH · 16 bytes: query rows, and then by turns keys and values
var<workgroup> staged: array<vec4u, TILE * TILE_PITCH>;
%% if not HOLD_QUERY
// 16 · KEY_PITCH · 16 bytes
var<workgroup> query_rows: array<vec4u, 16 * KEY_PITCH>;
%% endif
// 16 · WEIGHT_PITCH · 16 bytes: weights as float16
var<workgroup> weight_rows: array<vec4u, 16 * WEIGHT_PITCH>;
// SCORES · 16 bytes: logits before they are joined and masked; by turns matrices of sums, two a subgroup
var<workgroup> score_rows: array<vec4f, SCORES>;
%% if problem.scales
// 2 · TILE · 4 bytes: the keys' scales, then the values'
var<workgroup> tile_scales: array<f32, 2 * TILE>;
%% endif
// 8 · 4 bytes: what a head's sums are multiplied by before this tile; after the last key, the unit they are in
var<workgroup> fades: array<f32, 8>;
// 8 · 4 bytes
var<workgroup> tops: array<f32, 8>;
// 8 · 4 bytes
var<workgroup> totals: array<f32, 8>;
// 4 bytes: whether any of the fades is not 1
var<workgroup> faded: u32;

{% set queries = "staged" if HOLD_QUERY else "query_rows" %}
{{ matrices.emulation((queries, "weight_rows"), ("staged",), ("score_rows",)) }}
{{ halves.halves(STORED) }}

// 2^-e for a number of [2^e, 2^(e + 1)), and the other way round for a power of two.
fn unit_of(number: f32) -> f32 {
    return bitcast<f32>(0x7f000000u - clamp(bitcast<u32>(number) & 0x7f800000u, 0x00800000u, 0x7e800000u));
}

// The first part of a number that is split: the bits that float16 has. By bits: a compiler may take the rounding of a
// number to float16 and back for the number itself.
fn coarse(pair: vec2f) -> vec2f {
    return bitcast<vec2f>(bitcast<vec2u>(pair) & vec2u(0xffffe000u));
}

fn coarse_word(pair: vec2f) -> u32 {
    return pack2x16float(coarse(pair));
}

fn fine_word(pair: vec2f) -> u32 {
    return pack2x16float(FINE * (pair - coarse(pair)));
}

// The largest of the lanes that share a head.
fn largest_of_head(number: f32) -> f32 {
    var largest = number;
%% for mask in (1, 2, 4, 8, 16)
%% if mask < PAIRS
    largest = max(largest, subgroupShuffleXor(largest, {{ mask }}u));
%% endif
%% endfor
    return largest;
}

{# What a key without a page, or of another segment, has for a value must not reach the sums, where 0 · NaN is NaN. #}
{% set guarded = problem.paged or problem.segments %}
{% set there = "key_there(b, s)" ~ (" && same_segment(b, 0u, s)" if problem.segments else "") %}
%% for name, chunks in (("key", "KEY_CHUNKS"), ("value", "VALUE_CHUNKS"))
// Sixteen bytes of a tile's {{ name }}s, of the last one where the keys end before the tile does.
fn read_{{ name }}(rows: u32, b: u32, tile: u32, end: u32, item: u32) -> vec4u {
    let s = min(tile + item / {{ chunks }}, end - 1u);
    let words = {{ name }}[(rows + key_slot(b, s) * parameters.{{ name }}_s) / PER_CHUNK + item % {{ chunks }}];
%% if name == "value" and guarded
    return select(vec4u(), words, {{ there }});
%% else
    return words;
%% endif
}

%% endfor
%% if problem.scales
fn read_scale(rows: u32, b: u32, tile: u32, end: u32, item: u32) -> f32 {
    let s = min(tile + item % TILE, end - 1u);
    let scale = scales[rows + key_slot(b, s) * parameters.scales_s + item / TILE];
    return {{ "select(0.0, scale, %s)" % there if guarded else "scale" }};
}

%% endif
fn logit_before(end: u32, product: f32, b: u32, n: u32, s: u32, kept: Kept) -> f32 {
    return select(MASKED, logit(product, b, n, 0u, min(s, end - 1u), kept), s < end);
}

// Chunk 8 · c + j of one row of the sums, of which two matrices lie in score_rows: of bytes the c-th of the
// even ones and of the odd ones, else the ones numbered 2 · c and 2 · c + 1.
fn sums_at(row: u32, j: u32) -> vec4f {
%% if BYTES
    let even = score_rows[row * SCORE_PITCH + j / 2u];
    let odd = score_rows[(16u + row) * SCORE_PITCH + j / 2u];
    return select(vec4f(even.x, odd.x, even.y, odd.y), vec4f(even.z, odd.z, even.w, odd.w), j % 2u == 1u);
%% else
    return score_rows[(16u * (j / 4u) + row) * SCORE_PITCH + j % 4u];
%% endif
}
{% macro read_keys(tile) %}
%% for i in range(KEY_ITEMS)
key_{{ i }} = read_key(k_rows, b, {{ tile }}, keys.y, thread + {{ i }}u * THREADS);
%% endfor
{% endmacro %}
{% macro read_values(tile) %}
%% for i in range(VALUE_ITEMS)
value_{{ i }} = read_value(v_rows, b, {{ tile }}, keys.y, thread + {{ i }}u * THREADS);
%% endfor
%% if problem.scales
scale_here = read_scale(scale_rows, b, {{ tile }}, keys.y, thread);
%% endif
{% endmacro %}
{% macro stage(name, items, chunks, pitch) %}
%% for i in range(items)
%% if i * THREADS + THREADS > TILE * chunks
if (thread + {{ i }}u * THREADS < TILE * {{ chunks }}u) {
%% else
{
%% endif
    let item = thread + {{ i }}u * THREADS;
    let at = item / {{ chunks }}u * {{ pitch }} + item % {{ chunks }}u;
%% if BYTES
    staged[at] = even_halves({{ name }}_{{ i }});
    staged[at + {{ chunks }}u] = odd_halves({{ name }}_{{ i }});
%% else
    staged[at] = {{ name }}_{{ i }};
%% endif
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
    var scale_here = 0.0;
%% endif
%% for i in range(KEY_ITEMS)
    var key_{{ i }} = vec4u();
%% endfor
%% for i in range(VALUE_ITEMS)
    var value_{{ i }} = vec4u();
%% endfor
    if (keys.x < keys.y) {
        {{ read_keys("keys.x") | indent(8) }}
        {{ read_values("keys.x") | indent(8) }}
    }

    // A lane shares its heads with PAIRS lanes side by side: first their query rows, later their keys, two a lane.
    // Every row is in a unit of its own. Lanes that are too many do the last head's work once more.
    let scale = query_scale(b);
    let member = thread % PAIRS;
%% for r in range(ROUNDS)
    let g_{{ r }} = min((thread + {{ r }}u * THREADS) / PAIRS, HEADS - 1u);
    let n_{{ r }} = min(n_first + g_{{ r }}, n_last);
    var top_{{ r }} = MASKED;
    var total_{{ r }} = 0.0;
%% if problem.scales
    var weight_unit_{{ r }} = 1.0;
    var reach_{{ r }} = 0.0;
%% endif
    var query_unit_{{ r }} = 1.0;
    {
        let row = query_row(b, 0u, n_{{ r }});
        var largest = 0.0;
        for (var chunk = member; chunk < HEAD_DIM / 4u; chunk += PAIRS) {
            let four = abs(scale * load_query(row, chunk));
            largest = max(largest, max(max(four.x, four.y), max(four.z, four.w)));
        }
        let unit_here = unit_of(largest_of_head(largest));
        for (var all = member; all < HEAD_DIM / 16u; all += PAIRS) {
%% for c in range(4)
            let four_{{ c }} = unit_here * (scale * load_query(row, 4u * all + {{ c }}u));
%% endfor
%% if BYTES
            let first_at = g_{{ r }} * KEY_PITCH + all;
            let second_at = first_at + HEAD_DIM / 16u;
{% set parts = (("first", ("four_0.xz", "four_1.xz", "four_2.xz", "four_3.xz")), ("second", ("four_0.yw", "four_1.yw", "four_2.yw", "four_3.yw"))) %}
%% else
            let first_at = g_{{ r }} * KEY_PITCH + 2u * all;
            let second_at = first_at + 1u;
{% set parts = (("first", ("four_0.xy", "four_0.zw", "four_1.xy", "four_1.zw")), ("second", ("four_2.xy", "four_2.zw", "four_3.xy", "four_3.zw"))) %}
%% endif
%% for part, pairs in parts
            {{ queries }}[{{ part }}_at] = vec4u({% for pair in pairs %}{{ ", " if not loop.first }}coarse_word({{ pair }}){% endfor %});
            {{ queries }}[{{ part }}_at + 8u * KEY_PITCH] = vec4u({% for pair in pairs %}{{ ", " if not loop.first }}fine_word({{ pair }}){% endfor %});
%% endfor
        }
        query_unit_{{ r }} = KEY_UNIT * unit_of(unit_here);
    }
%% endfor
    workgroupBarrier();
%% if HOLD_QUERY
%% for i in range(HEAD_DIM // 16)
    let query_{{ i }} = {{ matrices.load("left", queries, "%du" % (2 * i), "KEY_PITCH") }};
%% endfor
    workgroupBarrier();
%% endif
%% for i in range(VALUE_OWN)
    let column_{{ i }} = min(subgroup + {{ i * SUBGROUPS }}u, VALUE_DIM / 16u - 1u);
    var sum_{{ i }} = {{ matrices.zero() }};
%% endfor

    for (var tile = keys.x; tile < keys.y; tile += TILE) {
        {{ stage("key", KEY_ITEMS, KEY_CHUNKS, "KEY_PITCH") | indent(8) }}
%% if problem.scales
        tile_scales[thread] = scale_here;
%% endif
        if (thread == 0u) {
            faded = 0u;
        }
        workgroupBarrier();
        {{ read_keys("tile + TILE") | indent(8) }}

        // Every subgroup sixteen keys: their products with all rows.
        var score = {{ matrices.zero() }};
%% for c in range(HEAD_DIM // 16)
%% if not HOLD_QUERY
        let query_{{ c }} = {{ matrices.load("left", queries, "%du" % (2 * c), "KEY_PITCH") }};
%% endif
        let keys_{{ c }} = {{ matrices.load("right", "staged", "subgroup * 16u * KEY_PITCH + %du" % (2 * c), "KEY_PITCH", "col_major") }};
        score = {{ matrices.multiply_add("query_%d" % c, "keys_%d" % c, "score") }};
%% endfor
        {{ matrices.store("score_rows", "4u * subgroup", "SCORE_PITCH", "score") }};
        workgroupBarrier();

        {{ stage("value", VALUE_ITEMS, VALUE_CHUNKS, "VALUE_PITCH") | indent(8) }}
        {{ read_values("tile + TILE") | indent(8) }}

        let s = tile + 2u * member;
%% if problem.scales
        let key_scales_here = vec2f(tile_scales[2u * member], tile_scales[2u * member + 1u]);
        let value_scales_here = vec2f(
            select(0.0, tile_scales[TILE + 2u * member], s < keys.y),
            select(0.0, tile_scales[TILE + 2u * member + 1u], s + 1u < keys.y),
        );
%% endif
        // A maximum is followed only where it grew much.
%% for r in range(ROUNDS)
        {
            let four = score_rows[g_{{ r }} * SCORE_PITCH + member / 2u] + score_rows[(g_{{ r }} + 8u) * SCORE_PITCH + member / 2u] / FINE;
            let products = query_unit_{{ r }} * select(four.xy, four.zw, member % 2u == 1u){{ " * key_scales_here" if problem.scales }};
            let y = vec2f(
                logit_before(keys.y, products.x, b, n_{{ r }}, s, kept),
                logit_before(keys.y, products.y, b, n_{{ r }}, s + 1u, kept),
            );
            let high = max(y.x, y.y);
            var fade = 1.0;
            let grew = subgroupAny(high > top_{{ r }} + SLACK);
            if (grew) {
                let top = max(largest_of_head(high), top_{{ r }});
                fade = decay(top_{{ r }}, top);
                total_{{ r }} *= fade;
                top_{{ r }} = top;
            }
            var w = vec2f(weight(y.x, top_{{ r }}), weight(y.y, top_{{ r }}));
            total_{{ r }} += w.x + w.y;
%% if problem.scales
            // Scaled weights are in a unit that the largest of them sets, so that float16 holds them all.
            w *= value_scales_here;
            let far = max(w.x, w.y);
            if (subgroupAny(grew || ONE * far * weight_unit_{{ r }} > 32768.0)) {
                reach_{{ r }} = max(reach_{{ r }} * fade, largest_of_head(far));
                let unit_here = unit_of(reach_{{ r }});
                fade = fade * unit_here / weight_unit_{{ r }};
                weight_unit_{{ r }} = unit_here;
            }
            w *= ONE * weight_unit_{{ r }};
%% else
            w *= ONE;
%% endif
            weight_rows[g_{{ r }} * WEIGHT_PITCH + member / 4u][member % 4u] = coarse_word(w);
            weight_rows[(g_{{ r }} + 8u) * WEIGHT_PITCH + member / 4u][member % 4u] = fine_word(w);
            if (member == 0u) {
                fades[g_{{ r }}] = fade;
                if (fade != 1.0) {
                    faded = 1u;
                }
            }
        }
%% endfor
        // Matrices give no access to their elements, so they are rescaled where they can be: in workgroup memory.
        if (workgroupUniformLoad(&faded) != 0u) {
%% for i in range(VALUE_OWN)
            {{ matrices.store("score_rows", "16u * subgroup * SCORE_PITCH", "SCORE_PITCH", "sum_%d" % i) }};
            workgroupBarrier();
            for (var i = thread; i < 64u * SUBGROUPS; i += THREADS) {
                score_rows[i / 4u * SCORE_PITCH + i % 4u] *= fades[i / 4u % 8u];
            }
            workgroupBarrier();
            sum_{{ i }} = {{ matrices.load("result", "score_rows", "16u * subgroup * SCORE_PITCH", "SCORE_PITCH") }};
            workgroupBarrier();
%% endfor
        }

        // Every subgroup its columns: the weighted values.
%% for t in range(TILE // 16)
        let weights_{{ t }} = {{ matrices.load("left", "weight_rows", "%du" % (2 * t), "WEIGHT_PITCH") }};
%% endfor
%% for i in range(VALUE_OWN)
%% for t in range(TILE // 16)
        let values_{{ i }}_{{ t }} = {{ matrices.load("right", "staged", "%du * VALUE_PITCH + 2u * column_%d" % (16 * t, i), "VALUE_PITCH") }};
        sum_{{ i }} = {{ matrices.multiply_add("weights_%d" % t, "values_%d_%d" % (i, t), "sum_%d" % i) }};
%% endfor
%% endfor
        workgroupBarrier();
    }

%% for r in range(ROUNDS)
    {
        var total = total_{{ r }};
%% for mask in (1, 2, 4, 8, 16)
%% if mask < PAIRS
        total += subgroupShuffleXor(total, {{ mask }}u);
%% endif
%% endfor
        if (member == 0u) {
            tops[g_{{ r }}] = top_{{ r }};
            totals[g_{{ r }}] = total;
            fades[g_{{ r }}] = VALUE_UNIT / ONE{{ " * unit_of(weight_unit_%d)" % r if problem.scales }};
        }
    }
%% endfor
%% for c in range(VALUE_DIM // 32)
%% for half in range(2)
{% set block = c + half * (VALUE_DIM // 32) if BYTES else 2 * c + half %}
    if (subgroup == {{ block % SUBGROUPS }}u) {
        {{ matrices.store("score_rows", "%du * SCORE_PITCH" % (16 * half), "SCORE_PITCH", "sum_%d" % (block // SUBGROUPS)) }};
    }
%% endfor
    workgroupBarrier();
    for (var i = thread; i < 8u * HEADS; i += THREADS) {
        let g = i / 8u;
        if (n_first + g <= n_last) {
            let chunk = {{ 8 * c }}u + i % 8u;
            let sum = fades[g] * (sums_at(g, i % 8u) + sums_at(g + 8u, i % 8u) / FINE);
            var all_values = vec4f();
%% if problem.empty_rows == "mean"
            if (ends_as_mean(b, 0u, totals[g])) {
                all_values = sum_for_mean(part, b, k, chunk);
            }
%% endif
            finish_chunk(part, b, 0u, n_first + g, tops[g], totals[g], chunk, sum, all_values);
        }
    }
    workgroupBarrier();
%% endfor
    if (thread < HEADS && n_first + thread <= n_last) {
        finish_row(part, b, 0u, n_first + thread, tops[thread], totals[thread]);
    }
}
