"""An order of nodes in which the most arrays can be written where they lie: who reads the old one comes first."""

from wgattn._graph.aliases import storage
from wgattn._graph.graph import Graph

from .rebuild import Rebuild


def read_first(graph: Graph) -> Graph:
    """The graph with what reads an array before what replaces parts of it, where the one does not need the other."""
    replaced = [tuple(storage(node)) for node in graph.nodes]
    if not any(replaced):
        return graph
    before = [{use.node for use in node.uses} for node in graph.nodes]
    for number, node in enumerate(graph.nodes):
        for place, _ in replaced[number]:
            old = node.uses[place]
            for later in range(number + 1, len(graph.nodes)):
                reads = any((use.node, use.result) == (old.node, old.result) for use in graph.nodes[later].uses)
                if reads and not replaced[later] and not _needs(before, later, number):
                    before[number].add(later)
    order = _sorted(before)
    if order == list(range(len(graph.nodes))):
        return graph
    rebuild = Rebuild(graph)
    for number in order:
        rebuild.keep(number)
    return rebuild.finish()


def _needs(before: list[set[int]], node: int, other: int) -> bool:
    """Whether `node` has to come after `other`."""
    seen, stack = {node}, [node]
    while stack:
        for earlier in before[stack.pop()] - seen:
            if earlier == other:
                return True
            seen.add(earlier)
            stack.append(earlier)
    return False


def _sorted(before: list[set[int]]) -> list[int]:
    """Each node behind those `before` it, else in order."""
    order: list[int] = []
    placed: set[int] = set()
    for goal in range(len(before)):
        stack = [goal]
        while stack:
            missing = before[stack[-1]] - placed
            if missing:
                stack.extend(sorted(missing, reverse=True))
                continue
            number = stack.pop()
            if number not in placed:
                placed.add(number)
                order.append(number)
    return order
