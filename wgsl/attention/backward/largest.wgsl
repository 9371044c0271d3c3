{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% include "attention/backward/gradients.wgsl" %}

// Largest: the largest elements of V and of grad_out, which bound every gradient by a weight. A workgroup owns one of
// LARGEST_PARTS parts of a key/value head's. Compared by bits, so that the order does not matter; NaN and infinity are
// passed over, since what they reach is lost anyway.

const LARGEST_FLOAT16: u32 = 0x477fe000u;

// WORKGROUP · 4 bytes
var<workgroup> found: array<u32, WORKGROUP>;

fn larger(most: u32, four: vec4f) -> u32 {
    var made = most;
    let bits = bitcast<vec4u>(abs(four));
    for (var i = 0u; i < 4u; i++) {
        made = max(made, select(0u, bits[i], bits[i] <= LARGEST_FLOAT16));
    }
    return made;
}

// The largest of all threads, in the first.
fn joined(thread: u32, most: u32) -> u32 {
    workgroupBarrier();
    found[thread] = most;
    for (var half = WORKGROUP / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) {
            found[thread] = max(found[thread], found[thread + half]);
        }
    }
    return found[0];
}

@compute @workgroup_size(WORKGROUP)
fn largest(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    var index = folded_index(workgroup, workgroups);
    let part = index % LARGEST_PARTS;
    index /= LARGEST_PARTS;
    let heads = key_heads();
    let k = index % heads;
    let b = index / heads;
    if (b >= parameters.batch) {
        return;
    }
    let chunks = VALUE_DIM / 4u;
    let first = part * WORKGROUP + thread;
    var of_value = 0u;
    let key_end = min(u32(key_length(b)), parameters.key_end);
    for (var i = first; parameters.key_first + i / chunks < key_end; i += LARGEST_PARTS * WORKGROUP) {
        of_value = larger(of_value, load_value(value_row(b, i / chunks, k), i % chunks));
    }
    var of_grad_out = 0u;
    let sharing = sharing_heads();
    let live = clamp(query_length(b), parameters.t_first, parameters.t_first + parameters.T) - parameters.t_first;
    for (var i = first; i / chunks < live * sharing; i += LARGEST_PARTS * WORKGROUP) {
        let row = i / chunks;
        of_grad_out = larger(of_grad_out, load_grad_out(grad_out_row(b, row / sharing, k * sharing + row % sharing), i % chunks));
    }
    of_value = joined(thread, of_value);
    of_grad_out = joined(thread, of_grad_out);
    if (thread == 0u) {
        let head = batch_of(b) * (parameters.N_all / parameters.G) + parameters.k_first + k;
        let at = parameters.largest_at + 2u * (LARGEST_PARTS * head + part);
        if (parameters.add != 0u) {
            of_value = max(of_value, rows[at]);
            of_grad_out = max(of_grad_out, rows[at + 1u]);
        }
        rows[at] = of_value;
        rows[at + 1u] = of_grad_out;
    }
}
