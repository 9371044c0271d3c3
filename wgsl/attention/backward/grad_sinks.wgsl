{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% include "attention/backward/gradients.wgsl" %}

// Sinks: a workgroup owns a head, of one batch entry where each has its own sinks, and adds up -exp(sink - residual) ·
// delta over all its rows.

// WORKGROUP · 4 bytes
var<workgroup> shares: array<f32, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn grad_sinks_of_heads(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded_index(workgroup, workgroups);
    if (index >= parameters.entries * parameters.N) {
        return;
    }
    let n = index % parameters.N;
    let shared_by = parameters.batch / parameters.entries;
    let first = (index / parameters.N) * shared_by;
%% if NATURAL
    let sink = bitcast<f32>(row_sinks(first, n));
%% else
    let sink = bitcast<f32>(row_sinks(first, n)) * LOG2_E;
%% endif
    var sum = 0.0;
    for (var i = thread; i < shared_by * parameters.T; i += WORKGROUP) {
        let row = statistics_of(first + i / parameters.T, i % parameters.T, n);
        // Rows that keep no key, and those past the query length, have no delta.
        if (row.delta != 0.0) {
%% if NATURAL
            sum -= exp2(((sink - row.top) - row.rest) * LOG2_E) * row.delta;
%% else
            sum -= decay(sink, row.top) * row.delta;
%% endif
        }
    }
    shares[thread] = sum;
{% include "attention/backward/join_shares.wgsl" %}
    if (thread == 0u) {
        grad_sinks[parameters.result_at + index] = shares[0];
    }
}
