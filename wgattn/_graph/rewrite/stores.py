"""A transposed attention result that would be copied is written in that order of axes instead."""

from dataclasses import replace

from wgattn._graph.graph import Graph, Node, Use, View
from wgattn._graph.operations import Attention, Copy
from wgattn._graph.rules import attention_layout

from .rebuild import Rebuild


def fold_stores(graph: Graph) -> Graph:
    """Copies of a whole attention result with its rows in another order go; attention writes its rows so."""
    rebuild, orders = Rebuild(graph), _orders(graph)
    gone = {
        number
        for number, node in enumerate(graph.nodes)
        if isinstance(node.operation, Copy)
        and node.uses[0].node in orders
        and _order(graph, node.uses[0]) == orders[node.uses[0].node]
    }
    for number, node in enumerate(graph.nodes):
        if number in gone:
            rebuild.became[number, 0] = rebuild.use(node.uses[0])
        elif number in orders:
            rebuild.keep(number, _stored(node, orders[number]))
        else:
            rebuild.keep(number)
    return rebuild.finish()


def _orders(graph: Graph) -> dict[int, tuple[int, ...]]:
    """For each attention whose result is copied in another order: the first such order."""
    orders: dict[int, tuple[int, ...]] = {}
    for node in graph.nodes:
        if isinstance(node.operation, Copy):
            source = node.uses[0]
            order = _order(graph, source)
            if order is not None:
                orders.setdefault(source.node, order)
    return orders


def _order(graph: Graph, use: Use) -> tuple[int, ...] | None:
    """The permutation of attention's out that `use` is, where rows are whole words and no order is set yet."""
    node = graph.nodes[use.node]
    if not isinstance(node.operation, Attention) or use.result or use.view is None or node.operation.store is not None:
        return None
    shape, strides = node.avals[0].shape, node.layouts[0].strides
    if node.layouts[0] != View.natural(shape) or use.view.offset or 0 in shape:
        return None
    axes = sorted((a for a in range(len(shape)) if shape[a] > 1), key=lambda a: -strides[a])
    seen = [(size, stride) for size, stride in zip(use.view.shape, use.view.strides, strict=True) if size > 1]
    by_stride = {(shape[a], strides[a]): a for a in axes}
    order = [by_stride.get(axis) for axis in seen]
    if None in order or len(set(order)) != len(axes) or order[-1] != len(shape) - 1:
        return None
    ones = [a for a in range(len(shape) - 1) if shape[a] == 1]
    return (*ones, *(a for a in order if a is not None))


def _stored(node: Node, order: tuple[int, ...]) -> Node:
    attention = node.operation
    assert isinstance(attention, Attention)
    layout = attention_layout(node.avals[0], order)
    return replace(node, operation=replace(attention, store=order), layouts=(layout, *node.layouts[1:]))
