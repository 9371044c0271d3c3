"""Key and value heads that were repeated alike are read once: attention's groups N / K grow instead."""

from dataclasses import replace

from wgattn._graph.graph import Graph, Node, Use, View
from wgattn._graph.operations import Attention, Copy

from .rebuild import before, each
from .strides import settled


def fold_repeats(graph: Graph) -> Graph:
    def rewrite(number: int, node: Node) -> Node:
        attention = node.operation
        if not isinstance(attention, Attention):
            return node
        uses = dict(zip(attention.operands, node.uses, strict=True))
        if "scales" in uses:
            return node
        heads = graph.view(uses["key"]).shape[-2]
        for repeats in range(heads, 1, -1):
            if heads % repeats == 0:
                key, value = (_once(graph, uses[name], repeats) for name in ("key", "value"))
                if key is not None and value is not None:
                    uses.update(key=key, value=value)
                    return replace(node, uses=tuple(uses.values()))
        return node

    return each(graph, rewrite)


def _once(graph: Graph, use: Use, repeats: int) -> Use | None:
    """`use` with one of every `repeats` heads, where they are copies of one another."""
    view = graph.view(use)
    split = _split(view, repeats)
    if split.strides[-2] != 0:
        if not isinstance(graph.nodes[use.node].operation, Copy):
            return None
        source = before(graph, Use(use.node, use.result, split))
        if source is None or graph.view(source).strides[-2] != 0:
            return None
        use, split = source, graph.view(source)
    shape, strides = (*split.shape[:-2], split.shape[-1]), (*split.strides[:-2], split.strides[-1])
    return Use(use.node, use.result, settled(View(shape, strides, split.offset)))


def _split(view: View, repeats: int) -> View:
    """The head axis of `view` as two: heads, and the repeats of each."""
    *outer, heads, dim = view.shape
    *steps, step, inner = view.strides
    return View((*outer, heads // repeats, repeats, dim), (*steps, step * repeats, step, inner), view.offset)
