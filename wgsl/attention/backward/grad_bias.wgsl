{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% include "attention/backward/gradients.wgsl" %}
{% include "attention/backward/share_of_rows.wgsl" %}

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

{% macro place(of) %}
fn {{ of }}_place(index: u32) -> Place {
    var left = index;
    let s = left % parameters.{{ of }}_s;
    left /= parameters.{{ of }}_s;
    let t = left % parameters.{{ of }}_t;
    left /= parameters.{{ of }}_t;
    let n = left % parameters.{{ of }}_n;
    left /= parameters.{{ of }}_n;
    return Place(left / parameters.{{ of }}_b1, left % parameters.{{ of }}_b1, n, t, s);
}

{% endmacro %}
{{ place("own") }}
{{ place("over") }}
fn by_logit(b: u32, n: u32, t: u32, s: u32) -> f32 {
    let kept = kept_keys(b, t);
    if (!in_range(kept, i32(s))) {
        return 0.0;
    }
    let k = key_head(n);
    let of_query = query_row(b, t, n);
    let of_key = key_row(b, s - parameters.key_first, k);
    let of_grad = grad_out_row(b, t, n);
    let of_value = value_row(b, s - parameters.key_first, k);
    return share_of_rows(of_query, of_grad, of_key, of_value, b, n, t, s, kept, statistics_of(b, t, n)).logit;
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
{% include "attention/backward/join_shares.wgsl" %}
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
