{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}

// Merge: the parts of a row, each with its own running maximum, become one row. A thread owns one chunk of four elements.

@compute @workgroup_size(WORKGROUP)
fn merge(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    var index = folded_index(workgroup, workgroups) * WORKGROUP + thread;
    let chunk = index % CHUNKS;
    index /= CHUNKS;
    let n = index % parameters.N;
    index /= parameters.N;
    let t = index % parameters.T;
    let b = index / parameters.T;
    if (b >= parameters.batch) {
        return;
    }

    let stride = parameters.batch * parameters.T * parameters.N * (CHUNKS + 1u);
    let at = ((b * parameters.T + t) * parameters.N + n) * (CHUNKS + 1u);
    var top = MASKED;
    for (var part = 0u; part < parameters.parts; part++) {
        top = max(top, partial[part * stride + at + CHUNKS].x);
    }
    var total = 0.0;
    var sum = vec4f();
    var unweighted = vec4f();
    for (var part = 0u; part < parameters.parts; part++) {
        let ends = partial[part * stride + at + CHUNKS];
        let share = decay(ends.x, top);
        let four = partial[part * stride + at + chunk];
        // A part with no kept key may hold its share of the plain sum of V: it belongs to the mean alone.
        if (ends.y == 0.0) {
            unweighted += four;
        } else {
            total += share * ends.y;
            sum += share * four;
        }
    }

    let end = row_end(top, total, b, t, n);
    var four = sum * end.factor;
    if (end.zero) {
        four = vec4f();
    }
    if (end.empty) {
        four = unweighted / f32(parameters.S);
    }
    store_out(out_row(b, t, n), chunk, four);
%% if problem.residual is not none
    if (chunk == 0u) {
        residual[row_of(b, t, n)] = residual_bits(end);
    }
%% endif
}
