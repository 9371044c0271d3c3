{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% import "shared/matrices.wgsl" as matrices with context %}
{% import "attention/flash_matrix_tiles.wgsl" as tiles with context %}
{% import "attention/flash_matrix_steps.wgsl" as steps with context %}

// Flash on matrix units: a workgroup owns TILE_Q query rows that read one key/value head, and passes over their keys
// once: TILE_K are staged at a time, as float16 in workgroup memory, where all subgroups read them, and STEP_K of them
// taken a step. A subgroup owns BLOCKS times 16 rows, of which it keeps Q and the sums in matrices. No lane sees a
// matrix's elements: logits take a way through workgroup memory, and so do the weights that they become. There lane l
// has row l % 16 of each block, and of each 16 keys the eight of its half. Pitches are odd, so that lanes meet no bank
// conflict.
// In a step, weights are made while the matrix units make the next step's logits, and these reach the lanes while they
// multiply the weights with V: little waits for anything. So K is staged a step ahead of V.
// Rows are query rows of HEADS heads of one group: row r is head r % HEADS at t + r / HEADS.
{% set blocks = range(BLOCKS) %}
{% set key_blocks = range(KEY_BLOCKS) %}
{# Of rotated rows that must be exact, each number is two: a float16, and the float16 of what that leaves out. #}
{% set query_steps = range(PARTS * HEAD_STEPS) %}
{% set value_steps = range(VALUE_STEPS) %}
{% set fours = range(2 * KEY_BLOCKS) %}

// TILE_K · KEY_PITCH · 16 bytes; at first Q, by turns
var<workgroup> key_tile: array<vec4u, TILE_K * KEY_PITCH>;
// TILE_K · VALUE_PITCH · 16 bytes
var<workgroup> value_tile: array<vec4u, TILE_K * VALUE_PITCH>;
// SUBGROUPS · BLOCKS · EXCHANGE · 16 bytes: logits or sums, as float32, on their way to the lanes; weights, as float16
var<workgroup> exchange: array<vec4u, SUBGROUPS * BLOCKS * EXCHANGE>;
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
%% if problem.bias is not none or problem.mask
{% include "attention/flash_matrix_dense.wgsl" %}

%% endif
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
    let from_row = subgroup * {{ 16 * BLOCKS }}u;
    let exchange_at = subgroup * BLOCKS * EXCHANGE;
    let own_scores = exchange_at + row * SCORE_PITCH + 2u * half;
    let own_weights = exchange_at + row * WEIGHT_PITCH + half;
%% if EMULATED
    matrix_lane = thread % 32u;
%% endif

    let scale = query_scale(b);
    let from_key = parameters.key_first + part * parameters.part_keys;
    let to_key = min(from_key + parameters.part_keys, parameters.key_end);
    let keys = block_keys(b, t_first, t_last, from_key, to_key);
    // The subgroup's own rows, and what they keep.
    let own_first = t_first + from_row / HEADS;
    let own_last = min(t_first + (from_row + {{ 16 * BLOCKS - 1 }}u) / HEADS, t_last);
    var own_keys = vec2u();
    if (own_first <= own_last) {
        own_keys = block_keys(b, own_first, own_last, from_key, to_key);
    }
%% if problem.segments
    let q_ids = query_segment_range(b, t_first, t_last);
%% endif
%% if unit
    // Where row 0 of this head would lie, and how far one is from the next, in words of eight elements.
    let key_base = key_row(b, 0u, k) / 8u;
    let key_step = bitcast<u32>(bitcast<i32>(parameters.key_s) / 8);  // negative where rows are reversed
    let value_base = value_row(b, 0u, k) / 8u;
    let value_step = bitcast<u32>(bitcast<i32>(parameters.value_s) / 8);
%% if not problem.exact_dims
    let key_words = parameters.H / 8u;
    let value_words = parameters.Hv / 8u;
%% endif
%% for i in range(KEY_PIECES)
    var key_{{ i }} = vec4u();
%% endfor
%% for i in range(VALUE_PIECES)
    var value_{{ i }} = vec4u();
%% endfor
%% endif

    var tile = keys.x;
%% if problem.segments
    var ids = vec2i();
    tile = next_tile(b, tile, keys.y, q_ids, &ids);
    var next_ids = ids;
    var next = next_tile(b, tile + TILE_K, keys.y, q_ids, &next_ids);
%% else
    var next = tile + TILE_K;
%% endif

    // All of Q and the first keys are read at once, and waited for once. Q is then staged a few rows a turn.
    {{ tiles.fetch_query() }}
    {{ tiles.fetch_key("tile", "tile", "tile + TILE_K") }}
%% for r in blocks
%% for c in query_steps
    var q_{{ r }}_{{ c }} = {{ matrices.type("right") }}();
%% endfor
%% endfor
%% for turn in range(tiles.query_turns)
    workgroupBarrier();
    {{ tiles.put_query(turn) }}
    workgroupBarrier();
%% for r in blocks
    if ((from_row + {{ 16 * r }}u) / TILE_K == {{ turn }}u) {
%% for c in query_steps
        q_{{ r }}_{{ c }} = {{ matrices.load("right", "key_tile", "(from_row + %du) %% TILE_K * KEY_PITCH + %du" % (16 * r, 2 * c), "KEY_PITCH", "col_major") }};
%% endfor
    }
%% endfor
%% endfor

%% for r in blocks
    let t_{{ r }} = t_first + (from_row + {{ 16 * r }}u + row) / HEADS;
    let n_{{ r }} = n_first + (from_row + {{ 16 * r }}u + row) % HEADS;
    let there_{{ r }} = t_{{ r }} <= t_last && n_{{ r }} <= n_last;
    let kept_{{ r }} = kept_keys(b, min(t_{{ r }}, t_last));
    var top_{{ r }} = MASKED;
    var high_{{ r }} = MASKED;
    var total_{{ r }} = 0.0;
%% for c in value_steps
    var o_{{ r }}_{{ c }} = {{ matrices.zero() }};
%% endfor
%% for t in key_blocks
    var s_{{ r }}_{{ t }} = {{ matrices.zero() }};
%% endfor
%% for i in fours
    var x_{{ r }}_{{ i }} = vec4f(MASKED);
%% endfor
%% endfor
    var four = vec4f();
    var started = false;
    // The logits of the first step: its keys lie where those of a next tile do.
    workgroupBarrier();
    {{ tiles.put_key("tile", "tile") }}
    workgroupBarrier();
    {{ tiles.fetch_key("tile", "next", "next + STEP_K") }}
    {{ tiles.fetch_value("tile") }}
    if ({{ steps.own("tile") }}) {
{{ steps.products(STEP_K * (STEPS - 1)) }}
{{ steps.logits("tile", "ids") }}
{{ steps.highest() }}
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
        // K and V of the next tile are read at different times: they lie in registers until all have left this one.
%% if step == 0
        {{ tiles.fetch_key("next", "after", "after + STEP_K") }}
%% endif
%% if step == STEPS - 1
        {{ tiles.fetch_value("next") }}
%% endif
%% set at = "(tile + %du)" % (step * STEP_K) if step else "tile"
%% set then = "next" if loop.last else "(tile + %du)" % ((step + 1) * STEP_K)
{{ steps.step(at, then, "ids" if loop.last else "here_ids", step * STEP_K) }}
%% endfor
        tile = next;
        next = after;
    }

%% for r in blocks
    total_{{ r }} += {{ steps.other_half("total_%d" % r) }};
%% endfor
%% if problem.empty_rows == "mean"
    // A row that keeps no key needs the sum of V, which is the same for all rows: it is made once, by all threads.
{% set shares = [WORKGROUP // VALUE_CHUNKS, 8] | min or 1 %}
%% for r in blocks
    if (there_{{ r }} && ends_as_mean(b, t_{{ r }}, total_{{ r }})) {
        atomicStore(&some_end_as_mean, 1u);
    }
%% endfor
    workgroupBarrier();
    if (atomicLoad(&some_end_as_mean) != 0u) {
        for (var i = thread; i < {{ shares * VALUE_CHUNKS }}u; i += WORKGROUP) {
            value_tile[i] = bitcast<vec4u>(share_for_mean(part, b, k, i % VALUE_CHUNKS, i / VALUE_CHUNKS, {{ shares }}u));
        }
    }
    workgroupBarrier();
    if (atomicLoad(&some_end_as_mean) != 0u) {
        for (var chunk = thread; chunk < VALUE_CHUNKS; chunk += WORKGROUP) {
            value_sums[chunk] = vec4f();
            for (var share = 0u; share < {{ shares }}u; share++) {
                value_sums[chunk] += bitcast<vec4f>(value_tile[share * VALUE_CHUNKS + chunk]);
            }
        }
    }
    workgroupBarrier();
%% endif
%% for r in blocks
%% for c in value_steps
    {{ steps.settle() }}
    {{ matrices.store("exchange", "exchange_at", "SCORE_PITCH", "o_%d_%d" % (r, c)) }};
    {{ steps.settle() }}
    if (there_{{ r }}) {
%% for i in range(2)
        {
            let chunk = {{ 4 * c + i }}u + 2u * half;
            finish_chunk(part, b, t_{{ r }}, n_{{ r }}, top_{{ r }}, total_{{ r }}, chunk, bitcast<vec4f>(exchange[own_scores + {{ i }}u]), {{ "value_sums[chunk]" if problem.empty_rows == "mean" else "vec4f()" }});
        }
%% endfor
    }
%% endfor
    if (there_{{ r }} && half == 0u) {
        finish_row(part, b, t_{{ r }}, n_{{ r }}, top_{{ r }}, total_{{ r }});
    }
%% endfor
}
