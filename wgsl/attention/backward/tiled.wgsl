{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% include "attention/backward/gradients.wgsl" %}

// Tiled: a workgroup owns OWN rows of one side and passes over the other side STREAM rows at a time.
%% if BY == "query"
// Its own are query rows of one head, q and grad_out; K and V stream by. It adds up the query's gradient, unscaled.
%% else
// Its own are keys of one key/value head, K and V; q and grad_out of all heads of the group stream by. It adds up the
// key's and value's gradients.
%% endif
// "Head" tiles hold rows of head_dim (q or K), "value" tiles rows of value_dim (grad_out or V), all as float32. Threads
// stand ACROSS × DOWN: each has ROWS × ITEMS pairs of own and streamed rows, and of the same ROWS rows every ACROSS-th
// vec4 of the sums.

// OWN · HEAD_PITCH · 16 bytes
var<workgroup> head_tile: array<vec4f, OWN * HEAD_PITCH>;
// OWN · VALUE_PITCH · 16 bytes
var<workgroup> value_tile: array<vec4f, OWN * VALUE_PITCH>;
// STREAM · STREAM_PITCH · 16 bytes: rows of value_dim and of head_dim by turns
var<workgroup> stream_tile: array<vec4f, STREAM * STREAM_PITCH>;
// OWN · FACTOR_PITCH · 16 bytes: what each own row multiplies each streamed row by
var<workgroup> factor_tile: array<vec4f, OWN * FACTOR_PITCH>;

// Quads of streamed rows are dealt to the threads across: row 4 · q + e lies where its thread reads without bank
// conflicts.
fn slot(item: u32) -> u32 {
    return (item / 4u / ACROSS * 4u + item % 4u) * ACROSS + item / 4u % ACROSS;
}

// The streamed row that is item i of the thread at `across`.
fn item_of(across: u32, i: u32) -> u32 {
    return (i / 4u * ACROSS + across) * 4u + i % 4u;
}

