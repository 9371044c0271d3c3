"""Attention results that are only ever concatenated are written where they will stand in the larger array."""

import math

from wgattn._graph.graph import Graph, Use, View
from wgattn._graph.operations import Attention, Concatenate
from wgattn._graph.rewrite.rebuild import users
from wgattn._graph.rewrite.strides import sliced, through

Places = dict[int, tuple[int, View]]


def place_parts(graph: Graph) -> Places:
    """For each attention node that writes into a Concatenate's buffer: that node's number, and how out lies there."""
    places: Places = {}
    uses = users(graph)
    for number, node in enumerate(graph.nodes):
        if not isinstance(node.operation, Concatenate):
            continue
        axis, start = node.operation.axis, 0
        for use in node.uses:
            shape = graph.view(use).shape
            if isinstance(graph.nodes[use.node].operation, Attention) and len(uses[use.node, use.result]) == 1:
                first = tuple(start if a == axis else 0 for a in range(len(shape)))
                part = sliced(node.layouts[0], first, shape, (1,) * len(shape))
                layout = _layout(graph, use, part)
                if layout is not None:
                    places[use.node] = number, layout
            start += shape[axis]
    return places


def _layout(graph: Graph, use: Use, part: View) -> View | None:
    """How attention's out lies where all of it, as `use` sees it, is `part`; None where its rows would not be runs."""
    node = graph.nodes[use.node]
    aval, seen = node.avals[use.result], graph.view(use)
    if use.result or aval.size == 0 or math.prod(seen.shape) != aval.size or 0 in seen.strides:
        return None
    layout = through(node.layouts[0], seen, part)
    if layout is None or (aval.shape[-1] > 1 and layout.strides[-1] != 1):
        return None
    if aval.dtype.itemsize == 2:
        steps = [stride for size, stride in zip(aval.shape[:-1], layout.strides[:-1], strict=True) if size > 1]
        if any(n % 2 for n in (aval.shape[-1], layout.offset, *steps)):
            return None  # two rows, or a row and what stands beside it, would share a word
    return layout
