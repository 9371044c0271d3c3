{% import "attention/backward/tiled_products.wgsl" as tiles with context %}
{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% include "attention/backward/gradients.wgsl" %}
%% if KEPT
{% include "attention/backward/tiled_scores.wgsl" %}
%% endif

// Tiled: a workgroup owns OWN rows of one side and passes over the other side STREAM rows at a time.
%% if BY == "query"
// Its own are query rows of one head, q and grad_out; K and V stream by. It adds up the query's gradient, unscaled.
%% else
// Its own are keys of one key/value head, K and V; q and grad_out of all heads of the group stream by. It adds up the
// key's and value's gradients, the key's unscaled.
%% endif
// Threads stand ACROSS × DOWN. Each has ROWS × ITEMS pairs of own and streamed rows, quads of own rows that are DOWN
// apart and quads of streamed ones that are ACROSS apart, and of its own rows every ACROSS-th quad of the sums. What
// threads share is float32 in workgroup memory, little at a time, so that several workgroups find room: first a few
// dims of both sides, turned, a dim a line, of which a thread reads ROWS + ITEMS numbers for ROWS · ITEMS products;
// then what own rows multiply streamed ones by, turned too, and the streamed rows. In turned lines quad q lies at
// q ^ (line / 4 & mask): then neither writes nor reads meet many bank conflicts.
{% set by_query = BY == "query" %}
{% set row_quads = range(ROWS // 4) %}
{% set xyzw = "xyzw" %}
{# Whether a logit takes more than its product and ranges of keys, and whether it does wherever a tile lies. #}
{% set looked_up_everywhere = problem.bias is not none or problem.mask or problem.softcap %}
{% set looked_up = looked_up_everywhere or problem.segments %}
{# How the sides' rows are read: "head" of head_dim, "value" of value_dim. #}
{% set query = "load_query(q_rows + %s * parameters.query_t, %s)" %}
{% set grad_out = "load_grad_out(g_rows + %s * parameters.grad_out_t, %s)" %}
{% set key = "load_key(key_row_of(k_rows, b, %s - parameters.key_first, k), %s)" %}
{% set value = "load_value(value_row_of(v_rows, b, %s - parameters.key_first, k), %s)" %}
{% set own_head, own_value, stream_head, stream_value = (query, grad_out, key, value) if by_query else (key, value, query, grad_out) %}

// STAGED · 16 bytes
var<workgroup> staged: array<vec4f, STAGED>;
{# Row r of a thread's own, and item i of its streamed ones, from the first of the tile. #}
{% macro own_row(r) %}(4u * (down + {{ r }} / 4u * DOWN) + {{ r }} % 4u){% endmacro %}
{% macro item(i) %}(4u * (across + {{ i }} / 4u * ACROSS) + {{ i }} % 4u){% endmacro %}
{% macro store_sums(name, columns, chunks, offset) %}
%% for r in range(ROWS)
%% for c in range(columns)
    if (own_{{ r }} < own_end && {{ c }}u * ACROSS + across < {{ chunks }}) {
%% if by_query
        // Rows past the query length have no gradient, whatever lies in them.
        add_sum(query_sums(b, own_{{ r }}, n) + {{ c }}u * ACROSS + across, select(vec4f(), {{ name }}_{{ r }}_{{ c }}, is_live(b, own_{{ r }})));
%% else
        add_sum(key_value_sums(b, own_{{ r }}, k) + {{ offset }}{{ c }}u * ACROSS + across, {{ name }}_{{ r }}_{{ c }});
%% endif
    }
%% endfor
%% endfor
{% endmacro %}

@compute @workgroup_size(WORKGROUP)
fn tiled(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
{% include "attention/backward/block_place.wgsl" %}
    // Neighbours read the same streamed rows, and the next but one the same own ones: 16 bytes a thread are then read
    // half a subgroup at once.
    let across = thread / 2u % ACROSS;
    let down = thread / (2u * ACROSS) * 2u + thread % 2u;
    let scale = query_scale(b);
%% if by_query
    let last_read = min(last_own, max(query_length(b), parameters.t_first + 1u) - parameters.t_first - 1u);
    let q_rows = query_row(b, 0u, n);
    let g_rows = grad_out_row(b, 0u, n);
%% else
    let last_read = last_own;
%% endif
    let k_rows = key_rows(b, k);
    let v_rows = value_rows(b, k);
%% for r in range(ROWS)
    let own_{{ r }} = first_own + {{ own_row("%du" % r) }};
%% endfor
%% if problem.segments
%% if by_query
    let own_ids = query_segment_range(b, first_own, last_own);
%% else
    let own_ids = key_segment_range(b, first_own, last_own + 1u);
%% endif
%% endif

%% for r in range(ROWS)
%% for c in range(HEAD_COLUMNS)
    var head_sum_{{ r }}_{{ c }} = vec4f();
%% endfor
%% if not by_query
%% for c in range(VALUE_COLUMNS)
    var value_sum_{{ r }}_{{ c }} = vec4f();
%% endfor
%% endif
%% endfor
    for (var tile = span.x{{ " / 4u * 4u" if KEPT }}; tile < span.y; tile += STREAM) {
        let tile_last = min(tile + STREAM, span.y) - 1u;
%% if problem.segments
%% if by_query
        let ids = key_segment_range(b, tile, tile_last + 1u);
%% else
        let ids = query_segment_range(b, tile, tile_last);
%% endif
        if (ids.x > own_ids.y || ids.y < own_ids.x) {
            continue;
        }
%% endif
%% if problem.bias is none and not problem.mask
%% if by_query
        var whole = tile + STREAM <= span.y && block_keeps(b, first_own, last_own, tile, tile_last + 1u);
%% else
        var whole = tile + STREAM <= span.y && block_keeps(b, tile, tile_last, first_own, last_own + 1u);
%% endif
%% if problem.segments
        whole = whole && ids.x == ids.y && own_ids.x == own_ids.y;
%% endif
%% endif
%% if not by_query
      for (var shared_head = 0u; shared_head < sharing; shared_head++) {
        let n = k * sharing + shared_head;
        let q_rows = query_row(b, 0u, n);
        let g_rows = grad_out_row(b, 0u, n);
%% endif
        // x of streamed row i and the own rows of quad j: the product of their "head" rows, later the weight;
        // y: the product of their "value" rows, the gradient by the weight, later the gradient by the scaled score.
%% for i in range(ITEMS)
%% for j in row_quads
        var x_{{ i }}_{{ j }} = vec4f();
        var y_{{ i }}_{{ j }} = vec4f();
%% endfor
%% endfor
{{ tiles.products("x", own_head, stream_head, HEAD_CHUNKS, HEAD_STAGE) }}
{{ tiles.products("y", own_value, stream_value, VALUE_CHUNKS, VALUE_STAGE) }}
%% if looked_up
        // A loop over what lies in registers is none: pairs of a streamed row at a time go through workgroup memory.
        workgroupBarrier();
        if ({{ "true" if looked_up_everywhere else "!whole" }}) {
            for (var i = 0u; i < ITEMS; i++) {
%% for i in range(ITEMS)
                if (i == {{ i }}u) {
%% for j in row_quads
                    staged[thread + {{ 2 * j }}u * WORKGROUP] = x_{{ i }}_{{ j }};
                    staged[thread + {{ 2 * j + 1 }}u * WORKGROUP] = y_{{ i }}_{{ j }};
%% endfor
                }
%% endfor
                let item = tile + {{ item("i") }};
                for (var r = 0u; r < ROWS; r++) {
                    let own = min(first_own + {{ own_row("r") }}, last_own);
{% set t, s = ("own", "item") if by_query else ("min(item, tile_last)", "own") %}
                    let at = thread + 2u * (r / 4u) * WORKGROUP;
                    var kept = every_key();
%% if problem.bias is none and not problem.mask
                    if (!whole) {
                        kept = kept_keys(b, {{ t }});
                    }
%% else
                    kept = kept_keys(b, {{ t }});
%% endif
                    var share = Share(0.0, 0.0, 0.0);
                    if (item <= tile_last) {
                        share = share_of(staged[at][r % 4u], staged[at + WORKGROUP][r % 4u], b, n, {{ t }}, {{ s }}, kept, statistics_of(b, {{ t }}, n));
                    }
                    staged[at][r % 4u] = share.weight;
                    staged[at + WORKGROUP][r % 4u] = share.score;
                }
%% for i in range(ITEMS)
                if (i == {{ i }}u) {
%% for j in row_quads
                    x_{{ i }}_{{ j }} = staged[thread + {{ 2 * j }}u * WORKGROUP];
                    y_{{ i }}_{{ j }} = staged[thread + {{ 2 * j + 1 }}u * WORKGROUP];
%% endfor
                }
%% endfor
            }
        }{{ "" if looked_up_everywhere else " else {" }}
%% endif
%% if not looked_up_everywhere
%% if by_query
%% for r in range(ROWS)
        let row_{{ r }} = statistics_of(b, min(own_{{ r }}, last_own), n);
%% endfor
%% for i in range(ITEMS)
%% for j in row_quads
{% set e = 4 * j %}
        x_{{ i }}_{{ j }} = exp2(x_{{ i }}_{{ j }} * scale - vec4f(row_{{ e }}.top, row_{{ e + 1 }}.top, row_{{ e + 2 }}.top, row_{{ e + 3 }}.top));
        y_{{ i }}_{{ j }} = x_{{ i }}_{{ j }} * (y_{{ i }}_{{ j }} - vec4f(row_{{ e }}.delta, row_{{ e + 1 }}.delta, row_{{ e + 2 }}.delta, row_{{ e + 3 }}.delta));
%% endfor
%% endfor
%% else
%% for i in range(ITEMS)
        let row_{{ i }} = statistics_of(b, min(tile + {{ item("%du" % i) }}, tile_last), n);
%% endfor
%% for i in range(ITEMS)
%% for j in row_quads
        x_{{ i }}_{{ j }} = exp2(x_{{ i }}_{{ j }} * scale - vec4f(row_{{ i }}.top));
        y_{{ i }}_{{ j }} = x_{{ i }}_{{ j }} * (y_{{ i }}_{{ j }} - vec4f(row_{{ i }}.delta));
%% endfor
%% endfor
%% endif
%% if looked_up
        }
%% else
        if (!whole) {
%% if by_query
%% for i in range(ITEMS)
            let item_{{ i }} = tile + {{ item("%du" % i) }};
%% endfor
%% for r in range(ROWS)
            {
                let kept = kept_keys(b, min(own_{{ r }}, last_own));
%% for i in range(ITEMS)
                if (item_{{ i }} > tile_last || !in_range(kept, i32(item_{{ i }}))) {
                    x_{{ i }}_{{ r // 4 }}.{{ xyzw[r % 4] }} = 0.0;
                    y_{{ i }}_{{ r // 4 }}.{{ xyzw[r % 4] }} = 0.0;
                }
%% endfor
            }
%% endfor
%% else
%% for i in range(ITEMS)
            {
                let t = tile + {{ item("%du" % i) }};
                let kept = kept_keys(b, min(t, tile_last));
%% for r in range(ROWS)
                if (t > tile_last || !in_range(kept, i32(own_{{ r }}))) {
                    x_{{ i }}_{{ r // 4 }}.{{ xyzw[r % 4] }} = 0.0;
                    y_{{ i }}_{{ r // 4 }}.{{ xyzw[r % 4] }} = 0.0;
                }
%% endfor
            }
%% endfor
%% endif
        }
%% endif
%% endif
%% if KEPT
%% for q in range(ITEMS // 4)
        {
            // Four rows of a key: of a thread's pairs a quad of each side.
            let t = tile + {{ item("%du" % (4 * q)) }};
            if (t < span.y) {
%% for j in row_quads
%% for e in range(4)
                if (own_{{ 4 * j + e }} <= last_own) {
                    scores[scores_at(b, n, t, own_{{ 4 * j + e }})] = vec4f({% for i in range(4) %}y_{{ 4 * q + i }}_{{ j }}.{{ xyzw[e] }}{{ ", " if i < 3 }}{% endfor %});
                }
%% endfor
%% endfor
            }
        }
%% endfor
%% endif
%% if not by_query
{{ tiles.add_products("value_sum", "x", stream_value, VALUE_CHUNKS, VALUE_COLUMNS, VALUE_ROWS) }}
%% endif
{{ tiles.add_products("head_sum", "y", stream_head, HEAD_CHUNKS, HEAD_COLUMNS, HEAD_ROWS) }}
%% if not by_query
      }
%% endif
    }

{{ store_sums("head_sum", HEAD_COLUMNS, "HEAD_CHUNKS", "") }}
%% if not by_query
{{ store_sums("value_sum", VALUE_COLUMNS, "VALUE_CHUNKS", "HEAD_CHUNKS + ") }}
%% endif
}
%% if problem.segments

{% include "attention/segment_ranges.wgsl" %}
%% endif
