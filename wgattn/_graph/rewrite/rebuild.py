"""What every pass stands on: a graph written anew, node by node, with each old result's place in the new one."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from wgattn._graph.graph import Aval, Graph, Node, Use, View
from wgattn._graph.operations import Copy

from .strides import broadcast, settled, through

Results = dict[tuple[int, int], Use]


class Rebuild:
    """A new graph in the making. `became` says which new use holds each (node, result) of the old graph."""

    def __init__(self, graph: Graph) -> None:
        self.old = graph
        self.nodes: list[Node] = []
        self.became: Results = {}

    def add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def view(self, use: Use) -> View:
        """The layout that a new use sees."""
        return self.nodes[use.node].layouts[use.result] if use.view is None else use.view

    def seen(self, use: Use, view: View) -> Use:
        """A new use of the same result as `view`."""
        return seen(self.nodes, use, view)

    def use(self, old: Use) -> Use:
        """The new use that sees what `old` saw. Where no view does, a Copy is added."""
        layout, new = self.old.nodes[old.node].layouts[old.result], self.became[old.node, old.result]
        if old.view is None or old.view == layout:
            return new
        here = self.view(new)
        if here == layout:
            return self.seen(new, old.view)
        view = through(old.view, layout, here)
        return self.copy(new, layout, old.view) if view is None else self.seen(new, view)

    def copy(self, use: Use, layout: View | None = None, view: View | None = None) -> Use:
        """A Copy of a new use, lying as `layout` (contiguous unless given), seen as `view`."""
        shape, known = self.view(use).shape, self.nodes[use.node].avals[use.result]
        layout = layout or View.natural(shape)
        made = self.add(Node(Copy(), (use,), (Aval(shape, known.dtype, known.weak),), (layout,)))
        return Use(made, 0, None if view == layout else view)

    def keep(self, number: int, node: Node | None = None) -> int:
        """Carry old node `number` over, or `node` in its place (whose uses are still the old graph's)."""
        node = self.old.nodes[number] if node is None else node
        made = self.add(replace(node, uses=tuple(self.use(use) for use in node.uses)))
        for result in range(len(node.avals)):
            self.became[number, result] = Use(made, result)
        return made

    def finish(self) -> Graph:
        return Graph(tuple(self.nodes), tuple(self.use(use) for use in self.old.outputs))


def each(graph: Graph, rewrite: Callable[[int, Node], Node]) -> Graph:
    """The graph with every node put through `rewrite`, which may change its operation and uses, but no result."""
    return Graph(tuple(rewrite(number, node) for number, node in enumerate(graph.nodes)), graph.outputs)


def users(graph: Graph) -> dict[tuple[int, int], list[int]]:
    """For each (node, result): the numbers of the nodes that use it, once a use; -1 for the graph's outputs."""
    found: dict[tuple[int, int], list[int]] = {}
    for number, node in enumerate(graph.nodes):
        for use in node.uses:
            found.setdefault((use.node, use.result), []).append(number)
    for use in graph.outputs:
        found.setdefault((use.node, use.result), []).append(-1)
    return found


def before(graph: Graph, use: Use, operand: int = 0) -> Use | None:
    """What `use` sees of an operand of its node, which computes each element from the same one of that operand."""
    node = graph.nodes[use.node]
    layout, source = node.layouts[0], node.uses[operand]
    view = through(graph.view(use), layout, broadcast(graph.view(source), layout.shape))
    return None if view is None else seen(graph.nodes, source, view)


def seen(nodes: Sequence[Node], use: Use, view: View) -> Use:
    """A use of the same result as `view`; None where that is how the node wrote it."""
    layout = nodes[use.node].layouts[use.result]
    return Use(use.node, use.result, None if view in (layout, settled(layout)) else view)
