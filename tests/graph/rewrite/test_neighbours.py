"""Concatenations of parts that lie one behind the other are views; all others stay."""

import numpy as np
import pytest

import wgattn as wa
from tests.graph.evaluate import evaluate
from tests.graph.recording import Recording, arguments, count
from wgattn._dtypes import float16, float32
from wgattn._graph import operations as op
from wgattn._graph.graph import Graph, Use
from wgattn._graph.rewrite import fuse
from wgattn._graph.rewrite.neighbours import join_neighbours
from wgattn._graph.rewrite.views import fold_views


def part(r: Recording, x: Use, start: tuple[int, ...], size: tuple[int, ...], step: tuple[int, ...] = (1, 1, 1)) -> Use:
    return r.do(op.Slice(start, size, step), x)


def joined(graph: Graph) -> Graph:
    """The graph after the pass, its values having been compared."""
    after = join_neighbours(fold_views(graph))
    for left, right in zip(evaluate(graph, arguments(graph)), evaluate(after, arguments(graph)), strict=True):
        np.testing.assert_array_equal(left, right)
    return after


# The axis, and each part's start, size and step.
NEIGHBOURS = {
    "all rows": (0, [((n, 0, 0), (1, 5, 6)) for n in range(4)]),
    "rows backwards": (0, [((n, 0, 0), (1, 5, 6)) for n in (3, 2, 1)]),
    "every other row": (1, [((0, n, 0), (4, 1, 6)) for n in (0, 2, 4)]),
    "one row again": (1, [((0, 2, 0), (4, 1, 6))] * 3),
    "uneven": (1, [((0, 1, 0), (4, 2, 6)), ((0, 3, 0), (4, 1, 6))]),
    "within": (2, [((1, 1, 0), (2, 3, 1)), ((1, 1, 1), (2, 3, 4)), ((1, 1, 5), (2, 3, 1))]),
    "turned around": (1, [((0, 4, 0), (4, 2, 6), (1, -1, 1)), ((0, 2, 0), (4, 3, 6), (1, -1, 1))]),
}
APART = {
    "a gap": (0, [((0, 0, 0), (2, 5, 6)), ((3, 0, 0), (1, 5, 6))]),
    "out of order": (1, [((0, 0, 0), (4, 1, 6)), ((0, 2, 0), (4, 1, 6)), ((0, 1, 0), (4, 1, 6))]),
    "two steps": (0, [((0, 0, 0), (2, 5, 6), (2, 1, 1)), ((3, 0, 0), (1, 5, 6))]),
    "elsewhere beside": (0, [((0, 0, 0), (1, 2, 6)), ((1, 0, 0), (1, 2, 6), (1, 2, 1))]),
    "twice": (0, [((0, 0, 0), (2, 5, 6))] * 2),
}


@pytest.mark.parametrize("name", [*NEIGHBOURS, *APART])
def test_parts_of_one_array(name):
    axis, parts = (NEIGHBOURS | APART)[name]
    r = Recording()
    x = r.input(4, 5, 6)
    whole = r.do(op.Concatenate(axis), *(part(r, x, *given) for given in parts))
    graph = joined(r.graph(r.multiply(whole, 2.0), whole))
    assert count(graph, op.Concatenate) == (name in APART)


def test_parts_of_two_arrays_or_of_another_dtype_stay():
    r = Recording()
    x, y, half = r.input(2, 3), r.input(2, 3), r.input(2, 3, dtype=float16)
    both = r.do(op.Concatenate(0), x, y)
    twice = r.do(op.Concatenate(0), x, x)
    wide = r.do(op.Concatenate(0), *(r.do(op.Cast(float32), part(r, half, (i, 0), (1, 3), (1, 1))) for i in range(2)))
    assert count(fuse(joined(r.graph(both, twice, wide))), op.Concatenate) == 3


def test_equal_calls_on_ranges_of_keys_are_one_call_and_one_merge():
    options = {"return_residual": True, "residual_dtype": np.float32}

    def in_parts(query, key, value):
        parts = [
            wa.nn.dot_product_attention(query, key[:, at : at + 4], value[:, at : at + 4], **options)
            for at in (0, 4, 8)
        ]
        return wa.nn.merge_attention(*zip(*parts, strict=True))

    query, key = np.zeros((2, 5, 4, 8), np.float32), np.zeros((2, 12, 2, 8), np.float32)
    graph = fuse(wa.jit(in_parts).lower(query, key, key)._traced.graph)
    kinds = [type(node.operation) for node in graph.nodes if not isinstance(node.operation, op.Input)]
    assert kinds == [op.Attention, op.Merge]
