{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% include "attention/backward/gradients.wgsl" %}
{% include "attention/backward/share_of_rows.wgsl" %}

// Plain, by query: a workgroup owns one query row of one head. Scores: a thread a key. Sums: a thread a vec4 of
// head_dim, unscaled.

// WORKGROUP · 4 bytes
var<workgroup> by_score: array<f32, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn plain_query(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
{% include "attention/backward/block_place.wgsl" %}
    let t = first_own;

    let of_query = query_row(b, t, n);
    let of_grad = grad_out_row(b, t, n);
    let kept = kept_keys(b, t);
    let own = statistics_of(b, t, n);
    var total: array<vec4f, HEAD_COLUMNS>;
    for (var tile = span.x; tile < span.y; tile += WORKGROUP) {
        let s = tile + thread;
        var share = 0.0;
        if (s < span.y) {
            let of_key = key_row(b, s - parameters.key_first, k);
            let of_value = value_row(b, s - parameters.key_first, k);
            share = share_of_rows(of_query, of_grad, of_key, of_value, b, n, t, s, kept, own).score;
        }
        by_score[thread] = share;
        workgroupBarrier();
        for (var j = 0u; j < min(WORKGROUP, span.y - tile); j++) {
            let factor = by_score[j];
            // A key that adds nothing is not read, so nothing of it can reach the row.
            if (factor != 0.0) {
                let of_key = key_row(b, tile + j - parameters.key_first, k);
                for (var i = 0u; i < HEAD_COLUMNS; i++) {
                    total[i] += factor * load_key(of_key, min(thread + i * WORKGROUP, HEAD_DIM / 4u - 1u));
                }
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < HEAD_COLUMNS; i++) {
        let chunk = thread + i * WORKGROUP;
        if (chunk < HEAD_DIM / 4u) {
            add_sum(query_sums(b, t, n) + chunk, total[i]);
        }
    }
}
