"""Slots and order, on steps that are copies between values: nothing that is still needed is written over."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from wgattn._kernels.kernel import Binding, Bytes, Copy, Launch, Parameters, Texture, Variant
from wgattn._schedule.lifetimes import assign_slots
from wgattn._schedule.order import gather_copies
from wgattn._schedule.values import Step, Value

BINDINGS = (Binding("a", "read", "f32"), Binding("b", "read", "f32"), Binding("c", "write", "f32"))
KERNEL = Variant("k", "k", "k.wgsl", (), BINDINGS, Parameters(()))


def launch(a: int, b: int, c: int) -> Step:
    resources = {name: Bytes(name) for name in "abc"}
    return Step(Launch(KERNEL, resources, b"", (1, 1, 1)), {"a": a, "b": b, "c": c})


def copy(source: int, destination: int, nbytes: int = 16) -> Step:
    return Step(Copy(Bytes("source", 0, nbytes), "result", 0), {"source": source, "result": destination})


@st.composite
def programs(draw: st.DrawFn):
    """Inputs 0 to 2, then a value a step, made of earlier ones; which are outputs, and which inputs are donated.

    Some steps write over a part of what an earlier one made, or of a donated input, where it lies.
    """
    sizes = st.sampled_from([16, 32, 64, 80])
    values = [Value(size := draw(sizes), argument=n, reusable=size) for n in range(3)]
    steps, donated = [], draw(st.sets(st.integers(0, 2)))
    for _ in range(draw(st.integers(1, 12))):
        a, b = (draw(st.integers(0, len(values) - 1)) for _ in range(2))
        over = [n for n in range(len(values)) if n not in (a, b) and (n > 2 or n in donated)]
        if over and draw(st.booleans()):
            steps.append(launch(a, b, draw(st.sampled_from(over))))
            continue
        steps.append(draw(st.sampled_from([launch(a, b, len(values)), copy(a, len(values))])))
        values.append(Value(draw(sizes)))
    outputs = draw(st.sets(st.integers(0, len(values) - 1), min_size=1, max_size=3))
    return values, steps, sorted(outputs), donated


def run(steps: list[Step], place=lambda number: number) -> dict[int, object]:
    """What lies at each place in the end: a step's result is named by its value and by what it read, a launch's over
    the same value by what was there too."""
    held: dict[int, object] = {place(n): n for n in range(3)}
    made = set(range(3))
    for step in steps:
        read = tuple(held[place(value)] for value, how in step.uses() if how == "read")
        for value, how in step.uses():
            if how == "write":
                held[place(value)] = (value, read, held[place(value)] if value in made else None)
                made.add(value)
    return held


@given(programs())
def test_slots_are_shared_by_values_that_never_meet(program):
    values, steps, outputs, donated = program
    slots = assign_slots(values, steps, outputs, donated)
    plain, shared = run(steps), run(steps, lambda number: slots.of[number])
    for number in outputs:
        assert shared[slots.of[number]] == plain[number]
    for number in set(range(3)) - donated:
        assert shared[slots.of[number]] == number
    for step in steps:
        places = Counter(slots.of[value] for value, how in set(step.uses()) if how == "write")
        assert not set(places) & {slots.of[value] for value, how in step.uses() if how == "read"}
    for number, value in enumerate(values):
        if slots.of[number] is not None:
            assert slots.sizes[slots.of[number]] >= value.nbytes
    assert [slots.sizes[slots.of[n]] for n in range(3)] == [value.nbytes for value in values[:3]]


@given(programs())
def test_copies_that_move_read_what_they_read(program):
    _, steps, _, _ = program
    moved = gather_copies(steps)
    assert sorted(map(id, moved)) == sorted(map(id, steps))
    assert run(moved) == run(steps)


def test_a_chain_of_any_length_needs_two_scratch_slots():
    values = [Value(64, argument=0)] + [Value(64) for _ in range(9)]
    steps = [launch(n, n, n + 1) for n in range(9)]
    assert len(assign_slots(values, steps, [9], ()).sizes) == 3


def test_a_slot_grows_for_scratch_and_never_for_an_output():
    values = [Value(64, argument=0), Value(64), Value(64), Value(128), Value(64)]
    steps = [launch(0, 0, 1), launch(1, 1, 2), launch(2, 2, 3), launch(3, 3, 4)]
    slots = assign_slots(values, steps, [4], ())
    assert slots.sizes == [64, 128, 64]
    slots = assign_slots([*values[:4], Value(128)], steps, [3, 4], ())
    assert sorted(slots.sizes) == [64, 64, 64, 128, 128]


def test_a_donated_input_gives_no_more_than_the_caller_has():
    steps = [launch(0, 0, 1), launch(1, 1, 2)]
    values = [Value(48, argument=0, reusable=32), Value(16), Value(48)]
    assert len(assign_slots(values, steps, [2], {0}).sizes) == 3
    values = [Value(48, argument=0, reusable=48), Value(16), Value(48)]
    assert assign_slots(values, steps, [2], {0}).of == [0, 1, 0]


def test_textures_share_only_with_their_like():
    wide, high = Texture(8, 4, "rgba32float"), Texture(4, 8, "rgba32float")
    values = [Value(64, argument=0), Value(0, texture=wide), Value(0, texture=high), Value(0, texture=wide)]
    steps = [copy(0, 1), copy(0, 2), copy(0, 3)]
    slots = assign_slots(values, steps, [], ())
    assert slots.of[1] == slots.of[3] != slots.of[2]


def test_small_copies_stand_together_before_the_dispatches():
    steps = [copy(0, 3), launch(0, 3, 4), copy(1, 5), launch(4, 5, 6), copy(6, 7), launch(7, 6, 8), copy(0, 9, 1 << 20)]
    ordered = gather_copies(steps)
    kinds = "".join("c" if isinstance(step.planned, Copy) else "d" for step in ordered)
    assert kinds == "ccddcdc"
    assert ordered[1] is steps[2]
