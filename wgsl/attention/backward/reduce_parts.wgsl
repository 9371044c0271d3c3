{% include "shared/prelude.wgsl" %}
{% import "shared/elements.wgsl" as elements %}
%% if result_name != "f32"
{{ elements.pack_pair(result_name) }}
%% endif

// Reduce parts: each element's partial sums added up in their order, times a factor, cast. A thread owns a word of the
// result.

fn element_sum(element: u32) -> f32 {
    var sum = 0.0;
    for (var part = 0u; part < parameters.parts; part++) {
        sum += partial[part * parameters.elements + element];
    }
    return sum * parameters.factor;
}

@compute @workgroup_size(WORKGROUP)
fn reduce_parts(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    let word = folded_index(workgroup, workgroups) * WORKGROUP + thread;
%% if result_name == "f32"
    if (word < parameters.elements) {
        result[parameters.result_at + word] = element_sum(word);
    }
%% else
    if (2u * word < parameters.elements) {
        var second = 0.0;
        if (2u * word + 1u < parameters.elements) {
            second = element_sum(2u * word + 1u);
        }
        result[parameters.result_at / 2u + word] = pack_{{ result_name }}(vec2f(element_sum(2u * word), second));
    }
%% endif
}
