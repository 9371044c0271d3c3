"""The gradient of attention as an operation: its rules, how its results lie, its words."""

import numpy as np
import pytest

from wgattn._dtypes import bfloat16, float16, float32, int32
from wgattn._graph import operations as op
from wgattn._graph.graph import Aval, Graph, Node, Use, View
from wgattn._graph.rules import infer, node
from wgattn._graph.text import as_text
from wgattn._kernels.attention.problem import Bound, Call


def avals(dtype: np.dtype = float32, **changed: Aval) -> dict[str, Aval]:
    found = {
        "query": Aval((2, 5, 4, 8), dtype),
        "key": Aval((2, 7, 2, 8), dtype),
        "value": Aval((2, 7, 2, 3), dtype),
        "out": Aval((2, 5, 4, 3), dtype),
        "residual": Aval((2, 5, 4), float32),
        "grad_out": Aval((2, 5, 4, 3), dtype),
    }
    return found | changed


def gradient(wanted: tuple[str, ...], given: dict[str, Aval], dtype: np.dtype = float32) -> op.AttentionGradient:
    return op.AttentionGradient(tuple(given), Call(residual=float32), wanted, (dtype,) * len(wanted))


def test_results_have_the_shapes_of_their_operands() -> None:
    given = avals(bias=Aval((4, 1, 7), float32), sinks=Aval((4,), float32), scale=Aval((), float32))
    wanted = ("query", "key", "value", "bias", "sinks", "scale")
    found = infer(gradient(wanted, given), list(given.values()))
    assert [aval.shape for aval in found] == [given[name].shape for name in wanted]


def test_shared_keys_have_a_gradient_an_entry() -> None:
    given = avals(key=Aval((1, 7, 2, 8), float32), value=Aval((1, 7, 2, 3), float32))
    found = infer(gradient(("key", "value"), given), list(given.values()))
    assert [aval.shape for aval in found] == [(2, 7, 2, 8), (2, 7, 2, 3)]


def test_rows_of_16_bits_are_whole_words() -> None:
    given = avals(float16)
    made = node(gradient(("value", "query"), given, float16), (), list(given.values()))
    assert made.layouts == (View((2, 7, 2, 3), (56, 8, 4, 1)), View.natural((2, 5, 4, 8)))


@pytest.mark.parametrize(
    ("wanted", "changed", "error"),
    [
        (("query",), {"grad_out": Aval((2, 5, 4, 8), float32)}, ValueError),
        (("query",), {"residual": Aval((2, 5, 3), float32)}, ValueError),
        (("query",), {"residual": Aval((2, 5, 4), float16)}, TypeError),
        (("query",), {"out": Aval((2, 5, 4, 3), int32)}, TypeError),
        (("bias",), {}, ValueError),
        (("mask",), {"mask": Aval((5, 7), np.dtype(bool))}, ValueError),
    ],
)
def test_what_does_not_fit(wanted: tuple[str, ...], changed: dict[str, Aval], error: type[Exception]) -> None:
    given = avals(**changed)
    with pytest.raises(error, match="attention"):
        infer(gradient(wanted, given), list(given.values()))


def test_a_gradient_of_sinks_is_float32() -> None:
    given = avals(sinks=Aval((4,), float32))
    with pytest.raises(TypeError, match="sinks"):
        infer(gradient(("sinks",), given, bfloat16), list(given.values()))


@pytest.mark.parametrize("shape", [(4,), (2, 4)])
def test_sinks_of_all_or_of_each_batch_entry(shape: tuple[int, ...]) -> None:
    given = avals(sinks=Aval(shape, float32))
    assert infer(gradient(("sinks",), given), list(given.values()))[0].shape == shape


@pytest.mark.parametrize("shape", [(3,), (3, 4), (1, 4), (), (1, 2, 4)])
def test_sinks_of_other_shapes(shape: tuple[int, ...]) -> None:
    given = avals(sinks=Aval(shape, float32))
    with pytest.raises(ValueError, match="sinks"):
        infer(gradient(("sinks",), given), list(given.values()))


def test_words() -> None:
    given = avals()
    nodes = [
        Node(op.Input(index), (), (aval,), (View.natural(aval.shape),)) for index, aval in enumerate(given.values())
    ]
    call = Call(((Bound("upper", "diagonal"),),), residual=float32)
    operation = op.AttentionGradient(tuple(given), call, ("query", "key"), (float32, float32))
    nodes.append(node(operation, tuple(Use(n) for n in range(6)), list(given.values())))
    text = as_text(Graph(tuple(nodes), (Use(6), Use(6, 1))))
    assert "g, h = attention_gradient f by query,key of a b c  group=2  keys j ≤ i  out=d  residual=e" in text
    assert "scale=0.353553" in text
