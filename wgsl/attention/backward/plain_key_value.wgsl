{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% include "attention/backward/gradients.wgsl" %}
{% include "attention/backward/share_of_rows.wgsl" %}

// Plain, by key and value: a workgroup owns one key of one key/value head, and passes over the rows of all heads of its
// group that may keep it. Scores: a thread a row. Sums: a thread a vec4 of head_dim and one of value_dim.

// WORKGROUP · 4 bytes
var<workgroup> by_score: array<f32, WORKGROUP>;
// WORKGROUP · 4 bytes
var<workgroup> weights: array<f32, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn plain_key_value(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
{% include "attention/backward/block_place.wgsl" %}
    let s = first_own;

    let of_key = key_row(b, s - parameters.key_first, k);
    let of_value = value_row(b, s - parameters.key_first, k);
    // Items are rows with their heads: item i is head i % sharing of row span.x + i / sharing.
    let items = (span.y - span.x) * sharing;
    var key_total: array<vec4f, HEAD_COLUMNS>;
    var value_total: array<vec4f, VALUE_COLUMNS>;
    for (var tile = 0u; tile < items; tile += WORKGROUP) {
        var share = Share(0.0, 0.0, 0.0);
        if (tile + thread < items) {
            let t = span.x + (tile + thread) / sharing;
            let n = k * sharing + (tile + thread) % sharing;
            let of_query = query_row(b, t, n);
            let of_grad = grad_out_row(b, t, n);
            let kept = kept_keys(b, t);
            share = share_of_rows(of_query, of_grad, of_key, of_value, b, n, t, s, kept, statistics_of(b, t, n));
        }
        by_score[thread] = share.score;
        weights[thread] = share.weight;
        workgroupBarrier();
        for (var j = 0u; j < min(WORKGROUP, items - tile); j++) {
            let factor = by_score[j];
            let weight_of_row = weights[j];
            if (factor != 0.0 || weight_of_row != 0.0) {
                let t = span.x + (tile + j) / sharing;
                let n = k * sharing + (tile + j) % sharing;
                let of_query = query_row(b, t, n);
                for (var i = 0u; i < HEAD_COLUMNS; i++) {
                    key_total[i] += factor * load_query(of_query, min(thread + i * WORKGROUP, HEAD_DIM / 4u - 1u));
                }
                let of_grad = grad_out_row(b, t, n);
                for (var i = 0u; i < VALUE_COLUMNS; i++) {
                    value_total[i] += weight_of_row * load_grad_out(of_grad, min(thread + i * WORKGROUP, VALUE_DIM / 4u - 1u));
                }
            }
        }
        workgroupBarrier();
    }
    let at = key_value_sums(b, s, k);
    for (var i = 0u; i < HEAD_COLUMNS; i++) {
        let chunk = thread + i * WORKGROUP;
        if (chunk < HEAD_DIM / 4u) {
            add_sum(at + chunk, key_total[i]);
        }
    }
    for (var i = 0u; i < VALUE_COLUMNS; i++) {
        let chunk = thread + i * WORKGROUP;
        if (chunk < VALUE_DIM / 4u) {
            add_sum(at + HEAD_DIM / 4u + chunk, value_total[i]);
        }
    }
}
