{% include "shared/prelude.wgsl" %}
{% import "shared/elements.wgsl" as elements %}

// Partial results over separate keys become one: a thread owns four elements of a row, and reads them of every part.
{% include "shared/bases.wgsl" %}
const LOWEST: f32 = -3.4028234663852886e38;
const MINUS_INFINITY: u32 = 0xff800000u;

%% for dtype in names_16_bit
{{ elements.unpack_pair(dtype) }}
%% endfor
%% if result_dtype != "f32"
{{ elements.pack_pair(result_dtype) }}
%% endif
{{ elements.element_reader("outputs", dtype, quads) }}

{{ elements.row_reader("outputs", dtype, quads, "parameters.Hv", exact) }}
%% if carries
{{ elements.element_reader("carry", "f32", true) }}

{{ elements.row_reader("carry", "f32", true, "parameters.Hv", true) }}
%% endif

{{ elements.row_writer("out", result_dtype, result_quads, "parameters.Hv") }}

// Whether a part's row keeps a key, by its residual's bits: no arithmetic sees an infinity. EMPTY_… are the patterns of
// the residual of a row of dot_product_attention that keeps none.
fn keeps_keys(bits: u32) -> bool {
    return bits != MINUS_INFINITY && bits - EMPTY_FIRST >= EMPTY_COUNT;
}

fn share_of(bits: u32, top: f32) -> f32 {
    return exp2((bitcast<f32>(bits) - top) * LOG2_E);
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded_index(workgroup, workgroups) * WORKGROUP + thread;
    if (index >= parameters.threads) {
        return;
    }
    let chunk = index % parameters.chunks;
    var rest = index / parameters.chunks;
%% for view in views
    var {{ view }}_at = parameters.{{ view }}_offset;
%% endfor
%% for axis in range(rank - 1, -1, -1)
    let index{{ axis }} = {{ "rest" if axis == 0 else "rest % parameters.size" ~ axis }};
%% if axis > 0
    rest = rest / parameters.size{{ axis }};
%% endif
%% for view in views
    {{ view }}_at += index{{ axis }} * parameters.{{ view }}_stride{{ axis }};
%% endfor
%% endfor

    var top = LOWEST;
    for (var part = 0u; part < parameters.parts; part++) {
        let bits = residuals[residuals_at + part * parameters.residuals_part];
        if (keeps_keys(bits)) {
            top = max(top, bitcast<f32>(bits));
        }
    }
%% if carries
    let carried = carry_residual[carry_residual_at];
    if (keeps_keys(carried)) {
        top = max(top, bitcast<f32>(carried));
    }
%% endif
%% if sinks
    let sink = sinks[sinks_at];
    if (sink != MINUS_INFINITY) {
        top = max(top, bitcast<f32>(sink));
    }
%% endif

    // What keeps no key is not read: it may hold anything.
    var total = 0.0;
    var sum = vec4f();
    for (var part = 0u; part < parameters.parts; part++) {
        let bits = residuals[residuals_at + part * parameters.residuals_part];
        if (keeps_keys(bits)) {
            let share = share_of(bits, top);
            total += share;
            sum += share * load_outputs(outputs_at + part * parameters.outputs_part, chunk);
        }
    }
%% if carries
    if (keeps_keys(carried)) {
        let share = share_of(carried, top);
        total += share;
        sum += share * load_carry(carry_at, chunk);
    }
%% endif
%% if sinks
    if (sink != MINUS_INFINITY) {
        total += share_of(sink, top);
    }
%% endif
    let none = total == 0.0;
    store_out(out_at, chunk, sum / select(total, 1.0, none));
    if (chunk == 0u) {
        residual[residual_at] = select(bitcast<u32>(top + log(select(total, 1.0, none))), MINUS_INFINITY, none);
    }
}
