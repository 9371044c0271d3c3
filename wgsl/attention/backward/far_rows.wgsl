{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}

// Far rows: where a bias pushes all of a row's logits far from 0, float32 cannot hold its residual to the precision
// that weights need (at 1e38 it cannot even hold the logarithm of how many keys there are). Such rows are added up once
// more, and keep the highest logit and the rest apart. A thread owns a row; few rows are far. Ranges of keys come one
// after another: each adds to what the ones before it left.

@compute @workgroup_size(WORKGROUP)
fn far_rows(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    var index = folded_index(workgroup, workgroups) * WORKGROUP + thread;
    let n = index % parameters.N;
    index /= parameters.N;
    let t = index % parameters.T;
    let b = index / parameters.T;
    if (b >= parameters.batch) {
        return;
    }
    let row = row_of(b, t, n);
    let at = parameters.statistics_at + row * STATISTICS;
    if (abs(residual[row]) < FAR_RESIDUAL || no_key(residual[row])) {
        return;
    }
    let k = key_head(n);
    let of_query = query_row(b, t, n);
    let kept = kept_keys(b, t);
    let keys = block_keys(b, t, t, parameters.key_first, parameters.key_end);
    var top = MASKED;
    var total = 0.0;
    if (parameters.add != 0u) {
        top = bitcast<f32>(rows[at]);
        total = bitcast<f32>(rows[at + 2u]);
    }
    for (var s = keys.x; s < keys.y; s++) {
        let of_key = key_row(b, s - parameters.key_first, k);
        var sum = vec4f();
        for (var chunk = 0u; chunk < HEAD_DIM / 4u; chunk++) {
            sum += load_query(of_query, chunk) * load_key(of_key, chunk);
        }
        let x = logit(((sum.x + sum.y) + (sum.z + sum.w)) * query_scale(b), b, n, t, s, kept);
        if (x != MASKED) {
            let high = max(top, x);
            total = total * decay(top, high) + decay(x, high);
            top = high;
        }
    }
    if (parameters.key_end == parameters.S) {
%% if problem.sinks
        let sink = bitcast<f32>(row_sinks(b, parameters.n_first + n));
        let high = max(top, sink);
        total = total * decay(top, high) + decay(sink, high);
        top = high;
%% endif
        total = log(total);
    }
    rows[at] = bitcast<u32>(top);
    rows[at + 2u] = bitcast<u32>(total);
}
