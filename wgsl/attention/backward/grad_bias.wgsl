{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% include "attention/backward/gradients.wgsl" %}

// Bias: LANES threads own one element of the bias, and add up the gradient by its logit over the axes on which it was
// broadcast. Of each axis the bias owns either all indices (own_…) or one, and then the sum runs over them (over_…). A
// part of the sum is written at a time.

// WORKGROUP · 4 bytes
var<workgroup> shares: array<f32, WORKGROUP>;

struct Place {
    b0: u32,
    b1: u32,
    n: u32,
    t: u32,
    s: u32,
}

fn own_place(element: u32) -> Place {
    var left = element;
    let s = left % parameters.own_s;
    left /= parameters.own_s;
    let t = left % parameters.own_t;
    left /= parameters.own_t;
    let n = left % parameters.own_n;
    left /= parameters.own_n;
    return Place(left / parameters.own_b1, left % parameters.own_b1, n, t, s);
}

fn over_place(index: u32) -> Place {
    var left = index;
    let s = left % parameters.over_s;
    left /= parameters.over_s;
    let t = left % parameters.over_t;
    left /= parameters.over_t;
    let n = left % parameters.over_n;
    left /= parameters.over_n;
    return Place(left / parameters.over_b1, left % parameters.over_b1, n, t, s);
}

fn sum_of(four: vec4f) -> f32 {
    return (four.x + four.y) + (four.z + four.w);
}

fn by_logit(b: u32, n: u32, t: u32, s: u32) -> f32 {
    let kept = kept_keys(b, t);
    if (!in_range(kept, i32(s))) {
        return 0.0;
    }
    let k = key_head(n);
    let of_query = query_row(b, t, n);
    let of_key = key_row(b, s - parameters.key_first, k);
    var product = vec4f();
    for (var chunk = 0u; chunk < HEAD_DIM / 4u; chunk++) {
        product += load_query(of_query, chunk) * load_key(of_key, chunk);
    }
    let of_grad = grad_out_row(b, t, n);
    let of_value = value_row(b, s - parameters.key_first, k);
    var by_weight = vec4f();
    for (var chunk = 0u; chunk < VALUE_DIM / 4u; chunk++) {
        by_weight += load_grad_out(of_grad, chunk) * load_value(of_value, chunk);
    }
    return share_of(sum_of(product), sum_of(by_weight), b, n, t, s, kept, statistics_of(b, t, n)).logit;
}

@compute @workgroup_size(WORKGROUP)
fn grad_bias_of_elements(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    let each = WORKGROUP / LANES;
    let groups = (parameters.elements + each - 1u) / each;
    let index = folded_index(workgroup, workgroups);
    let part = index / groups;
    let element = index % groups * each + thread / LANES;
    let there = part < parameters.parts && element < parameters.elements;

    var sum = 0.0;
    let own = own_place(element);
    if (there) {
        let first = part * parameters.part_size;
        let end = min(first + parameters.part_size, parameters.over);
        for (var i = first + thread % LANES; i < end; i += LANES) {
            let over = over_place(i);
            let b = (own.b0 + over.b0) * parameters.B1 + own.b1 + over.b1;
            sum += by_logit(b, own.n + over.n, own.t + over.t, parameters.key_first + own.s + over.s);
        }
    }
%% if LANES > 1
    shares[thread] = sum;
    for (var half = WORKGROUP / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) {
            shares[thread] += shares[thread + half];
        }
    }
    workgroupBarrier();
    sum = shares[0];
%% endif
    if (there && thread % LANES == 0u) {
        let at = parameters.result_at + part * parameters.elements_all + own.b0 * parameters.result_b0 + own.b1 * parameters.result_b1
            + own.n * parameters.result_n + own.t * parameters.result_t + own.s * parameters.result_s;
        if (parameters.add != 0u) {
            sum += partial[at];
        }
        partial[at] = sum;
    }
}
