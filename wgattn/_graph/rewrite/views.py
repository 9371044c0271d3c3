"""Reshape, transpose, slice and broadcast become strides of the uses; a Copy stands where no strides say it."""

from wgattn._graph.graph import Graph, View
from wgattn._graph.operations import BroadcastTo, Repeat, Reshape, Slice, Transpose

from .rebuild import Rebuild
from .strides import broadcast, reshaped, sliced, transposed


def fold_views(graph: Graph) -> Graph:
    rebuild = Rebuild(graph)
    for number, node in enumerate(graph.nodes):
        operation = node.operation
        if not isinstance(operation, Reshape | Transpose | Slice | BroadcastTo | Repeat):
            rebuild.keep(number)
            continue
        source = rebuild.use(node.uses[0])
        view = rebuild.view(source)
        match operation:
            case Transpose(axes):
                view = transposed(view, axes)
            case Slice(start, size, step):
                view = sliced(view, start, size, step)
            case BroadcastTo(shape):
                view = broadcast(view, shape)
            case Reshape(shape):
                view = reshaped(view, shape)
                if view is None:
                    source, view = rebuild.copy(source), View.natural(shape)
            case Repeat(repeats, axis):
                axis %= len(view.shape)
                wide = _repeated(view, repeats, axis)
                view = reshaped(wide, node.avals[0].shape)
                if view is None:
                    source, view = rebuild.copy(rebuild.seen(source, wide)), View.natural(node.avals[0].shape)
        rebuild.became[number, 0] = rebuild.seen(source, view)
    return rebuild.finish()


def _repeated(view: View, repeats: int, axis: int) -> View:
    """`view` with an axis of `repeats` equal elements behind `axis`."""
    at = axis + 1
    shape = (*view.shape[:at], repeats, *view.shape[at:])
    return View(shape, (*view.strides[:at], 0, *view.strides[at:]), view.offset)
