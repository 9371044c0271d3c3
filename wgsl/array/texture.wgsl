{% include "shared/prelude.wgsl" %}
{% import "shared/elements.wgsl" as elements %}
{% import "shared/rotations.wgsl" as rotations %}
{% import "shared/ring.wgsl" as ring %}

// Buffer to texture: an invocation gathers one texel, 16 bytes of a head's row; zeros past the row's end. Rows of a
// cache may be found by a table of pages, and those past a sequence's length are left out.
%% if stored and rope is none
// The word of bytes `first` to `first` + 3 of a row that starts at byte `row`; zero past its end.
fn word_source(row: u32, first: u32) -> u32 {
    let left = parameters.H - min(first, parameters.H);
    if (left == 0u) {
        return 0u;
    }
%% if quads
    return source[(row + first) / 4u] & select((1u << (8u * min(left, 3u))) - 1u, 0xffffffffu, left >= 4u);
%% else
    // From the words of its first and its last byte, which may be one.
    let shift = 8u * ((row + first) % 4u);
    let low = source[(row + first) / 4u] >> shift;
    let high = select(source[(row + first + min(left, 4u) - 1u) / 4u] << (32u - shift), 0u, shift == 0u);
    return (low | high) & select((1u << (8u * min(left, 3u))) - 1u, 0xffffffffu, left >= 4u);
%% endif
}

%% elif stored
{{ elements.unpack_four(dtype) }}

%% if dtype != "u8"
{{ elements.element_reader("source", dtype, quads) }}

%% endif
{% set live = "2u * parameters.H" if dtype == "u8" else "parameters.H" %}
{{ elements.row_reader("source", dtype, quads, live, exact, "raw" if scales else "load") }}

%% if scales
// Where a row starts, and its scales: one for all, or of int4 one for 32 values.
struct StoredRow {
    at: u32,
    scales: u32,
}

fn load_source(row: StoredRow, chunk: u32) -> vec4f {
    return scales[row.scales{{ " + chunk / 8u" if dtype == "u8" }}] * raw_source(row.at, chunk);
}

%% endif
%% else
{{ elements.unpack_pair(dtype) }}
{{ elements.element_reader("source", dtype, quads) }}

{{ elements.row_reader("source", dtype, quads, "parameters.H", exact) }}
%% if texel != "f32"
{{ elements.pack_pair(texel) }}
%% endif
%% endif
%% if rope is not none
{{ rotations.rotation() }}
{{ rotations.rotated_reader("source", rope, "StoredRow" if scales else "u32") }}
%% endif
%% if wraps
{{ ring.position() }}

%% endif
{# One of the small run-time arrays of a batch entry. #}
{% macro row(name) -%}
rows[parameters.{{ name }}_at + b0 * parameters.{{ name }}_b0 + b1 * parameters.{{ name }}_b1
{%- endmacro %}

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
%% if "lengths" in rows_read

    let length = bitcast<i32>({{ row("lengths") }}]);
    if (i32(parameters.first + token) >= length) {
        return;
    }
%% endif
%% if "pages" in rows_read

    // What lies in other parts of the pool is gathered by other launches. Every page that is named is one of the
    // pool's.
    let key = parameters.first + token;
    let page = min({{ row("pages") }} + (key >> parameters.page_bits)], parameters.page_last);
    let slot = (page << parameters.page_bits) + (key & ((1u << parameters.page_bits) - 1u)) - parameters.part_first;
    if (slot >= parameters.part_tokens) {
        return;
    }
%% else
    let slot = token;
%% endif

    let {{ "at" if scales else "row" }} = parameters.source_at + b0 * parameters.source_b0 + b1 * parameters.source_b1
        + slot * parameters.source_t + head * parameters.source_h;
%% if scales
    let scales_at = parameters.scales_at + b0 * parameters.scales_b0 + b1 * parameters.scales_b1 + slot * parameters.scales_t
        + head * parameters.scales_h;
    let row = StoredRow(at, scales_at);
%% endif
    let to = parameters.row_first + b0 * parameters.row_b0 + b1 * parameters.row_b1 + token;
    let x = (to >> FOLD) * parameters.block_width + (parameters.head_first + head) * parameters.head_width + column;
    let place = vec2u(x, to & ((1u << FOLD) - 1u));
%% if rope is not none
%% if wraps
    let position = ring_position(i32(parameters.first + token), length, parameters.slots, parameters.pinned);
%% elif "offset" in rows_read
    let moved = bitcast<i32>({{ row("offset") }}]);
    let position = i32(parameters.first + token) + clamp(moved, -{{ far }}, {{ far }});
%% else
    let position = i32(parameters.first + token);
%% endif
{% set load = "load_source_rotated(row, %s, position)" %}
%% else
{% set load = "load_source(row, %s)" %}
%% endif
%% if stored and rope is none
    let first = 16u * column;
    let low = vec2u(word_source(row, first), word_source(row, first + 4u));
    let high = vec2u(word_source(row, first + 8u), word_source(row, first + 12u));
    textureStore(texels, place, vec4u(low, high));
%% elif texel == "f32"
    textureStore(texels, place, {{ load | format("column") }});
%% else
    let low = {{ load | format("2u * column") }};
    let high = {{ load | format("2u * column + 1u") }};
    let low_words = vec2u(pack_{{ texel }}(low.xy), pack_{{ texel }}(low.zw));
    let high_words = vec2u(pack_{{ texel }}(high.xy), pack_{{ texel }}(high.zw));
    textureStore(texels, place, vec4u(low_words, high_words));
%% endif
}
