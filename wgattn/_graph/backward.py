"""The backward pass of a recorded graph: which values a gradient passes, which it reads again, and the pass itself."""

from collections.abc import Collection, Iterable, Mapping

from .adjoints import adjoint, carries, flows, needed
from .cache_adjoint import check_differentiable
from .graph import Graph, Node
from .operations import Attention, CacheAppend, Elementwise, Input
from .recorder import Forward, Recorder, V

Result = tuple[int, int]  # node of a graph, and which of its results


def passed(graph: Graph, inputs: Collection[int]) -> frozenset[Result]:
    """The results that depend on `inputs` (by index) in a way that has a gradient; attention's residual does not.

    Raises UnsupportedError where they would go through a cache that has none.
    """
    found: set[Result] = set()
    for number, node in enumerate(graph.nodes):
        started = isinstance(node.operation, Input) and node.operation.index in inputs
        if started or any(_wanted(node, found)):
            if isinstance(node.operation, CacheAppend):
                check_differentiable(node.operation, tuple(graph.aval(use) for use in node.uses))
            results = node.avals[:1] if isinstance(node.operation, Attention) else node.avals
            found.update((number, result) for result, aval in enumerate(results) if carries(aval.dtype))
    return frozenset(found)


def saved(graph: Graph, on_path: Collection[Result]) -> frozenset[Result]:
    """The results that the backward pass reads again."""
    found: set[Result] = set()
    for number, node in enumerate(graph.nodes):
        if any((number, result) in on_path for result in range(len(node.avals))):
            operands, results = needed(node.operation, _wanted(node, on_path))
            found.update((node.uses[place].node, node.uses[place].result) for place in operands)
            found.update((number, result) for result in results)
    return frozenset(found)


def pull_back(
    graph: Graph,
    on_path: Collection[Result],
    values: Mapping[Result, V],
    cotangents: Iterable[tuple[Result, V]],
    record: Recorder[V],
) -> dict[int, V]:
    """The cotangents of the graph's inputs by index, where there are any.

    `values` holds what `saved` names; `cotangents` those of the graph's outputs, which are summed where they meet.
    """
    found: dict[Result, V] = {}

    def add(result: Result, given: V) -> None:
        found[result] = record.do(Elementwise("add"), found[result], given)[0] if result in found else given

    for result, given in cotangents:
        if result in on_path:
            add(result, given)
    inputs: dict[int, V] = {}
    for number in reversed(range(len(graph.nodes))):
        node = graph.nodes[number]
        given = tuple(found.pop((number, result), None) for result in range(len(node.avals)))
        if all(x is None for x in given):
            continue
        if isinstance(node.operation, Input):
            (inputs[node.operation.index],) = (x for x in given if x is not None)
            continue
        wanted = _wanted(node, on_path)
        for use, share in zip(node.uses, adjoint(record, _seen(graph, number, values), given, wanted), strict=True):
            if share is not None:
                add((use.node, use.result), share)
    return inputs


def _wanted(node: Node, on_path: Collection[Result]) -> tuple[bool, ...]:
    """For each operand, whether it gets a cotangent."""
    return tuple(
        (use.node, use.result) in on_path and flows(node.operation, place) for place, use in enumerate(node.uses)
    )


def _seen(graph: Graph, number: int, values: Mapping[Result, V]) -> Forward[V]:
    node = graph.nodes[number]
    return Forward(
        node.operation,
        tuple(graph.aval(use) for use in node.uses),
        tuple(values.get((use.node, use.result)) for use in node.uses),
        tuple(values.get((number, result)) for result in range(2)),
    )
