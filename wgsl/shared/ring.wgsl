{# A macro: where what lies in a slot of a ring stands. #}
{% macro position() -%}
// The position of what lies in slot s of a ring that has taken `length` tokens: the first `pinned` slots keep theirs,
// the others are filled in turn, and hold the last that came. Asked only of slots that hold something.
fn ring_position(s: i32, length: i32, slots: i32, pinned: i32) -> i32 {
    let turn = max(slots - pinned, 1);
    return select(s + max(length - 1 - s, 0) / turn * turn, s, s < pinned);
}
{%- endmacro %}
