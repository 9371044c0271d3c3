"""A query or key multiplied by a known number: the number moves into the call's scale."""

import math
from dataclasses import replace

from wgattn._dtypes import float32
from wgattn._graph.graph import Graph, Node, Use
from wgattn._graph.operations import Attention, Constant, Elementwise
from wgattn._kernels.attention.problem import scale_of

from .rebuild import before, each


def fold_scales(graph: Graph) -> Graph:
    def rewrite(number: int, node: Node) -> Node:
        attention = node.operation
        if not isinstance(attention, Attention) or "scale" in attention.operands:
            return node
        factor, uses = 1.0, list(node.uses)
        for name in ("query", "key"):
            place = attention.operands.index(name)
            while (found := _factor(graph, uses[place])) is not None:
                uses[place] = found[0]
                factor *= found[1]
        if factor == 1.0 and tuple(uses) == node.uses:
            return node
        scale = scale_of(attention.call, graph.view(uses[0]).shape[-1]) * factor
        if not math.isfinite(scale):
            return node
        return replace(node, operation=replace(attention, call=replace(attention.call, scale=scale)), uses=tuple(uses))

    return each(graph, rewrite)


def _factor(graph: Graph, use: Use) -> tuple[Use, float] | None:
    """What `use` sees before it was multiplied, and by what. A 16-bit product is rounded, unless by a power of two."""
    node = graph.nodes[use.node]
    if not isinstance(node.operation, Elementwise) or node.operation.function not in ("multiply", "divide"):
        return None
    for place in (1,) if node.operation.function == "divide" else (1, 0):
        constant = graph.nodes[node.uses[place].node].operation
        if not isinstance(constant, Constant):
            continue
        factor = float(constant.value)
        if node.operation.function == "divide":
            factor = 1.0 / factor if factor else math.inf
        exact = node.avals[0].dtype == float32 or abs(math.frexp(factor)[0]) == 0.5
        if not (math.isfinite(factor) and factor and exact):
            return None
        source = before(graph, use, 1 - place)
        if source is not None:
            return source, factor
    return None
