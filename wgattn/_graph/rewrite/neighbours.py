"""A concatenation of parts that lie one behind the other already is a view of what they are parts of.

Equal calls on parts of the same arrays, which became one call, are put together again for a merge.
"""

from dataclasses import replace

from wgattn._graph.graph import Graph, Node, Use, View
from wgattn._graph.operations import Concatenate

from .rebuild import Rebuild
from .strides import settled


def join_neighbours(graph: Graph) -> Graph:
    rebuild = Rebuild(graph)
    for number, node in enumerate(graph.nodes):
        whole = _whole(graph, node)
        if whole is None:
            rebuild.keep(number)
        else:
            rebuild.became[number, 0] = rebuild.use(whole)
    return rebuild.finish()


def _whole(graph: Graph, node: Node) -> Use | None:
    """What the parts of a Concatenate are parts of, one behind the other; None where they are not."""
    if not isinstance(node.operation, Concatenate) or len(node.uses) < 2 or 0 in node.avals[0].shape:
        return None
    first, axis = node.uses[0], node.operation.axis
    views = [graph.view(use) for use in node.uses]
    if {(use.node, use.result) for use in node.uses} != {(first.node, first.result)}:
        return None
    if graph.aval(first).dtype != node.avals[0].dtype:
        return None
    size = views[0].shape[axis]
    distance = views[1].offset - views[0].offset
    step = views[0].strides[axis] if size > 1 else distance
    end = views[0].offset
    for view in views:
        if view.offset != end or _beside(view, axis) != _beside(views[0], axis):
            return None
        if view.shape[axis] > 1 and view.strides[axis] != step:
            return None
        end += view.shape[axis] * step
    strides = (*views[0].strides[:axis], step, *views[0].strides[axis + 1 :])
    return replace(first, view=settled(View(node.avals[0].shape, strides, views[0].offset)))


def _beside(view: View, axis: int) -> list[tuple[int, int]]:
    """The other axes: size and stride, where there is more than one element to stride over."""
    others = enumerate(zip(view.shape, view.strides, strict=True))
    return [(size, stride if size > 1 else 0) for other, (size, stride) in others if other != axis]
