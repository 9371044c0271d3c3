{% include "shared/prelude.wgsl" %}

// Moves whole entries of storage, a thread a word. {{ "A launch sees some of the entries." if how == "take" }}
@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded_index(workgroup, workgroups) * WORKGROUP + thread;
    let m = index / parameters.span;
    let word = index % parameters.span;
    if (m >= parameters.moved) { return; }
%% if how == "take"
    let entry = u32(clamp(source[parameters.source_at + m], 0, i32(parameters.entries) - 1)) - parameters.first_taken;
    if (entry >= parameters.taken) { return; }
    result[parameters.result_at + m * parameters.words + word] = cache[parameters.cache_at + entry * parameters.words + word];
%% else
    let from_entry = source[parameters.source_at + m];
    let to_entry = destination[parameters.destination_at + m];
    let entries = i32(parameters.entries);
    if (min(from_entry, to_entry) < 0 || max(from_entry, to_entry) >= entries) { return; }
    let word_at = parameters.cache_at + word;
    cache[word_at + u32(to_entry) * parameters.words] = cache[word_at + u32(from_entry) * parameters.words];
%% endif
}
