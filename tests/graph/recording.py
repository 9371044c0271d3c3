"""Graphs written down by hand: a recorder of nodes that infers avals as recording does."""

import numpy as np

from wgattn._dtypes import float32
from wgattn._graph import operations as op
from wgattn._graph.graph import Aval, Graph, Node, Use, View
from wgattn._graph.rules import node
from wgattn._kernels.attention.problem import Call

VIEWS = (op.Reshape, op.Transpose, op.Slice, op.BroadcastTo)


class Recording:
    """Records operations; every method gives the use of its result."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs = 0

    def input(self, *shape: int, dtype: np.dtype = float32, layout: View | None = None) -> Use:
        self.nodes.append(Node(op.Input(self.inputs), (), (Aval(shape, dtype),), (layout or View.natural(shape),)))
        self.inputs += 1
        return Use(len(self.nodes) - 1)

    def constant(self, value: float, dtype: np.dtype = float32) -> Use:
        self.nodes.append(Node(op.Constant(value), (), (Aval((), dtype),), (View.natural(()),)))
        return Use(len(self.nodes) - 1)

    def do(self, operation: object, *uses: Use) -> Use:
        self.nodes.append(node(operation, uses, [self.nodes[u.node].avals[u.result] for u in uses]))
        return Use(len(self.nodes) - 1)

    def multiply(self, x: Use, factor: float) -> Use:
        return self.do(op.Elementwise("multiply"), x, self.constant(factor, self.nodes[x.node].avals[x.result].dtype))

    def attention(self, query: Use, key: Use, value: Use, call: Call | None = None, **more: Use) -> Use:
        dtype = self.nodes[query.node].avals[query.result].dtype
        attention = op.Attention(("query", "key", "value", *more), call or Call(), dtype)
        return self.do(attention, query, key, value, *more.values())

    def graph(self, *outputs: Use) -> Graph:
        return Graph(tuple(self.nodes), outputs)


def arguments(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    """Unit-normal arrays for the graph's inputs, small integers for int32 ones."""
    rng, given = np.random.default_rng(seed), {}
    for item in graph.nodes:
        if isinstance(item.operation, op.Input):
            shape, dtype = item.avals[0].shape, item.avals[0].dtype
            x = rng.integers(0, 4, shape) if dtype.kind in "iub" else rng.standard_normal(shape)
            given[item.operation.index] = np.asarray(x).astype(dtype)
    return [given.get(index, np.zeros(())) for index in range(max(given, default=-1) + 1)]


def count(graph: Graph, *kinds: type) -> int:
    """How many nodes of these operations the graph holds."""
    return sum(isinstance(item.operation, kinds) for item in graph.nodes)
