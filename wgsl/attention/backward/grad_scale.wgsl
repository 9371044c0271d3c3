{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}

// Scale: the sum over rows of query · the query's unscaled gradient. A workgroup owns a part of the rows of one batch
// entry of the whole call; entries that this launch does not hold get 0.

// WORKGROUP · 4 bytes
var<workgroup> shares: array<f32, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn grad_scale_of_rows(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded_index(workgroup, workgroups);
    let entry = index % parameters.entries;
    let part = index / parameters.entries;
    if (part >= parameters.parts) {
        return;
    }
    let b0 = entry / parameters.B1_all - parameters.b0_first;
    let b1 = entry % parameters.B1_all - parameters.b1_first;
    // Differences below 0 wrap to large numbers, so one comparison tests both sides.
    let here = b0 < parameters.batch / parameters.B1 && b1 < parameters.B1;
    let b = b0 * parameters.B1 + b1;
    var sum = vec4f();
    if (here) {
        let live = clamp(query_length(b), parameters.t_first, parameters.t_first + parameters.T) - parameters.t_first;
        for (var i = part * WORKGROUP + thread; i < live * parameters.N; i += parameters.parts * WORKGROUP) {
            let t = i / parameters.N;
            let n = i % parameters.N;
            let of_query = query_row(b, t, n);
            let of_sums = ((b * parameters.T + t) * parameters.N + n) * (HEAD_DIM / 4u);
            for (var chunk = 0u; chunk < HEAD_DIM / 4u; chunk++) {
                sum += load_query(of_query, chunk) * sums[of_sums + chunk];
            }
        }
    }
    shares[thread] = (sum.x + sum.y) + (sum.z + sum.w);
{% include "attention/backward/join_shares.wgsl" %}
    if (thread == 0u) {
        partial[(parameters.part_first + part) * parameters.entries + entry] = shares[0];
    }
}
