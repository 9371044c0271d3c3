"""The rewriter: small passes over the recorded graph, each one idea, that fold what they can into attention."""

from collections.abc import Callable

from wgattn._graph.graph import Graph

from .batches import join_batches
from .casts import join_casts, read_arrays_narrow, read_narrow, store_narrow
from .dead import drop_dead
from .duplicates import merge_duplicates
from .groups import fold_repeats
from .neighbours import join_neighbours
from .readers import read_first
from .rotations import fold_rotations
from .scales import fold_scales
from .stores import fold_stores
from .views import fold_views

LOADS = (fold_repeats, fold_scales, fold_rotations, read_narrow)
STORES = (read_arrays_narrow, store_narrow, fold_stores)


def fuse(graph: Graph) -> Graph:
    """The same outputs from fewer nodes. Equal recordings give equal graphs; a fused graph holds no view operation.

    Raises nothing: what no pass can fold stays a node of its own.
    """
    graph = drop_dead(merge_duplicates(join_casts(fold_views(merge_duplicates(drop_dead(graph))))))
    graph = _until_settled(_until_settled(graph, LOADS), STORES)
    return read_first(drop_dead(merge_duplicates(join_neighbours(join_batches(graph)))))


def _until_settled(graph: Graph, passes: tuple[Callable[[Graph], Graph], ...]) -> Graph:
    before = None
    while graph != before:
        before = graph
        for rewrite in passes:
            graph = drop_dead(rewrite(graph))
    return graph
