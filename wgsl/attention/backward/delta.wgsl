{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% include "attention/backward/gradients.wgsl" %}
{% import "shared/elements.wgsl" as elements %}
%% if saved_name not in names_16_bit and saved_name not in ("f32", out_name)
{{ elements.unpack_pair(saved_name) }}
%% endif
{{ elements.element_reader("out", saved_name, saved_quads) }}

{{ elements.row_reader("out", saved_name, saved_quads, "parameters.Hv", problem.exact_dims) }}

// Delta: a row's statistics, its residual in the base of the logits and grad_out · out. LANES threads add up a row.

// WORKGROUP · 4 bytes
var<workgroup> shares: array<f32, WORKGROUP>;

fn saved_row(b: u32, t: u32, n: u32) -> u32 {
    return parameters.out_at + (b / parameters.B1) * parameters.out_b0 + (b % parameters.B1) * parameters.out_b1
        + t * parameters.out_t + n * parameters.out_n;
}

@compute @workgroup_size(WORKGROUP)
fn delta(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    let lane = thread % LANES;
    var index = folded_index(workgroup, workgroups) * (WORKGROUP / LANES) + thread / LANES;
    let there = index < parameters.batch * parameters.T * parameters.N;
    let n = index % parameters.N;
    index /= parameters.N;
    let t = index % parameters.T;
    let b = index / parameters.T;

    var sum = vec4f();
    var live = false;
    if (there) {
        live = is_live(b, t);
        if (live) {
            let of_grad = grad_out_row(b, t, n);
            let of_out = saved_row(b, t, n);
            for (var chunk = lane; chunk < VALUE_DIM / 4u; chunk += LANES) {
                sum += load_grad_out(of_grad, chunk) * load_out(of_out, chunk);
            }
        }
    }
    shares[thread] = (sum.x + sum.y) + (sum.z + sum.w);
    workgroupBarrier();
    if (!there || lane != 0u) {
        return;
    }
    var total = 0.0;
    for (var i = 0u; i < LANES; i++) {
        total += shares[thread + i];
    }
    let row = row_of(b, t, n);
    // A row that keeps no key has no weights: the mean of V that it is given is dealt with apart.
    var top = residual[row];
    if (!live || no_key(top)) {
        top = 0.0;
        total = 0.0;
    }
    let at = parameters.statistics_at + row * STATISTICS;
%% if NATURAL
    rows[at] = bitcast<u32>(top);
    rows[at + 2u] = 0u;
%% else
    rows[at] = bitcast<u32>(top * LOG2_E);
%% endif
    rows[at + 1u] = bitcast<u32>(total);
}
