"""Graphs on the device against NumPy: every operation, views, padding, donation, taps."""

import numpy as np
import pytest

from tests.graph.evaluate import evaluate
from tests.graph.recording import Recording, arguments
from tests.schedule.run_graph import laid_out, read, run_graph
from wgattn import _runtime
from wgattn._dtypes import bfloat16, bool_, float16, float32, int32
from wgattn._graph import operations as op
from wgattn._graph.graph import Graph, Use, View
from wgattn._graph.rewrite import fuse
from wgattn._kernels.attention.problem import Bound, Call
from wgattn._kernels.rotation import Rope
from wgattn._runtime.program import Command, CopyBuffer, Dispatch, Range
from wgattn._schedule import compile, load

pytestmark = pytest.mark.device
CAUSAL = ((Bound("upper", "diagonal"),),)


def check(graph: Graph, tolerance: float = 1e-5, donated: tuple[int, ...] = ()) -> None:
    given = arguments(graph)
    for right, found in zip(evaluate(graph, given), run_graph(graph, given, donated), strict=True):
        assert found.dtype == right.dtype
        assert found.shape == right.shape
        np.testing.assert_allclose(found.astype(np.float64), right.astype(np.float64), rtol=tolerance, atol=tolerance)


def test_array_operations():
    r = Recording()
    x, y, n = r.input(3, 5), r.input(3, 5, layout=View((3, 5), (1, 4), 2)), r.input(5, dtype=int32)
    total = r.do(op.Elementwise("add"), x, r.do(op.Transpose((1, 0)), r.do(op.Reshape((5, 3)), y)))
    mean = r.do(op.Sum((0,), divisor=3), total)
    padded = r.do(op.Pad((1, 0), (0, 2)), r.do(op.Slice((2, 4), (2, 3), (-2, -1)), x))
    rows = r.do(
        op.Concatenate(0),
        total,
        r.do(op.BroadcastTo((2, 5)), mean),
        r.do(op.Cast(float32), r.do(op.BroadcastTo((1, 5)), n)),
    )
    less = r.do(op.Elementwise("less"), x, r.do(op.Reshape((1, 5)), mean))
    chosen = r.do(op.Elementwise("where"), less, r.multiply(x, 3.0), total)
    halves = [r.do(op.Cast(dtype), chosen) for dtype in (float16, bfloat16)]
    check(r.graph(total, mean, padded, rows, less, chosen, *halves, r.do(op.Repeat(2, 1), x), x, r.constant(2.5)), 2e-3)


def test_rope():
    r = Recording()
    x = r.input(2, 5, 3, 8)
    uses = [r.do(op.Rotate(Rope()), x), r.do(op.Rotate(Rope(), "positions"), x, r.input(2, 5, dtype=int32))]
    uses += [
        r.do(op.Rotate(Rope(), inverse=True), x),
        r.do(op.Rotate(Rope(), "offset", True), x, r.input(2, dtype=int32)),
    ]
    check(r.graph(*uses, r.do(op.Rotate(Rope(style="interleaved"), "offset"), x, r.input(2, dtype=int32))))


def test_empty_arrays_need_no_dispatch():
    r = Recording()
    x = r.input(0, 5)
    zero = r.do(op.Sum((0,)), x)
    check(r.graph(r.multiply(x, 2.0), zero, r.do(op.Concatenate(0), x, r.do(op.Reshape((1, 5)), zero))))


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16])
@pytest.mark.parametrize("dim", [8, 5])
def test_attention_between_views(dtype, dim):
    r = Recording()
    q, k, v = r.input(2, 4, 6, dim, dtype=dtype), r.input(2, 2, 7, dim, dtype=dtype), r.input(dim, 2, 7, 2, dtype=dtype)
    k, v = r.do(op.Transpose((0, 2, 1, 3)), k), r.do(op.Transpose((3, 2, 1, 0)), v)
    out = r.attention(r.do(op.Transpose((0, 2, 1, 3)), q), k, v, Call(CAUSAL, residual=dtype))
    flat = r.do(op.Reshape((2, 6, 4 * dim)), out)
    check(r.graph(flat, r.do(op.Transpose((0, 2, 1, 3)), out), Use(out.node, 1)), 2e-5 if dtype == float32 else 2e-2)


