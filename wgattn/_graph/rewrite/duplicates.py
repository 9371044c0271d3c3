"""Equal operations on equal uses are computed once."""

from wgattn._graph.graph import Graph, Use
from wgattn._graph.operations import Constant

from .rebuild import Rebuild


def merge_duplicates(graph: Graph) -> Graph:
    rebuild, known = Rebuild(graph), {}
    for number, node in enumerate(graph.nodes):
        # 0.0 equals -0.0 and no NaN equals another, so a constant goes by its text
        what = repr(node.operation) if isinstance(node.operation, Constant) else node.operation
        key = (what, tuple(rebuild.use(use) for use in node.uses), node.avals, node.layouts)
        if key in known:
            for result in range(len(node.avals)):
                rebuild.became[number, result] = Use(known[key], result)
        else:
            known[key] = rebuild.keep(number)
    return rebuild.finish()
