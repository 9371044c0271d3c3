"""Attention and its gradient in one graph on the device, against NumPy."""

from typing import Any

import numpy as np
import pytest

from tests.graph.evaluate import evaluate
from tests.graph.recording import Recording, arguments
from tests.schedule.run_graph import run_graph
from tests.tolerance import check
from wgattn._dtypes import float16, float32, int32
from wgattn._graph import operations as op
from wgattn._graph.graph import Graph, Use, View
from wgattn._graph.rewrite import fuse
from wgattn._graph.rules import node
from wgattn._kernels.attention.problem import Bound, Call
from wgattn._kernels.rotation import Rope
from wgattn._runtime.profile import DeviceProfile
from wgattn._schedule import compile

CAUSAL = ((Bound("upper", "diagonal"),),)


def recorded(
    r: Recording, call: Call, rows: tuple[Use, Use, Use], wanted: tuple[str, ...], grad_out: Use, **more: Use
) -> list[Use]:
    """The gradients of an attention that is recorded too."""
    dtype = r.nodes[rows[0].node].avals[0].dtype
    names = ("query", "key", "value", *more)
    forward = r.do(op.Attention(names, call, dtype), *rows, *more.values())
    uses = (*rows, *more.values(), forward, Use(forward.node, 1), grad_out)
    given = [r.nodes[use.node].avals[use.result] for use in uses]
    dtypes = tuple(float32 if name in ("sinks", "scale") else dtype for name in wanted)
    made = op.AttentionGradient((*names, "out", "residual", "grad_out"), call, wanted, dtypes)
    r.nodes.append(node(made, uses, given))
    return [Use(len(r.nodes) - 1, result) for result in range(len(wanted))]


def compare(graph: Graph) -> None:
    given = arguments(graph)
    for right, found in zip(evaluate(graph, given), run_graph(graph, given), strict=True):
        assert found.dtype == right.dtype
        check(found, right, found.dtype, gradient=True, magnitude=max(1.0, float(np.abs(right.astype(float)).max())))


@pytest.mark.device
def test_views_broadcasts_and_small_arrays() -> None:
    """Transposed rows, a bias of one head, sinks, an offset a batch entry, a run-time scale; a transposed grad_out."""
    r = Recording()
    q = r.do(op.Transpose((0, 2, 1, 3)), r.input(2, 4, 5, 8))
    k, v = r.input(2, 7, 2, 8), r.do(op.Transpose((0, 3, 2, 1)), r.input(2, 3, 2, 7))
    grad_out = r.do(op.BroadcastTo((2, 5, 4, 3)), r.input(2, 5, 1, 1))
    more = {"bias": r.input(4, 1, 7), "query_offset": r.input(2, dtype=int32), "sinks": r.input(4), "scale": r.input()}
    call = Call(CAUSAL, 0.4, residual=float32)
    compare(
        r.graph(*recorded(r, call, (q, k, v), ("query", "key", "value", "bias", "sinks", "scale"), grad_out, **more))
    )


@pytest.mark.device
def test_rope_and_16_bit_rows() -> None:
    r = Recording()
    q, k, v, grad_out = (
        r.input(2, n, h, d, dtype=float16) for n, h, d in ((9, 4, 8), (11, 2, 8), (11, 2, 5), (9, 4, 5))
    )
    call = Call(CAUSAL, rope=Rope(), softcap=2.0, residual=float32)
    compare(r.graph(*recorded(r, call, (q, k, v), ("query", "key", "value"), grad_out)))


@pytest.mark.device
def test_a_second_batch_axis_and_shared_keys() -> None:
    r = Recording()
    q, grad_out = r.input(3, 2, 5, 4, 8), r.input(3, 2, 5, 4, 8)
    k, v = (r.do(op.BroadcastTo((3, 2, 7, 2, 8)), r.input(1, 2, 7, 2, 8)) for _ in range(2))
    compare(r.graph(*recorded(r, Call(residual=float32), (q, k, v), ("query", "key", "value"), grad_out)))


@pytest.mark.device
def test_sinks_of_each_batch_entry() -> None:
    """One row for each entry, as they lie, in another order, and as rows that entries share."""
    for lie in (
        lambda r: r.input(3, 2, 4),
        lambda r: r.do(op.Transpose((1, 0, 2)), r.input(2, 3, 4)),
        lambda r: r.do(op.BroadcastTo((3, 2, 4)), r.input(3, 1, 4)),
        lambda r: r.do(op.BroadcastTo((3, 2, 4)), r.input(2, 4)),
    ):
        r = Recording()
        rows = r.input(3, 2, 5, 4, 8), r.input(3, 2, 7, 2, 8), r.input(3, 2, 7, 2, 8)
        grad_out = r.input(3, 2, 5, 4, 8)
        compare(r.graph(*recorded(r, Call(residual=float32), rows, ("query", "sinks"), grad_out, sinks=lie(r))))


@pytest.mark.parametrize("kind", ["discrete", "cpu"])
def test_the_plan_needs_no_device(kind: Any) -> None:
    r = Recording()
    rows = r.input(1, 64, 8, 64), r.input(1, 64, 2, 64), r.input(1, 64, 2, 64)
    call = Call(CAUSAL, residual=float32)
    graph = r.graph(*recorded(r, call, rows, ("query", "key", "value"), r.input(1, 64, 8, 64)))
    schedule = compile(fuse(graph), DeviceProfile(kind=kind))
    family = "backward_plain" if kind == "cpu" else "backward_tiled"
    assert [chosen.variant.family for chosen in schedule.chosen][1] == family
    scores = 64 * 64 * 8 * 4
    assert schedule.memory.scratch < 8 * scores, "no buffer holds T × S"
    assert View.natural((1, 64, 8, 64)) == schedule.outputs[0].view
