"""Equal attention calls on evenly spaced parts of the same arrays become one call with a second batch axis in front."""

from dataclasses import replace

from wgattn._graph.graph import Graph, Node, Use, View
from wgattn._graph.operations import Attention
from wgattn._graph.rules import attention_layout

from .rebuild import Rebuild, seen
from .strides import settled


def join_batches(graph: Graph) -> Graph:
    joined = {numbers[0]: (numbers, node) for numbers in _alike(graph) if (node := _joined(graph, numbers)) is not None}
    order = {number: numbers for numbers, _ in joined.values() for number in numbers}
    rebuild = Rebuild(graph)
    for number in range(len(graph.nodes)):
        if number not in order:
            rebuild.keep(number)
        elif number == min(order[number]):
            numbers, whole = joined[order[number][0]]
            made = rebuild.add(replace(whole, uses=tuple(rebuild.use(use) for use in whole.uses)))
            for entry, part in enumerate(numbers):
                for result, layout in enumerate(whole.layouts):
                    view = View(layout.shape[1:], layout.strides[1:], entry * layout.strides[0])
                    rebuild.became[part, result] = seen(rebuild.nodes, Use(made, result), settled(view))
    return rebuild.finish()


def _alike(graph: Graph) -> list[tuple[int, ...]]:
    """Attention nodes that differ in the offsets of their operands alone, in the order of those offsets."""
    groups: dict[tuple, list[int]] = {}
    for number, node in enumerate(graph.nodes):
        if (
            isinstance(node.operation, Attention)
            and graph.view(node.uses[0]).shape[:-4] == ()
            and 0 not in node.avals[0].shape
            and node.operation.call.page_size is None
        ):
            views = [graph.view(use) for use in node.uses]
            places = tuple(
                (use.node, use.result, view.shape, view.strides) for use, view in zip(node.uses, views, strict=True)
            )
            groups.setdefault((node.operation, node.avals, node.layouts, places), []).append(number)
    return [tuple(sorted(group, key=lambda n: _offsets(graph, n))) for group in groups.values() if len(group) > 1]


def _offsets(graph: Graph, number: int) -> tuple[int, ...]:
    return tuple(graph.view(use).offset for use in graph.nodes[number].uses)


def _joined(graph: Graph, numbers: tuple[int, ...]) -> Node | None:
    """The one node that computes them all, in the old graph's uses; None where an operand is not evenly spaced."""
    first, second = _offsets(graph, numbers[0]), _offsets(graph, numbers[1])
    steps = tuple(b - a for a, b in zip(first, second, strict=True))
    for entry, number in enumerate(numbers):
        if _offsets(graph, number) != tuple(a + entry * step for a, step in zip(first, steps, strict=True)):
            return None
    node, count = graph.nodes[numbers[0]], len(numbers)
    attention = node.operation
    assert isinstance(attention, Attention)
    batch, uses = graph.view(node.uses[0]).shape[0], []
    for name, use, step in zip(attention.operands, node.uses, steps, strict=True):
        view = _spread(name, graph.view(use), count, step, batch)
        if view is None:
            return None
        uses.append(seen(graph.nodes, use, view))
    store = None if attention.store is None else (0, *(axis + 1 for axis in attention.store))
    avals = tuple(replace(aval, shape=(count, *aval.shape)) for aval in node.avals)
    layouts = (
        attention_layout(avals[0], store),
        *(View.natural(aval.shape) for aval in avals[1:]),
    )
    return Node(replace(attention, store=store), tuple(uses), avals, layouts)


def _spread(name: str, view: View, count: int, step: int, batch: int) -> View | None:
    """An operand with the new batch axis in front, `step` elements apart; as it is where all entries share it."""
    if step < 0:
        return None
    if name in ("query", "key", "value", "scales"):
        return settled(View((count, *view.shape), (step, *view.strides), view.offset))
    if step == 0 and not _per_batch(name, view):
        return view
    match name:
        case "sinks" | "scale":
            return None
        case "bias" | "mask":
            missing = 4 - len(view.shape)
            shape, strides = (1,) * missing + view.shape, (0,) * missing + view.strides
        case "query_segments" | "key_segments":
            shape, strides = (batch, view.shape[-1]), (view.strides[0] if len(view.shape) == 2 else 0, view.strides[-1])
        case _:
            shape, strides = (batch,), view.strides if view.shape == (batch,) else (0,)
    return settled(View((count, *shape), (step, *strides), view.offset))


def _per_batch(name: str, view: View) -> bool:
    """Whether an operand has an entry for each of the batch, so that it needs the new axis too."""
    if name in ("sinks", "scale", "bias", "mask"):
        return False
    return view.shape != () and (len(view.shape) == 2 or "segments" not in name) and view.shape[0] != 1
