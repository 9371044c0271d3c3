{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% import "shared/matrices.wgsl" as matrices with context %}
{% import "attention/flash_matrix_tiles.wgsl" as tiles with context %}

// Flash on matrix units: a workgroup owns TILE_Q query rows that read one key/value head, and passes over their keys
// once: TILE_K are staged at a time, as float16 in workgroup memory, where all subgroups read them, and STEP_K of them
// taken a step. A subgroup owns 16 rows, of which it keeps Q and the sums in matrices. No lane sees a matrix's elements:
// logits take a way through workgroup memory, and so do the weights that they become. There lane l has row l % 16, and
// of each 16 keys the eight of its half. Pitches are odd, so that lanes meet no bank conflict.
// Logits are made a step before their weights, so that these are under way meanwhile: K is staged a step ahead of V.
// Rows are query rows of HEADS heads of one group: row r is head r % HEADS at t + r / HEADS.
{% set key_blocks = range(KEY_BLOCKS) %}
{# Of rotated rows that must be exact, each number is two: a float16, and the float16 of what that leaves out. #}
{% set query_steps = range(PARTS * HEAD_STEPS) %}
{% set value_steps = range(VALUE_STEPS) %}
{# What orders the lanes' writes before their reads. Lanes of a subgroup go through the same code together. #}
{% macro settle() %}{{ "workgroupBarrier();" if EMULATED }}{% endmacro %}
{# The same number of the lane that has the other half of a row. #}
{% macro other_half(value) %}{{ "other_half(thread, " ~ value ~ ")" if EMULATED else "subgroupShuffleXor(" ~ value ~ ", 16u)" }}{% endmacro %}

// TILE_K · KEY_PITCH · 16 bytes; at first Q, by turns
var<workgroup> key_tile: array<vec4u, TILE_K * KEY_PITCH>;
// TILE_K · VALUE_PITCH · 16 bytes
var<workgroup> value_tile: array<vec4u, TILE_K * VALUE_PITCH>;
// SUBGROUPS · EXCHANGE · 16 bytes: logits or sums, as float32, on their way to the lanes; then the weights, as float16
var<workgroup> exchange: array<vec4u, SUBGROUPS * EXCHANGE>;
%% if problem.empty_rows == "mean"
// VALUE_DIM · 4 bytes: the sum of V, for rows that keep no key
var<workgroup> value_sums: array<vec4f, VALUE_DIM / 4u>;
// 4 bytes: whether any row keeps no key
var<workgroup> some_end_as_mean: atomic<u32>;
%% endif
%% if EMULATED
// WORKGROUP · 4 bytes
var<workgroup> halves: array<f32, WORKGROUP>;

fn other_half(thread: u32, value: f32) -> f32 {
    workgroupBarrier();
    halves[thread] = value;
    workgroupBarrier();
    return halves[thread ^ 16u];
}

%% endif
{{ matrices.emulation(("key_tile", "exchange"), ("key_tile", "value_tile"), (), ("exchange",)) }}

{{ tiles.packing() }}
{{ tiles.early_key() }}
%% if problem.segments
{% include "attention/segment_ranges.wgsl" %}

// The first tile from `tile` on that may have keys of the rows' segments, or `end`; and its segments.
fn next_tile(b: u32, from_tile: u32, end: u32, q_ids: vec2i, k_ids: ptr<function, vec2i>) -> u32 {
    for (var tile = from_tile; tile < end; tile += TILE_K) {
        let ids = key_segment_range(b, tile, min(tile + TILE_K, end));
        if (ids.x <= q_ids.y && ids.y >= q_ids.x) {
            *k_ids = ids;
            return tile;
        }
    }
    return end;
}

%% endif
fn weights_of(x: vec4f, base: f32) -> vec4f {
    return vec4f(decay(x.x, base), decay(x.y, base), decay(x.z, base), decay(x.w, base));
}

@compute @workgroup_size(WORKGROUP)
fn flash_matrix(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
{% include "attention/flash_place.wgsl" %}
    let subgroup = thread / 32u;
    let row = thread % 16u;
    let half = thread % 32u / 16u;
    let exchange_at = subgroup * EXCHANGE;
    let own_scores = exchange_at + row * SCORE_PITCH + 2u * half;
    let own_weights = exchange_at + row * WEIGHT_PITCH + half;
%% if EMULATED
    matrix_lane = thread % 32u;
%% endif

    // Q, as many rows at a time as there is room for.
%% for c in query_steps
    var q_{{ c }} = {{ matrices.type("right") }}();
%% endfor
    for (var first = 0u; first < TILE_Q; first += TILE_K) {
        workgroupBarrier();
        for (var i = thread; i < TILE_K * HEAD_EIGHTS; i += WORKGROUP) {
            let staged = i / HEAD_EIGHTS;
            let chunk = i % HEAD_EIGHTS;
            let t = t_first + (first + staged) / HEADS;
            let n = n_first + (first + staged) % HEADS;
            {{ tiles.stage("query", "t <= t_last && n <= n_last", "query_row(b, t, n)", "position_of(b, t)", "staged") }}
        }
        workgroupBarrier();
        let from_row = subgroup * 16u;
        if (from_row / TILE_K == first / TILE_K) {
%% for c in query_steps
            q_{{ c }} = {{ matrices.load("right", "key_tile", "(from_row - first) * KEY_PITCH + %du" % (2 * c), "KEY_PITCH", "col_major") }};
%% endfor
        }
    }

    let scale = query_scale(b);
    let from_key = parameters.key_first + part * parameters.part_keys;
    let to_key = min(from_key + parameters.part_keys, parameters.key_end);
    let keys = block_keys(b, t_first, t_last, from_key, to_key);
    // The subgroup's own rows, and what they keep.
    let own_first = t_first + subgroup * 16u / HEADS;
    let own_last = min(t_first + (subgroup * 16u + 15u) / HEADS, t_last);
    var own_keys = vec2u();
    if (own_first <= own_last) {
        own_keys = block_keys(b, own_first, own_last, from_key, to_key);
    }
%% if problem.segments
    let q_ids = query_segment_range(b, t_first, t_last);
%% endif
    let t = t_first + (subgroup * 16u + row) / HEADS;
    let n = n_first + (subgroup * 16u + row) % HEADS;
    let there = t <= t_last && n <= n_last;
    let kept = kept_keys(b, min(t, t_last));
    var top = MASKED;
    var total = 0.0;
%% for c in value_steps
    var o_{{ c }} = {{ matrices.zero() }};
%% endfor
    var started = false;
{% macro own(at) %}{{ "true" if EMULATED else "%s < own_keys.y && %s + STEP_K > own_keys.x" % (at, at) }}{% endmacro %}
%% if unit
    // Where row 0 of this head would lie, and how far one is from the next, in words of eight elements.
    let key_base = key_row(b, 0u, k) / 8u;
    let key_step = bitcast<u32>(bitcast<i32>(parameters.key_s) / 8);  // negative where rows are reversed
    let value_base = value_row(b, 0u, k) / 8u;
    let value_step = bitcast<u32>(bitcast<i32>(parameters.value_s) / 8);
%% for i in range(KEY_PIECES)
    var key_{{ i }} = vec4u();
%% endfor
%% for i in range(VALUE_PIECES)
    var value_{{ i }} = vec4u();
%% endfor
%% endif
%% for t in key_blocks
    var s_{{ t }} = {{ matrices.zero() }};
%% endfor

    var tile = keys.x;
%% if problem.segments
    var ids = vec2i();
    tile = next_tile(b, tile, keys.y, q_ids, &ids);
    var next_ids = ids;
    var next = next_tile(b, tile + TILE_K, keys.y, q_ids, &next_ids);
%% else
    var next = tile + TILE_K;
%% endif
    // The logits of the first step: its keys lie where those of a next tile do.
    {{ tiles.fetch_key("tile", "tile", "tile + TILE_K") }}
    workgroupBarrier();
    {{ tiles.put_key("tile", "tile") }}
    workgroupBarrier();
    {{ tiles.fetch_key("tile", "next", "next + STEP_K") }}
    {{ tiles.fetch_value("tile") }}
    if ({{ own("tile") }}) {
        {{ tiles.products(STEP_K * (STEPS - 1)) }}
    }
    while (tile < keys.y) {
        workgroupBarrier();
        {{ tiles.put_key("tile", "next") }}
        {{ tiles.put_value("tile") }}
        workgroupBarrier();
%% if problem.segments
        let here_ids = ids;
        ids = next_ids;
        let after = next_tile(b, next + TILE_K, keys.y, q_ids, &next_ids);
%% else
        let after = next + TILE_K;
%% endif
%% for step in range(STEPS)
%% set at = "(tile + %du)" % (step * STEP_K) if step else "tile"
        // K and V of the next tile are read at different times: they lie in registers until all have left this one.
%% if step == 0
        {{ tiles.fetch_key("next", "after", "after + STEP_K") }}
%% endif
%% if step == STEPS - 1
        {{ tiles.fetch_value("next") }}
%% endif
        if ({{ own(at) }}) {
%% if problem.bias is none and not problem.mask
            var whole = {{ at }} + STEP_K <= keys.y && block_keeps(b, min(own_first, own_last), own_last, {{ at }}, {{ at }} + STEP_K);
%% if problem.segments
            whole = whole && q_ids.x == q_ids.y && here_ids.x == here_ids.y;
%% endif
%% else
            let whole = false;
%% endif
            var factor = scale;
%% for turn in range(KEY_BLOCKS // SLOTS)
            {{ settle() }}
%% for slot in range(SLOTS)
            {{ matrices.store("exchange", "exchange_at + %du" % (4 * slot), "SCORE_PITCH", "s_%d" % (turn * SLOTS + slot), "col_major") }};
%% endfor
            {{ settle() }}
            if ({{ "true" if problem.softcap else "!whole" }}) {
                // In place: a lane reads and writes its own elements alone.
                for (var i = 0u; i < {{ 8 * SLOTS }}u; i++) {
                    let place = own_scores + i / 8u * 4u + i % 8u / 4u;
                    let s = {{ at }} + ({{ turn * SLOTS }}u + i / 8u) * 16u + 8u * half + i % 8u;
                    let product = scale * bitcast<f32>(exchange[place][i % 4u]);
                    var x = MASKED;
%% if problem.softcap
                    if (whole) {
                        x = capped(product);
                    } else if (s < keys.y) {
%% else
                    if (s < keys.y) {
%% endif
                        x = logit(product, b, min(n, n_last), min(t, t_last), s, kept);
                    }
                    exchange[place][i % 4u] = bitcast<u32>(x);
                }
                factor = 1.0;
            }
%% for slot in range(SLOTS)
%% for i in range(2)
            let x_{{ 2 * (turn * SLOTS + slot) + i }} = factor * bitcast<vec4f>(exchange[own_scores + {{ 4 * slot + i }}u]);
%% endfor
%% endfor
%% endfor
            var four = x_0;
%% for i in range(1, 2 * KEY_BLOCKS)
            four = max(four, x_{{ i }});
%% endfor
            var high = max(max(four.x, four.y), max(four.z, four.w));
            high = max(high, {{ other_half("high") }});

            // A maximum is followed where it grew much: weights stay far from overflow, and rescaling is rare.
%% if not EMULATED
            if (subgroupAny(high > top + SLACK)) {
%% else
            {
%% endif
                high = max(high, top);
                let fade = decay(top, high);
                top = high;
                total *= fade;
                if (started) {
%% for c in value_steps
                    {{ settle() }}
                    {{ matrices.store("exchange", "exchange_at", "SCORE_PITCH", "o_%d" % c) }};
                    {{ settle() }}
                    exchange[own_scores] = bitcast<vec4u>(fade * bitcast<vec4f>(exchange[own_scores]));
                    exchange[own_scores + 1u] = bitcast<vec4u>(fade * bitcast<vec4f>(exchange[own_scores + 1u]));
                    {{ settle() }}
                    o_{{ c }} = {{ matrices.load("result", "exchange", "exchange_at", "SCORE_PITCH") }};
%% endfor
                }
            }
            {{ tiles.products(step * STEP_K) }}
            // Where no key was kept yet, what is masked is far below 0 too.
            let base = select(top, 0.0, top == MASKED);
            {{ settle() }}
            var sum = vec4f();
%% for t in key_blocks
            {
                let a = weights_of(x_{{ 2 * t }}, base);
                let b = weights_of(x_{{ 2 * t + 1 }}, base);
                exchange[own_weights + {{ 2 * t }}u] = eight(a, b);
                sum += a + b;
            }
%% endfor
            total += (sum.x + sum.y) + (sum.z + sum.w);
            {{ settle() }}
%% for t in key_blocks
            let p_{{ t }} = {{ matrices.load("left", "exchange", "exchange_at + %du" % (2 * t), "WEIGHT_PITCH") }};
%% endfor
%% for t in key_blocks
%% for c in value_steps
            {
                let v_part = {{ matrices.load("right", "value_tile", "%du * VALUE_PITCH + %du" % (step * STEP_K + 16 * t, 2 * c), "VALUE_PITCH") }};
                o_{{ c }} = {{ matrices.multiply_add("p_%d" % t, "v_part", "o_%d" % c) }};
            }
%% endfor
%% endfor
            started = true;
        }
%% if not EMULATED
        else if ({{ own("next" if loop.last else "(tile + %du)" % ((step + 1) * STEP_K)) }}) {
            {{ tiles.products(step * STEP_K) }}
        }
%% endif
%% endfor
        tile = next;
        next = after;
    }

    total += {{ other_half("total") }};
%% if problem.empty_rows == "mean"
    // A row that keeps no key needs the sum of V, which is the same for all rows: it is made once.
    if (there && ends_as_mean(b, t, total)) {
        atomicStore(&some_end_as_mean, 1u);
    }
    workgroupBarrier();
    if (atomicLoad(&some_end_as_mean) != 0u) {
        for (var chunk = thread; chunk < VALUE_CHUNKS; chunk += WORKGROUP) {
            value_sums[chunk] = sum_for_mean(part, b, k, chunk);
        }
    }
    workgroupBarrier();
%% endif
%% for c in value_steps
    {{ settle() }}
    {{ matrices.store("exchange", "exchange_at", "SCORE_PITCH", "o_%d" % c) }};
    {{ settle() }}
    if (there) {
%% for i in range(2)
        {
            let chunk = {{ 4 * c + i }}u + 2u * half;
            finish_chunk(part, b, t, n, top, total, chunk, bitcast<vec4f>(exchange[own_scores + {{ i }}u]), {{ "value_sums[chunk]" if problem.empty_rows == "mean" else "vec4f()" }});
        }
%% endfor
    }
%% endfor
    if (there && half == 0u) {
        finish_row(part, b, t, n, top, total);
    }
}