def test_attention_with_every_operand():
    r = Recording()
    q, k, v = r.input(2, 6, 4, 8), r.input(1, 7, 2, 8), r.input(2, 7, 2, 8)
    clauses = ((Bound("upper", "diagonal", 1, "reach"), Bound("lower", "diagonal", -5)),)
    out = r.attention(
        q,
        k,
        v,
        Call(clauses, softcap=2.0, residual=float32),
        bias=r.input(4, 1, 7),
        mask=r.do(op.Elementwise("less"), r.input(6, 7), r.constant(1.0)),
        query_lengths=r.do(op.Elementwise("add"), r.input(2, dtype=int32), r.constant(2, int32)),
        key_value_lengths=r.do(op.Elementwise("add"), r.input(2, dtype=int32), r.constant(3, int32)),
        query_offset=r.input(dtype=int32),
        sinks=r.do(op.Slice((3,), (4,), (-1,)), r.input(4)),
        scale=r.input(),
        query_segments=r.do(op.Cast(int32), r.do(op.Cast(bool_), r.input(6, dtype=int32))),
        key_segments=r.do(op.Cast(int32), r.do(op.Cast(bool_), r.input(2, 7, dtype=int32))),
        reach=r.input(1, dtype=int32),
    )
    check(r.graph(out, Use(out.node, 1)), 2e-5)


@pytest.mark.parametrize("dtype", [float32, float16])
@pytest.mark.parametrize("dim", [8, 5])
@pytest.mark.parametrize("axis", [1, 2])
def test_results_are_written_into_what_they_are_concatenated_to(dtype, dim, axis):
    r = Recording()
    x, y = (r.input(2, 5, 2, dim, dtype=dtype) for _ in range(2))
    parts = [r.attention(x, y, y, Call(CAUSAL)), r.do(op.Transpose((0, 1, 2, 3)), r.input(2, 5, 2, dim, dtype=dtype))]
    parts += [r.attention(y, y, x)]
    flat = [r.do(op.Reshape((2, 5, 2 * dim)), part) for part in parts]
    graph = r.graph(r.do(op.Concatenate(axis), *flat))
    check(graph, 2e-5 if dtype == float32 else 2e-2)
    program = compile(fuse(graph), _runtime.current_profile()).program
    copies = [command for command in program.commands if _copies_to(command, program.outputs[0])]
    assert len(copies) == (3 if dtype == float16 and dim == 5 else 1)


@pytest.mark.parametrize(("dtype", "dim", "placed"), [(float32, 5, 2), (float16, 8, 2), (float16, 5, 0)])
def test_rows_that_would_share_words_are_copied_into_place(dtype, dim, placed):
    r = Recording()
    x, y = (r.input(2, 5, 2, dim, dtype=dtype) for _ in range(2))
    graph = r.graph(r.do(op.Concatenate(3), r.attention(x, y, y, Call(CAUSAL)), r.attention(y, y, x)))
    check(graph, 2e-5 if dtype == float32 else 2e-2)
    program = compile(fuse(graph), _runtime.current_profile()).program
    assert sum(_copies_to(command, program.outputs[0]) for command in program.commands) == 2 - placed


def test_a_result_that_is_read_before_it_is_concatenated_lies_by_itself():
    r = Recording()
    x = r.input(2, 5, 2, 8)
    first = r.attention(x, x, x)
    check(r.graph(r.do(op.Concatenate(1), first, r.attention(first, x, x, Call(CAUSAL)))), 2e-5)


@pytest.mark.parametrize("dtype", [float32, float16])
def test_merges_of_views(dtype):
    r = Recording()
    x, residuals, sinks = r.input(3, 2, 5, 4, 6, dtype=dtype), r.input(3, 2, 5, 4), r.input(4)
    turned = r.do(op.Transpose((0, 1, 4, 3, 2)), x)  # rows are no runs
    some = r.do(op.Slice((2, 0, 1, 0, 1), (2, 2, 4, 4, 5), (-2, 1, 1, 1, 1)), x)
    of_some = r.do(op.Slice((2, 0, 1, 0), (2, 2, 4, 4), (-2, 1, 1, 1)), residuals)
    widened = r.do(op.BroadcastTo((3, 2, 6, 4)), r.do(op.Slice((0, 0, 2, 0), (3, 2, 1, 4), (1,) * 4), residuals))
    merges = [
        r.do(op.Merge(), turned, widened),
        r.do(op.Merge(sinks=True), some, of_some, sinks),
        r.do(op.Merge(), r.do(op.Cast(float16), x), r.multiply(residuals, 2.0)),
    ]
    graph = r.graph(*merges, *(Use(merge.node, 1) for merge in merges))
    check(graph, 2e-5 if dtype == float32 else 2e-2)


