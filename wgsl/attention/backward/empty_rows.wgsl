{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% include "attention/backward/gradients.wgsl" %}

// Empty rows: a row that keeps no key is the mean of V over all keys, so each key's gradient gets the same sum of
// grad_out over such rows. A workgroup owns one vec4 of one key/value head; its threads share out the rows of the
// head's group.

// WORKGROUP · 16 bytes
var<workgroup> shares: array<vec4f, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn empty_rows(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded_index(workgroup, workgroups);
    let chunk = index % (VALUE_DIM / 4u);
    let heads = key_heads();
    let sharing = sharing_heads();
    let k = index / (VALUE_DIM / 4u) % heads;
    let b = index / (VALUE_DIM / 4u) / heads;
    if (b >= parameters.batch) {
        return;
    }
    var sum = vec4f();
    let live = clamp(query_length(b), parameters.t_first, parameters.t_first + parameters.T) - parameters.t_first;
    for (var i = thread; i < live * sharing; i += WORKGROUP) {
        let t = i / sharing;
        let n = k * sharing + i % sharing;
        if (residual[row_of(b, t, n)] == EMPTY_RESIDUAL) {
            sum += load_grad_out(grad_out_row(b, t, n), chunk);
        }
    }
    shares[thread] = sum;
{% include "attention/backward/join_shares.wgsl" %}
    if (thread == 0u) {
        add_sum((b * heads + k) * (VALUE_DIM / 4u) + chunk, shares[0]);
    }
}
