{#
The frame of a pointwise kernel, included after `fn element(…) -> u32`, which takes an address for each view and gives
the bits of one element. An invocation owns one word of the result: outer axes come from its index, inner axes from the
element's place in its row.
#}
{% import "array/elements.wgsl" as elements %}
{% set bits = elements.bits(result_dtype) | int %}
{% set each = 32 // bits %}
{% macro arguments() %}{% for view in views %}{{ view }}_at{{ ", " if not loop.last }}{% endfor %}{% endmacro %}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    let invocation = folded_index(workgroup, workgroups) * WORKGROUP + thread;
    if (invocation >= parameters.invocations) { return; }
    var rest = invocation;
%% if each > 1
    let word = rest % parameters.row_words;
    rest = rest / parameters.row_words;
%% endif
    var row = parameters.result_offset;
%% for view in views
    var {{ view }}_row = parameters.{{ view }}_offset;
%% endfor
%% for axis in range(outer - 1, -1, -1)
    let index{{ axis }} = {{ "rest" if axis == 0 else "rest % parameters.size" ~ axis }};
%% if axis > 0
    rest = rest / parameters.size{{ axis }};
%% endif
    row = row + index{{ axis }} * parameters.result_stride{{ axis }};
%% for view in views
    {{ view }}_row = {{ view }}_row + index{{ axis }} * parameters.{{ view }}_stride{{ axis }};
%% endfor
%% endfor
%% if each == 1
%% for view in views
    let {{ view }}_at = {{ view }}_row;
%% endfor
    result[row] = element({{ arguments() }});
%% else
    let place = row + word;
    var found = 0u;
    var filled = 0u;
%% for lane in range(each)
    {
        let along = word * {{ each }}u + {{ lane }}u - parameters.shift; // wraps before the first element
        var left = along;
        var inside = along < parameters.extent;
%% for view in views
        var {{ view }}_at = {{ view }}_row;
%% endfor
%% for axis in range(outer, rank)
%% if axis == rank - 1
        let index{{ axis }} = left;
%% else
        let index{{ axis }} = left / parameters.result_stride{{ axis }};
        left = left % parameters.result_stride{{ axis }};
%% endif
        inside = inside && index{{ axis }} < parameters.size{{ axis }};
%% for view in views
        {{ view }}_at = {{ view }}_at + index{{ axis }} * parameters.{{ view }}_stride{{ axis }};
%% endfor
%% endfor
        if (inside) {
            found = found | (element({{ arguments() }}) << {{ lane * bits }}u);
            filled = filled | {{ "0x%xu" % ((2 ** bits - 1) * 2 ** (lane * bits)) }};
        }
    }
%% endfor
    if (filled == 0u) { return; }
    if (filled != 0xffffffffu) { found = found | (result[place] & ~filled); }
    result[place] = found;
%% endif
}
