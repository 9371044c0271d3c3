{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% import "shared/elements.wgsl" as elements %}
{% import "shared/rotations.wgsl" as rotations %}
%% if source_name != "f32"
{{ elements.unpack_pair(source_name) }}
%% endif
{{ elements.element_reader("source", source_name, source_quads) }}

{{ elements.row_reader("source", source_name, source_quads, "parameters.width", source_exact) }}

%% if turned_as != ""
{{ rotations.rotation() }}
{{ rotations.rotated_reader("source", turned_as) }}
%% endif
%% if destination_name != "f32"
{{ elements.pack_pair(destination_name) }}
%% endif
{{ elements.row_writer("destination", destination_name, destination_quads, "parameters.width") }}

// Rows of heads from one array to another: rotated (back again where `way` is -1), scaled and cast. A thread owns four
// elements.

@compute @workgroup_size(WORKGROUP)
fn rows_of_heads(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    var index = folded_index(workgroup, workgroups) * WORKGROUP + thread;
    let chunk = index % CHUNKS;
    index /= CHUNKS;
    let head = index % parameters.heads;
    index /= parameters.heads;
    let i = index % parameters.length;
    let b = index / parameters.length;
    if (b >= parameters.batch) {
        return;
    }
    let b0 = b / parameters.B1;
    let b1 = b % parameters.B1;
    let from_row = parameters.source_at + b0 * parameters.source_b0 + b1 * parameters.source_b1
        + i * parameters.source_i + head * parameters.source_head;
    let to_row = parameters.destination_at + b0 * parameters.destination_b0 + b1 * parameters.destination_b1
        + i * parameters.destination_i + head * parameters.destination_head;
%% if turned_as != ""
%% if BY_QUERY
    let position = position_of(b, i);
%% else
    let position = i32(parameters.key_first + i);
%% endif
    var four = load_source_rotated(from_row, chunk, parameters.way * position);
%% else
    var four = load_source(from_row, chunk);
%% endif
    four *= query_scale(b);
%% if WITH_MEAN
    four += mean[(b * parameters.heads + head) * MEAN_CHUNKS + chunk] / f32(parameters.S);
%% endif
    store_destination(to_row, chunk, four);
}
