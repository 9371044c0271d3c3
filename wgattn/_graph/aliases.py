"""Which arrays an operation writes where they lie, instead of in a copy."""

from collections.abc import Collection, Iterable, Iterator

from .graph import Graph, Node, Use, View
from .operations import CacheAppend, CacheMove, Constant, Input

Result = tuple[int, int]  # node of a graph, and which of its results


def storage(node: Node) -> Iterator[tuple[int, int]]:
    """For each array that an operation gives back with parts of it replaced: operand's place, result's number."""
    match node.operation:
        case CacheAppend(operands):
            for result, name in enumerate(node.operation.results[:-1]):
                yield operands.index(name), result
        case CacheMove(destination=True):
            yield 0, 0


def written_in_place(
    graph: Graph, donated: Collection[int] = (), kept: Iterable[Use] = ()
) -> frozenset[tuple[int, int]]:
    """The (node, place of operand) whose array is written where it lies, instead of in a copy.

    It is one that the program makes or an argument in `donated`, row-major, and nothing needs what was in it: no later
    node, no other operand, no output and none of `kept`.
    """
    needed: dict[Result, list[int]] = {}
    for number, node in enumerate(graph.nodes):
        for use in node.uses:
            needed.setdefault((use.node, use.result), []).append(number)
    for use in (*graph.outputs, *kept):
        needed.setdefault((use.node, use.result), []).append(len(graph.nodes))
    found: set[tuple[int, int]] = set()
    for number, node in enumerate(graph.nodes):
        for place, _ in storage(node):
            use = node.uses[place]
            root = graph.nodes[use.node].operation
            ours = root.index in donated if isinstance(root, Input) else not isinstance(root, Constant)
            last = [user for user in needed[use.node, use.result] if user >= number] == [number]
            if ours and last and graph.view(use) == View.natural(graph.view(use).shape):
                found.add((number, place))
    return frozenset(found)
