{% include "shared/prelude.wgsl" %}
{% import "array/elements.wgsl" as elements %}
{% import "shared/rotations.wgsl" as rotations %}

// Rotary position embedding, {{ style }}: an element is rotated with its partner by the angle of its row's position.
{{ elements.load("x", inputs[0][1]) }}
{{ elements.cast("cast_result", "f32", result_dtype) }}
{{ elements.store(result_dtype) }}

{{ rotations.rotation("PAIRS") }}
fn element({% for view in views %}{{ view }}_at: u32{{ ", " if not loop.last }}{% endfor %}) -> u32 {
    let own = load_x(x_at);
    if (place_at >= PAIRS * 2u) { return encode(cast_result(own)); }
%% if style == "half"
    let second = place_at >= PAIRS;
    let pair = select(place_at, place_at - PAIRS, second);
%% else
    let second = (place_at & 1u) == 1u;
    let pair = place_at >> 1u;
%% endif
    let partner = load_x(select(x_at + parameters.pair_step, x_at - parameters.pair_step, second));
%% if where == "positions"
    let position = positions[positions_at];
%% elif where == "offset"
    let position = time_at + offset[offset_at];
%% else
    let position = time_at;
%% endif
    let turn = rotation(bitcast<i32>(position), pair);
    let sine = select({{ "turn.y, -turn.y" if inverse else "-turn.y, turn.y" }}, second);
    return encode(cast_result(own * turn.x + partner * sine));
}
{% include "array/pointwise.wgsl" %}