def test_outputs_of_attention_are_written_where_they_are_merged():
    r = Recording()
    x, y = (r.input(2, 5, 2, 8) for _ in range(2))
    calls = [r.attention(x, y, y, Call(CAUSAL, residual=float32)), r.attention(y, y, x, Call(residual=float32))]
    outputs = [r.do(op.Reshape((1, 2, 5, 2, 8)), call) for call in calls]
    residuals = [r.do(op.Reshape((1, 2, 5, 2)), Use(call.node, 1)) for call in calls]
    merged = r.do(op.Merge(), r.do(op.Concatenate(0), *outputs), r.do(op.Concatenate(0), *residuals))
    graph = r.graph(merged)
    check(graph, 2e-5)
    program = compile(fuse(graph), _runtime.current_profile()).program
    copied = [command.source.nbytes for command in program.commands if isinstance(command, CopyBuffer)]
    assert copied == [2 * 5 * 2 * 4] * 2, "the residuals alone"


def _copies_to(command: Command, slot: int) -> bool:
    if isinstance(command, Dispatch):
        parts = [part.slot for part in command.resources if isinstance(part, Range)]
        return command.shader.name.startswith("copy") and slot in parts
    return command.destination == slot


def test_fused_calls_on_the_device():
    r = Recording()
    q, k, v = (r.input(3, 2, 5, 2, 8, dtype=float16) for _ in range(3))
    lengths, outs = r.input(3, 2, dtype=int32), []
    for i in range(3):
        parts = [
            r.do(
                op.Cast(float32),
                r.do(op.Reshape((2, 5, 2, 8)), r.do(op.Slice((i, 0, 0, 0, 0), (1, 2, 5, 2, 8), (1,) * 5), x)),
            )
            for x in (q, k, v)
        ]
        turned = [r.do(op.Rotate(Rope()), parts[0]), r.multiply(r.do(op.Rotate(Rope()), parts[1]), 0.7)]
        own = r.do(op.Reshape((2,)), r.do(op.Slice((i, 0), (1, 2), (1, 1)), lengths))
        out = r.attention(*turned, parts[2], key_value_lengths=own)
        outs.append(r.do(op.Reshape((2, 10, 8)), r.do(op.Transpose((0, 2, 1, 3)), out)))
    graph = r.graph(*outs)
    assert len(fuse(graph).nodes) == 5
    check(graph, 2e-5)


def test_a_donated_input_holds_what_comes_after_it():
    r = Recording()
    x = r.input(64)
    once = r.do(op.Elementwise("exp"), r.multiply(x, -1.0))
    graph = r.graph(once, r.do(op.Reshape((8, 8)), x))
    check(graph, donated=(0,))
    graph = Graph(graph.nodes, graph.outputs[:1])
    check(graph, donated=(0,))
    program = compile(fuse(graph), _runtime.current_profile(), frozenset({0})).program
    assert program.inputs == program.outputs


def test_taps_hold_what_attention_read_and_wrote():
    r = Recording()
    x = r.input(2, 5, 3, 8)
    key = r.do(op.Elementwise("exp"), x)
    graph = r.graph(r.do(op.Sum((0, 1)), r.attention(x, key, key, Call(residual=float32))))
    given = arguments(graph)
    compiled = load(fuse(graph), taps=True)
    made = compiled.run_all([_runtime.upload(x) for x in laid_out(graph, given)])
    (tap,) = compiled.schedule.taps
    found = {name: read(made[output.buffer], output.layout) for name, output in {**tap.operands, **tap.results}.items()}
    np.testing.assert_array_equal(found["query"], given[0])
    np.testing.assert_allclose(found["key"], np.exp(given[0]), rtol=1e-6)
    np.testing.assert_allclose(read(made[0], compiled.schedule.outputs[0].layout), found["out"].sum((0, 1)), rtol=1e-5)
    assert set(found) == {"query", "key", "value", "out", "residual"}
