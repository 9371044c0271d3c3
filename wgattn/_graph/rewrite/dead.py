"""Nodes that no output needs are dropped, inputs too."""

from wgattn._graph.graph import Graph

from .rebuild import Rebuild


def drop_dead(graph: Graph) -> Graph:
    needed = {use.node for use in graph.outputs}
    for number in reversed(range(len(graph.nodes))):
        if number in needed:
            needed.update(use.node for use in graph.nodes[number].uses)
    if len(needed) == len(graph.nodes):
        return graph
    rebuild = Rebuild(graph)
    for number in sorted(needed):
        rebuild.keep(number)
    return rebuild.finish()
