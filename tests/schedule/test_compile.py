"""What is known of a Schedule without a device."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.graph.recording import Recording
from tests.graph.rewrite.drawn_calls import calls
from wgattn._dtypes import float16, float32, int32
from wgattn._errors import UnsupportedError
from wgattn._graph import operations as op
from wgattn._graph.graph import View
from wgattn._graph.rewrite import fuse
from wgattn._kernels.attention.problem import Call
from wgattn._kernels.kernel import Operand
from wgattn._runtime.check import check_program
from wgattn._runtime.profile import DeviceProfile, Limits
from wgattn._runtime.program import BufferSlot, Dispatch, Program, Range
from wgattn._schedule import compile
from wgattn._schedule.operands import expand, heads, narrow, per_entry

PROFILE = DeviceProfile()


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graph=calls())
def test_programs_keep_every_devices_limits(graph):
    schedule = compile(fuse(graph), PROFILE, frozenset({0}))
    sound(schedule.program)
    assert compile(fuse(graph), PROFILE, frozenset({0})) == schedule


def sound(program: Program) -> None:
    """Within the limits, and no dispatch binds a slot to read and to write."""
    check_program(program, Limits())
    for command in program.commands:
        if isinstance(command, Dispatch):
            ways = zip(command.shader.resources, command.resources, strict=True)
            found = [(way.split()[0], part.slot if isinstance(part, Range) else part) for way, part in ways]
            assert not {s for way, s in found if way == "read"} & {s for way, s in found if way == "write"}


def test_a_result_that_is_read_before_it_is_concatenated_lies_by_itself():
    r = Recording()
    x = r.input(2, 5, 2, 8)
    first = r.attention(x, x, x)
    sound(compile(fuse(r.graph(r.do(op.Concatenate(1), first, r.attention(first, x, first)))), PROFILE).program)


def test_arguments_that_nothing_needs_are_not_asked_for():
    r = Recording()
    used = [r.input(3) for _ in range(3)]
    schedule = compile(fuse(r.graph(r.do(op.Elementwise("add"), used[2], used[0]))), PROFILE)
    assert schedule.arguments == (0, 2)
    assert schedule.program.slots[schedule.program.inputs[0]] == BufferSlot(16)


def test_cost_and_memory():
    r = Recording()
    q, k, v = r.input(2, 10, 4, 8), r.input(2, 20, 2, 8), r.input(2, 20, 2, 16)
    schedule = compile(fuse(r.graph(r.attention(q, k, v))), PROFILE)
    assert schedule.cost.flops == 2 * 2 * 4 * 10 * 20 * (8 + 16)
    assert schedule.cost.nbytes == 4 * 2 * (10 * 4 * 8 + 20 * 2 * (8 + 16) + 10 * 4 * 16)
    assert schedule.memory.inputs == 4 * 2 * (10 * 4 * 8 + 20 * 2 * (8 + 16))
    assert schedule.memory.outputs == 4 * 2 * 10 * 4 * 16
    assert list(schedule.variants) == [schedule.chosen[0].variant.name]


def test_a_named_implementation_that_does_not_serve_raises():
    r = Recording()
    x = r.input(1, 3, 2, 8)
    attention = op.Attention(("query", "key", "value"), Call(), float32, implementation="decode")
    r.do(attention, *[r.input(1, 3, 2, 300)] * 3)
    with pytest.raises(UnsupportedError, match="decode"):
        compile(fuse(r.graph(r.do(attention, *[r.input(1, 300, 2, 8)] * 3), x)), PROFILE)


def test_outputs_that_share_a_buffer_are_one_output_of_the_program():
    r = Recording()
    x = r.multiply(r.input(4, 6), 2.0)
    schedule = compile(fuse(r.graph(x, r.do(op.Transpose((1, 0)), x))), PROFILE)
    assert len(schedule.program.outputs) == 1
    assert [output.view.strides for output in schedule.outputs] == [(6, 1), (1, 6)]


def test_padding_of_half_precision_rows_shows_in_the_view():
    r = Recording()
    schedule = compile(fuse(r.graph(r.attention(*[r.input(1, 3, 2, 5, dtype=float16)] * 3))), PROFILE)
    assert schedule.outputs[0].view == View((1, 3, 2, 5), (36, 12, 6, 1))


def test_batch_axes_of_operands():
    x = Operand(float32, (3, 4, 2, 8), (64, 16, 8, 1))
    assert heads(x, (1, 3)) == Operand(float32, (1, 3, 4, 2, 8), (0, 64, 16, 8, 1))
    assert heads(Operand(float32, (1, 4, 2, 8), (64, 16, 8, 1)), (1, 3)).strides == (0, 0, 16, 8, 1)
    mask = Operand(np.dtype(bool), (4, 1, 7), (7, 7, 1))
    assert expand(mask, (2, 3, 4, 5, 7)) == Operand(np.dtype(bool), (2, 3, 4, 5, 7), (0, 0, 7, 0, 1))
    assert narrow(expand(mask, (2, 3, 4, 5, 7))).shape == (1, 1, 4, 1, 7)


def test_small_arrays_have_one_entry_or_one_a_batch_entry():
    def entry(shape, strides, batch, name="key_value_lengths"):
        found = per_entry(name, Operand(int32, shape, strides), batch)
        return found.shape, found.strides

    assert entry((), (), (2, 3)) == ((1,), (1,))  # as it lies: an array that all entries share is not copied
    assert entry((3,), (1,), (1, 3)) == ((3,), (1,))
    assert entry((3,), (2,), (1, 3)) == ((3,), (2,))
    assert entry((2, 3), (3, 1), (2, 3)) == ((6,), (1,))
    assert entry((2, 1), (1, 1), (2, 3)) == ((2, 3), (1, 0))
    assert entry((7,), (1,), (2, 3), "key_segments") == ((1, 7), (7, 1))
    assert entry((4,), (1,), (2, 3), "sinks") == ((1, 4), (4, 1))
    assert entry((2, 3, 4), (12, 4, 1), (2, 3), "sinks") == ((6, 4), (4, 1))
    assert entry((2, 3, 7), (21, 7, 1), (2, 3), "key_segments") == ((6, 7), (7, 1))
    assert entry((3, 7), (7, 1), (2, 3), "key_segments") == ((2, 3, 7), (0, 7, 1))