{% macro load_rows(tile, count, chunks, pitch, place, row, end, reader) %}
        for (var i = thread; i < {{ count }} * {{ chunks }}; i += WORKGROUP) {
            let at = i / {{ chunks }};
            let chunk = i % {{ chunks }};
            var four = vec4f();
            if ({{ row }} < {{ end }}) {
                four = {{ reader }};
            }
            {{ tile }}[{{ place }} * {{ pitch }} + chunk] = four;
        }
{% endmacro %}
{% macro products(name, tile, chunks, pitch) %}
        var {{ name }} = array<array<f32, ITEMS>, ROWS>();
        for (var chunk = 0u; chunk < {{ chunks }}; chunk++) {
            var own_four = array<vec4f, ROWS>();
%% for r in range(ROWS)
            own_four[{{ r }}] = {{ tile }}[(row_first + {{ r }}u) * {{ pitch }} + chunk];
%% endfor
%% for i in range(ITEMS)
            let four_{{ i }} = stream_tile[({{ i }}u * ACROSS + across) * STREAM_PITCH + chunk];
%% for r in range(ROWS)
            {{ name }}[{{ r }}][{{ i }}] += dot(own_four[{{ r }}], four_{{ i }});
%% endfor
%% endfor
        }
{% endmacro %}
{% macro place_factors(name) %}
%% for r in range(ROWS)
%% for q in range(ITEMS // 4)
        factor_tile[(row_first + {{ r }}u) * FACTOR_PITCH + {{ q }}u * ACROSS + across] =
            vec4f(
                {{ name }}[{{ r }}][{{ 4 * q }}],
                {{ name }}[{{ r }}][{{ 4 * q + 1 }}],
                {{ name }}[{{ r }}][{{ 4 * q + 2 }}],
                {{ name }}[{{ r }}][{{ 4 * q + 3 }}],
            );
%% endfor
%% endfor
{% endmacro %}
{% macro add_products(name, columns, chunks) %}
        for (var quad = 0u; quad < STREAM / 4u; quad++) {
            let base = (quad / ACROSS * 4u * ACROSS + quad % ACROSS) * STREAM_PITCH;
%% for r in range(ROWS)
            let w_{{ r }} = factor_tile[(row_first + {{ r }}u) * FACTOR_PITCH + quad];
%% endfor
%% for c in range(columns)
            {
                let at = base + min({{ c }}u * ACROSS + across, {{ chunks }} - 1u);
                let x0 = stream_tile[at];
                let x1 = stream_tile[at + ACROSS * STREAM_PITCH];
                let x2 = stream_tile[at + 2u * ACROSS * STREAM_PITCH];
                let x3 = stream_tile[at + 3u * ACROSS * STREAM_PITCH];
%% for r in range(ROWS)
                {{ name }}[{{ r }}][{{ c }}] += w_{{ r }}.x * x0 + w_{{ r }}.y * x1 + w_{{ r }}.z * x2 + w_{{ r }}.w * x3;
%% endfor
            }
%% endfor
        }
{% endmacro %}
{% macro store_sums(name, columns, chunks, offset) %}
%% for r in range(ROWS)
%% for c in range(columns)
        if (first_own + row_first + {{ r }}u < own_end && {{ c }}u * ACROSS + across < {{ chunks }}) {
%% if BY == "query"
            // Rows past the query length have no gradient, whatever lies in them.
            add_sum(
                sums_row(row_first + {{ r }}u, b, head, first_own) + {{ c }}u * ACROSS + across,
                select(vec4f(), {{ name }}[{{ r }}][{{ c }}], is_live(b, first_own + row_first + {{ r }}u)),
            );
%% else
            add_sum(
                sums_row(row_first + {{ r }}u, b, head, first_own){{ offset }} + {{ c }}u * ACROSS + across,
                {{ name }}[{{ r }}][{{ c }}],
            );
%% endif
        }
%% endfor
%% endfor
{% endmacro %}
// Where the sums of an own row start.
fn sums_row(row: u32, b: u32, head: u32, first_own: u32) -> u32 {
%% if BY == "query"
    return ((b * parameters.T + first_own + row) * parameters.N + head) * HEAD_CHUNKS;
%% else
    let keys = parameters.key_end - parameters.key_first;
    return ((b * keys + first_own + row - parameters.key_first) * key_heads() + head) * (HEAD_CHUNKS + VALUE_CHUNKS);
%% endif
}

@compute @workgroup_size(WORKGROUP)
fn tiled(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    // Heads lie closest, so that workgroups of one key/value head run together; blocks of rows furthest.
    var index = folded_index(workgroup, workgroups);
%% if BY == "query"
    let heads = parameters.N;
    let blocks = (parameters.T + OWN - 1u) / OWN;
%% else
    let heads = key_heads();
    let sharing = sharing_heads();
    let blocks = (parameters.key_end - parameters.key_first + OWN - 1u) / OWN;
%% endif
    let head = index % heads;
    index /= heads;
    let b = index % parameters.batch;
    index /= parameters.batch;
    if (index >= blocks) {
        return;
    }
    let across = thread % ACROSS;
    let row_first = thread / ACROSS * ROWS;
%% if BY == "query"
    // The last rows keep the most keys under a causal mask: they start first.
    let first_own = (blocks - 1u - index) * OWN;
    let own_end = parameters.T;
    let last_own = min(first_own + OWN, own_end) - 1u;
    let n = head;
    let k = key_head(n);
    let span = block_keys(b, first_own, last_own, parameters.key_first, parameters.key_end);
    let own_live = min(own_end, max(query_length(b), parameters.t_first) - parameters.t_first);
{{ load_rows("head_tile", "OWN", "HEAD_CHUNKS", "HEAD_PITCH", "at", "first_own + at", "own_live",
    "load_query(query_row(b, first_own + at, n), chunk)") }}
{{ load_rows("value_tile", "OWN", "VALUE_CHUNKS", "VALUE_PITCH", "at", "first_own + at", "own_live",
    "load_grad_out(grad_out_row(b, first_own + at, n), chunk)") }}
    var own_rows: array<Statistics, ROWS>;
%% for r in range(ROWS)
    own_rows[{{ r }}] = statistics_of(b, min(first_own + row_first + {{ r }}u, last_own), n);
%% endfor
%% else
    // The first keys are kept by the most rows under a causal mask: they start first.
    let first_own = parameters.key_first + index * OWN;
    let own_end = parameters.key_end;
    let last_own = min(first_own + OWN, own_end) - 1u;
    let k = head;
    let span = query_rows(b, first_own, last_own + 1u);
{{ load_rows("head_tile", "OWN", "HEAD_CHUNKS", "HEAD_PITCH", "at", "first_own + at", "own_end",
    "load_key(key_row(b, first_own + at - parameters.key_first, k), chunk)") }}
{{ load_rows("value_tile", "OWN", "VALUE_CHUNKS", "VALUE_PITCH", "at", "first_own + at", "own_end",
    "load_value(value_row(b, first_own + at - parameters.key_first, k), chunk)") }}
    var value_sums = array<array<vec4f, VALUE_COLUMNS>, ROWS>();
%% endif
    var head_sums = array<array<vec4f, HEAD_COLUMNS>, ROWS>();
%% if problem.segments
%% if BY == "query"
    let own_ids = query_segment_range(b, first_own, last_own);
%% else
    let own_ids = key_segment_range(b, first_own, last_own + 1u);
%% endif
%% endif

    for (var tile = span.x; tile < span.y; tile += STREAM) {
        let tile_end = min(tile + STREAM, span.y);
%% if problem.segments
%% if BY == "query"
        let ids = key_segment_range(b, tile, tile_end);
%% else
        let ids = query_segment_range(b, tile, tile_end - 1u);
%% endif
        if (ids.x > own_ids.y || ids.y < own_ids.x) {
            continue;
        }
%% endif
%% if problem.bias is none and not problem.mask
%% if BY == "query"
        var whole = tile + STREAM <= span.y && block_keeps(b, first_own, last_own, tile, tile_end);
%% else
        let full = last_own + 1u == first_own + OWN && tile + STREAM <= span.y;
        var whole = full && block_keeps(b, tile, tile_end - 1u, first_own, last_own + 1u);
%% endif
%% else
        let whole = false;
%% endif
%% if BY == "key_value"
      for (var shared_head = 0u; shared_head < sharing; shared_head++) {
        let n = k * sharing + shared_head;
%% endif
        workgroupBarrier();
%% if BY == "query"
{{ load_rows("stream_tile", "STREAM", "VALUE_CHUNKS", "STREAM_PITCH", "slot(at)", "tile + at", "tile_end",
    "load_value(value_row(b, tile + at - parameters.key_first, k), chunk)") }}
%% else
{{ load_rows("stream_tile", "STREAM", "VALUE_CHUNKS", "STREAM_PITCH", "slot(at)", "tile + at", "tile_end",
    "load_grad_out(grad_out_row(b, tile + at, n), chunk)") }}
%% endif
        workgroupBarrier();
{{ products("by_weight", "value_tile", "VALUE_CHUNKS", "VALUE_PITCH") }}
        workgroupBarrier();
%% if BY == "query"
{{ load_rows("stream_tile", "STREAM", "HEAD_CHUNKS", "STREAM_PITCH", "slot(at)", "tile + at", "tile_end",
    "load_key(key_row(b, tile + at - parameters.key_first, k), chunk)") }}
%% else
{{ load_rows("stream_tile", "STREAM", "HEAD_CHUNKS", "STREAM_PITCH", "slot(at)", "tile + at", "tile_end",
    "load_query(query_row(b, tile + at, n), chunk)") }}
%% endif
        workgroupBarrier();
{{ products("product", "head_tile", "HEAD_CHUNKS", "HEAD_PITCH") }}
        // From here on by_weight holds the gradients by the scaled scores, and product the weights.
%% if BY == "query"
%% for r in range(ROWS)
        {
            let t = min(first_own + row_first + {{ r }}u, last_own);
            var kept = every_key();
            if (!whole) {
                kept = kept_keys(b, t);
            }
%% for i in range(ITEMS)
            {
                let s = tile + item_of(across, {{ i }}u);
                var share = Share(0.0, 0.0, 0.0);
                if (s < tile_end) {
                    share = share_of(product[{{ r }}][{{ i }}], by_weight[{{ r }}][{{ i }}], b, n, t, s, kept, own_rows[{{ r }}]);
                }
                by_weight[{{ r }}][{{ i }}] = share.score;
            }
%% endfor
        }
%% endfor
%% else
%% for i in range(ITEMS)
        {
            let t = min(tile + item_of(across, {{ i }}u), tile_end - 1u);
            let there = tile + item_of(across, {{ i }}u) < tile_end;
            let row = statistics_of(b, t, n);
            var kept = every_key();
            if (!whole) {
                kept = kept_keys(b, t);
            }
%% for r in range(ROWS)
            {
                let s = first_own + row_first + {{ r }}u;
                var share = Share(0.0, 0.0, 0.0);
                if (there && s <= last_own) {
                    share = share_of(product[{{ r }}][{{ i }}], by_weight[{{ r }}][{{ i }}], b, n, t, s, kept, row);
                }
                by_weight[{{ r }}][{{ i }}] = share.score;
                product[{{ r }}][{{ i }}] = share.weight;
            }
%% endfor
        }
%% endfor
%% endif
{{ place_factors("by_weight") }}
        workgroupBarrier();
{{ add_products("head_sums", HEAD_COLUMNS, "HEAD_CHUNKS") }}
%% if BY == "key_value"
        workgroupBarrier();
{{ place_factors("product") }}
{{ load_rows("stream_tile", "STREAM", "VALUE_CHUNKS", "STREAM_PITCH", "slot(at)", "tile + at", "tile_end",
    "load_grad_out(grad_out_row(b, tile + at, n), chunk)") }}
        workgroupBarrier();
{{ add_products("value_sums", VALUE_COLUMNS, "VALUE_CHUNKS") }}
      }
%% endif
    }

{{ store_sums("head_sums", HEAD_COLUMNS, "HEAD_CHUNKS", "") }}
%% if BY == "key_value"
{{ store_sums("value_sums", VALUE_COLUMNS, "VALUE_CHUNKS", " + HEAD_CHUNKS") }}
%% endif
}
%% if problem.segments

{% include "attention/segment_ranges.wgsl" %}
%% endif
