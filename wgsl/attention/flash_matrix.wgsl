{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% import "shared/matrices.wgsl" as matrices with context %}
{% import "attention/flash_matrix_tiles.wgsl" as tiles with context %}

// Flash on matrix units: a workgroup owns TILE_Q query rows that read one key/value head, and passes over their keys
// once, TILE_K at a time. K and V lie in workgroup memory as float16, where all subgroups read them. A subgroup owns
// BLOCKS blocks of 16 rows, of which it keeps Q and the sums in matrices. No lane sees a matrix's elements: logits
// take a way through workgroup memory, and so do the weights that they become. There lane l has row l % 16, and of
// each 16 keys the eight of its half. Pitches are odd, so that lanes meet no bank conflict.
// Rows are query rows of HEADS heads of one group: row r is head r % HEADS at t + r / HEADS.
{% set blocks = range(BLOCKS) %}
{% set key_blocks = range(KEY_BLOCKS) %}
{# Of rotated rows that must be exact, each number is two: a float16, and the float16 of what that leaves out. #}
{% set query_steps = range(PARTS * HEAD_STEPS) %}
{% set value_steps = range(VALUE_STEPS) %}
{# What orders the lanes' writes before their reads. Lanes of a subgroup go through the same code together. #}
{% macro settle() %}{{ "workgroupBarrier();" if EMULATED }}{% endmacro %}
{# The same number of the lane that has the other half of a row. #}
{% macro other_half(value) %}{{ "other_half(thread, " ~ value ~ ")" if EMULATED else "subgroupShuffleXor(" ~ value ~ ", 16u)" }}{% endmacro %}

// BUFFERS · TILE_K · KEY_PITCH · 16 bytes; at first Q, by turns
var<workgroup> key_tile: array<vec4u, BUFFERS * TILE_K * KEY_PITCH>;
// BUFFERS · TILE_K · VALUE_PITCH · 16 bytes
var<workgroup> value_tile: array<vec4u, BUFFERS * TILE_K * VALUE_PITCH>;
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

    // Q, as many blocks of rows at a time as there is room for.
%% for r in blocks
%% for c in query_steps
    var q_{{ r }}_{{ c }} = {{ matrices.type("left") }}();
%% endfor
%% endfor
    for (var first = 0u; first < TILE_Q; first += QUERY_TURN) {
        workgroupBarrier();
        for (var i = thread; i < QUERY_TURN * HEAD_EIGHTS; i += WORKGROUP) {
            let staged = i / HEAD_EIGHTS;
            let chunk = i % HEAD_EIGHTS;
            let t = t_first + (first + staged) / HEADS;
            let n = n_first + (first + staged) % HEADS;
            {{ tiles.stage("query", "t <= t_last && n <= n_last", "query_row(b, t, n)", "position_of(b, t)", "staged") }}
        }
        workgroupBarrier();
%% for r in blocks
        {
            let from_row = (subgroup * BLOCKS + {{ r }}u) * 16u;
            if (from_row / QUERY_TURN == first / QUERY_TURN) {
%% for c in query_steps
                q_{{ r }}_{{ c }} = {{ matrices.load("left", "key_tile", "(from_row - first) * KEY_PITCH + %du" % (2 * c), "KEY_PITCH") }};
%% endfor
            }
        }
%% endfor
    }

    let scale = query_scale(b);
    let from_key = parameters.key_first + part * parameters.part_keys;
    let to_key = min(from_key + parameters.part_keys, parameters.key_end);
    let keys = block_keys(b, t_first, t_last, from_key, to_key);
    // The subgroup's own rows, and what they keep.
    let own_first = t_first + subgroup * BLOCKS * 16u / HEADS;
    let own_last = min(t_first + ((subgroup + 1u) * BLOCKS * 16u - 1u) / HEADS, t_last);
    var own_keys = vec2u();
    if (own_first <= own_last) {
        own_keys = block_keys(b, own_first, own_last, from_key, to_key);
    }
%% if problem.segments
    let q_ids = query_segment_range(b, t_first, t_last);
%% endif
%% for r in blocks
    let t_{{ r }} = t_first + ((subgroup * BLOCKS + {{ r }}u) * 16u + row) / HEADS;
    let n_{{ r }} = n_first + ((subgroup * BLOCKS + {{ r }}u) * 16u + row) % HEADS;
    let there_{{ r }} = t_{{ r }} <= t_last && n_{{ r }} <= n_last;
    let kept_{{ r }} = kept_keys(b, min(t_{{ r }}, t_last));
    var top_{{ r }} = MASKED;
    var total_{{ r }} = 0.0;
%% for c in value_steps
    var o_{{ r }}_{{ c }} = {{ matrices.zero() }};
%% endfor
%% endfor
    var started = false;
{% macro own(tile) %}{{ "true" if EMULATED else "%s < own_keys.y && %s + TILE_K > own_keys.x" % (tile, tile) }}{% endmacro %}
%% if unit
    // Where row 0 of this head would lie, and how far one is from the next, in words of eight elements.
    let key_base = key_row(b, 0u, k) / 8u;
    let key_step = parameters.key_s / 8u;
    let value_base = value_row(b, 0u, k) / 8u;
    let value_step = parameters.value_s / 8u;
%% for i in range(KEY_PIECES)
    var key_{{ i }} = vec4u();
%% endfor
%% for i in range(VALUE_PIECES)
    var value_{{ i }} = vec4u();
%% endfor
%% endif
%% for r in blocks
%% for t in key_blocks
    var s_{{ r }}_{{ t }} = {{ matrices.zero() }};
%% endfor
%% endfor

    {{ "var" if BUFFERS == 2 else "let" }} key_at = 0u;
    {{ "var" if BUFFERS == 2 else "let" }} value_at = 0u;
    var tile = keys.x;
%% if problem.segments
    var ids = vec2i();
    tile = next_tile(b, tile, keys.y, q_ids, &ids);
    var next_ids = ids;
    var next = next_tile(b, tile + TILE_K, keys.y, q_ids, &next_ids);
%% else
    var next = tile + TILE_K;
%% endif
%% if EARLY
    // Products are made a step ahead, so that they are under way while weights are made.
    {{ tiles.fetch_key("tile") }}
    workgroupBarrier();
    {{ tiles.put_key("tile") }}
    workgroupBarrier();
%% if AHEAD
    {{ tiles.fetch_key("next") }}
    {{ tiles.fetch_value("tile") }}
%% endif
    if ({{ own("tile") }}) {
        {{ tiles.products("s") }}
    }
%% elif AHEAD
    {{ tiles.fetch_key("tile") }}
    {{ tiles.fetch_value("tile") }}
%% endif
    while (tile < keys.y) {
%% if not AHEAD
        {{ tiles.fetch_key("next" if EARLY else "tile") }}
        {{ tiles.fetch_value("tile") }}
%% endif
%% if BUFFERS == 2
        // What is read here lies in the other buffer: no subgroup can be two steps behind.
        key_at = TILE_K * KEY_PITCH - key_at;
        value_at = TILE_K * VALUE_PITCH - value_at;
%% else
        workgroupBarrier();
%% endif
        {{ tiles.put_key("next" if EARLY else "tile") }}
        {{ tiles.put_value("tile") }}
        workgroupBarrier();
%% if problem.segments
        let here_ids = ids;
        ids = next_ids;
        let after = next_tile(b, next + TILE_K, keys.y, q_ids, &next_ids);
%% else
        let after = next + TILE_K;
%% endif
%% if AHEAD
        {{ tiles.fetch_key("after" if EARLY else "next") }}
        {{ tiles.fetch_value("next") }}
%% endif

        if ({{ own("tile") }}) {
%% if problem.bias is none and not problem.mask
            var whole = tile + TILE_K <= keys.y && block_keeps(b, min(own_first, own_last), own_last, tile, tile + TILE_K);
%% if problem.segments
            whole = whole && q_ids.x == q_ids.y && here_ids.x == here_ids.y;
%% endif
%% else
            let whole = false;
%% endif
%% if not EARLY
            {{ tiles.products("s") }}
%% endif
%% for r in blocks
            var factor_{{ r }} = scale;
%% for turn in range(KEY_BLOCKS // SLOTS)
            {{ settle() }}
%% for slot in range(SLOTS)
            {{ matrices.store("exchange", "exchange_at + %du" % (4 * slot), "SCORE_PITCH", "s_%d_%d" % (r, turn * SLOTS + slot)) }};
%% endfor
            {{ settle() }}
            if ({{ "true" if problem.softcap else "!whole" }}) {
                // In place: a lane reads and writes its own elements alone.
                for (var i = 0u; i < {{ 8 * SLOTS }}u; i++) {
                    let at = own_scores + i / 8u * 4u + i % 8u / 4u;
                    let s = tile + ({{ turn * SLOTS }}u + i / 8u) * 16u + 8u * half + i % 8u;
                    let product = scale * bitcast<f32>(exchange[at][i % 4u]);
                    var x = MASKED;
%% if problem.softcap
                    if (whole) {
                        x = capped(product);
                    } else if (s < keys.y) {
%% else
                    if (s < keys.y) {
%% endif
                        x = logit(product, b, min(n_{{ r }}, n_last), min(t_{{ r }}, t_last), s, kept_{{ r }});
                    }
                    exchange[at][i % 4u] = bitcast<u32>(x);
                }
                factor_{{ r }} = 1.0;
            }
%% if EARLY == 2 and r == BLOCKS - 1 and turn == KEY_BLOCKS // SLOTS - 1
            {{ tiles.products("s") }}
%% endif
%% for slot in range(SLOTS)
%% for i in range(2)
            let x_{{ r }}_{{ 2 * (turn * SLOTS + slot) + i }} = factor_{{ r }} * bitcast<vec4f>(exchange[own_scores + {{ 4 * slot + i }}u]);
%% endfor
%% endfor
%% endfor
            var four_{{ r }} = x_{{ r }}_0;
%% for i in range(1, 2 * KEY_BLOCKS)
            four_{{ r }} = max(four_{{ r }}, x_{{ r }}_{{ i }});
%% endfor
            var high_{{ r }} = max(max(four_{{ r }}.x, four_{{ r }}.y), max(four_{{ r }}.z, four_{{ r }}.w));
            high_{{ r }} = max(high_{{ r }}, {{ other_half("high_%d" % r) }});

            // A maximum is followed where it grew much: weights stay far from overflow, and rescaling is rare.
%% if not EMULATED
            if (subgroupAny(high_{{ r }} > top_{{ r }} + SLACK)) {
%% else
            {
%% endif
                high_{{ r }} = max(high_{{ r }}, top_{{ r }});
                let fade = decay(top_{{ r }}, high_{{ r }});
                top_{{ r }} = high_{{ r }};
                total_{{ r }} *= fade;
                if (started) {
%% for c in value_steps
                    {{ settle() }}
                    {{ matrices.store("exchange", "exchange_at", "SCORE_PITCH", "o_%d_%d" % (r, c)) }};
                    {{ settle() }}
                    exchange[own_scores] = bitcast<vec4u>(fade * bitcast<vec4f>(exchange[own_scores]));
                    exchange[own_scores + 1u] = bitcast<vec4u>(fade * bitcast<vec4f>(exchange[own_scores + 1u]));
                    {{ settle() }}
                    o_{{ r }}_{{ c }} = {{ matrices.load("result", "exchange", "exchange_at", "SCORE_PITCH") }};
%% endfor
                }
            }
%% if EARLY == 1 and loop.last
            {{ tiles.products("s") }}
%% endif
            // Where no key was kept yet, what is masked is far below 0 too.
            let base_{{ r }} = select(top_{{ r }}, 0.0, top_{{ r }} == MASKED);
            {{ settle() }}
            var sum_{{ r }} = vec4f();
%% for t in key_blocks
            {
                let a = weights_of(x_{{ r }}_{{ 2 * t }}, base_{{ r }});
                let b = weights_of(x_{{ r }}_{{ 2 * t + 1 }}, base_{{ r }});
                exchange[own_weights + {{ 2 * t }}u] = eight(a, b);
                sum_{{ r }} += a + b;
            }
%% endfor
            total_{{ r }} += (sum_{{ r }}.x + sum_{{ r }}.y) + (sum_{{ r }}.z + sum_{{ r }}.w);
            {{ settle() }}
%% for t in key_blocks
            let p_{{ r }}_{{ t }} = {{ matrices.load("left", "exchange", "exchange_at + %du" % (2 * t), "WEIGHT_PITCH") }};
%% endfor
%% endfor
%% for t in key_blocks
%% for c in value_steps
            {
                let v_part = {{ matrices.load("right", "value_tile", "value_at + %du * VALUE_PITCH + %du" % (16 * t, 2 * c), "VALUE_PITCH") }};
%% for r in blocks
                o_{{ r }}_{{ c }} = {{ matrices.multiply_add("p_%d_%d" % (r, t), "v_part", "o_%d_%d" % (r, c)) }};
%% endfor
            }
%% endfor
%% endfor
            started = true;
        }
%% if EARLY and not EMULATED
        else if ({{ own("next") }}) {
            {{ tiles.products("s") }}
        }
%% endif
        tile = next;
        next = after;
    }

%% for r in blocks
    total_{{ r }} += {{ other_half("total_%d" % r) }};
%% endfor
%% if problem.empty_rows == "mean"
    // A row that keeps no key needs the sum of V, which is the same for all rows: it is made once.
%% for r in blocks
    if (there_{{ r }} && ends_as_mean(b, t_{{ r }}, total_{{ r }})) {
        atomicStore(&some_end_as_mean, 1u);
    }
%% endfor
    workgroupBarrier();
    if (atomicLoad(&some_end_as_mean) != 0u) {
        for (var chunk = thread; chunk < VALUE_CHUNKS; chunk += WORKGROUP) {
            value_sums[chunk] = sum_for_mean(part, b, k, chunk);
        }
    }
    workgroupBarrier();
%% endif
%% for r in blocks
%% for c in value_steps
    {{ settle() }}
    {{ matrices.store("exchange", "exchange_at", "SCORE_PITCH", "o_%d_%d" % (r, c)) }};
    {{ settle() }}
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
