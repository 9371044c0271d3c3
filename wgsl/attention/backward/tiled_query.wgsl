{% import "attention/backward/tiled_products.wgsl" as tiles with context %}
{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% include "attention/backward/gradients.wgsl" %}
{% include "attention/backward/tiled_scores.wgsl" %}

// Tiled: the query's gradient, unscaled, from gradients by scores that the sweep by key and value has kept. A workgroup
// owns OWN query rows of one head; K streams by, STAGED keys at a time, with what own rows multiply them by, each read
// from storage a stage before. Threads stand and sum as in tiled.wgsl.
{% set own_rows = range(ROWS) %}
{% set columns = range(HEAD_COLUMNS) %}

// STAGED · (OWN_QUADS + HEAD_COLUMNS · ACROSS) · 16 bytes
var<workgroup> staged: array<vec4f, STAGED * (OWN_QUADS + {{ HEAD_COLUMNS }}u * ACROSS)>;

@compute @workgroup_size(WORKGROUP)
fn tiled_query(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
{% include "attention/backward/block_place.wgsl" %}
    let across = thread / 2u % ACROSS;
    let down = thread / (2u * ACROSS) * 2u + thread % 2u;
    let k_rows = key_rows(b, k);
%% for r in own_rows
%% for c in columns
    var sum_{{ r }}_{{ c }} = vec4f();
%% endfor
%% endfor
%% for p in range(FACTOR_PIECES)
    var factor_{{ p }} = vec4f();
%% endfor
%% for p in range(KEY_PIECES)
    var key_{{ p }} = vec4f();
%% endfor
    // The first turn only reads.
    for (var at = span.x; at < span.y + STAGED; at += STAGED) {
        if (at > span.x) {
            workgroupBarrier();
%% for p in range(FACTOR_PIECES)
            {{ tiles.guard(p, STAGED * OWN_QUADS) }}{
                let i = {{ tiles.piece(p, STAGED * OWN_QUADS) }};
                let line = i / OWN_QUADS;
                staged[line * OWN_QUADS + ((i % OWN_QUADS) ^ ((line / 4u) & OWN_MASK))] = factor_{{ p }};
            }
%% endfor
%% for p in range(KEY_PIECES)
            {{ tiles.guard(p, STAGED * HEAD_CHUNKS) }}{
                let i = {{ tiles.piece(p, STAGED * HEAD_CHUNKS) }};
                staged[STAGED * OWN_QUADS + i / HEAD_CHUNKS * {{ HEAD_COLUMNS }}u * ACROSS + i % HEAD_CHUNKS] = key_{{ p }};
            }
%% endfor
            workgroupBarrier();
        }
        if (at < span.y) {
            let whole = at + STAGED <= span.y && block_keeps(b, first_own, last_own, at, min(at + STAGED, span.y));
%% for p in range(FACTOR_PIECES)
            {
                let i = {{ tiles.piece(p, STAGED * OWN_QUADS) }};
                let s = at + i / OWN_QUADS;
                let t = first_own + i % OWN_QUADS * 4u;
                factor_{{ p }} = scores[scores_at(b, n, min(t, last_own), min(s, span.y - 1u))];
                if (!whole) {
                    // What the other sweep has passed by was not written.
                    factor_{{ p }} = select(vec4f(), factor_{{ p }}, kept_by(b, t, last_own, s, span.y));
                }
            }
%% endfor
%% for p in range(KEY_PIECES)
            {
                let i = {{ tiles.piece(p, STAGED * HEAD_CHUNKS) }};
                key_{{ p }} = load_key(key_row_of(k_rows, b, min(at + i / HEAD_CHUNKS, span.y - 1u) - parameters.key_first, k), i % HEAD_CHUNKS);
            }
%% endfor
        }
        if (at > span.x) {
{{ tiles.add_staged("sum", HEAD_COLUMNS, STAGED) }}
        }
    }
%% for r in own_rows
    {
        let own = first_own + 4u * (down + {{ r // 4 }}u * DOWN) + {{ r % 4 }}u;
%% for c in columns
        if (own < parameters.T && {{ c }}u * ACROSS + across < HEAD_CHUNKS) {
            // Rows past the query length have no gradient, whatever lies in them.
            add_sum(query_sums(b, own, n) + {{ c }}u * ACROSS + across, select(vec4f(), sum_{{ r }}_{{ c }}, is_live(b, own)));
        }
%% endfor
    }
%% endfor
}

// Which of four rows from t on keep key s.
fn kept_by(b: u32, t: u32, last: u32, s: u32, end: u32) -> vec4<bool> {
    var kept = vec4<bool>();
%% for e in range(4)
    kept[{{ e }}] = t + {{ e }}u <= last && s < end && in_range(kept_keys(b, min(t + {{ e }}u, last)), i32(s));
%% endfor
    return kept;
}
