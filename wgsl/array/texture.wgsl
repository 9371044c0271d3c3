{% include "shared/prelude.wgsl" %}
{% import "shared/elements.wgsl" as elements %}
{% import "shared/rotations.wgsl" as rotations %}

// Buffer to texture: an invocation gathers one texel, four elements of a head's row or eight 16-bit ones; zeros past the row's end.
{{ elements.unpack_pair(dtype) }}
{{ elements.element_reader("source", dtype, quads) }}

{{ elements.row_reader("source", dtype, quads, "parameters.H", exact) }}
%% if texel != "f32"
{{ elements.pack_pair(texel) }}
%% endif
%% if rope is not none
{{ rotations.rotation() }}
{{ rotations.rotated_reader("source", rope) }}
%% endif

@compute @workgroup_size(WORKGROUP)
fn texture(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    var index = folded_index(workgroup, workgroups) * WORKGROUP + thread;
    if (index >= parameters.count) {
        return;
    }
    let column = index % parameters.head_width;
    index /= parameters.head_width;
    let head = index % parameters.heads;
    index /= parameters.heads;
    let token = index % parameters.tokens;
    index /= parameters.tokens;
    let b1 = index % parameters.B1;
    let b0 = index / parameters.B1;

    let row = parameters.source_at + b0 * parameters.source_b0 + b1 * parameters.source_b1
        + token * parameters.source_t + head * parameters.source_h;
    let to = parameters.row_first + b0 * parameters.row_b0 + b1 * parameters.row_b1 + token;
    let x = (to >> FOLD) * parameters.block_width + (parameters.head_first + head) * parameters.head_width + column;
    let place = vec2u(x, to & ((1u << FOLD) - 1u));
%% if rope is not none
%% if offset
    let moved = bitcast<i32>(offset[parameters.offset_at + b0 * parameters.offset_b0 + b1 * parameters.offset_b1]);
    let position = parameters.position + i32(token) + clamp(moved, -1073741824, 1073741824);
%% else
    let position = parameters.position + i32(token);
%% endif
{% set load = "load_source_rotated(row, %s, position)" %}
%% else
{% set load = "load_source(row, %s)" %}
%% endif
%% if texel == "f32"
    textureStore(texels, place, {{ load | format("column") }});
%% else
    let low = {{ load | format("2u * column") }};
    let high = {{ load | format("2u * column + 1u") }};
    let low_words = vec2u(pack_{{ texel }}(low.xy), pack_{{ texel }}(low.zw));
    let high_words = vec2u(pack_{{ texel }}(high.xy), pack_{{ texel }}(high.zw));
    textureStore(texels, place, vec4u(low_words, high_words));
%% endif
}
