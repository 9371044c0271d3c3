"""The rewriter: small passes over the recorded graph, each one idea, that fold what they can into attention."""

from wgattn._graph.graph import Graph

from .batches import join_batches
from .casts import join_casts, read_arrays_narrow, read_narrow, store_narrow
from .dead import drop_dead
from .duplicates import merge_duplicates
from .groups import fold_repeats
from .rotations import fold_rotations
from .scales import fold_scales
from .stores import fold_stores
from .views import fold_views

LOADS = (fold_repeats, fold_scales, fold_rotations, read_narrow)


def fuse(graph: Graph) -> Graph:
    """The same outputs from fewer nodes. Equal recordings give equal graphs; a fused graph holds no view operation.

    Raises nothing: what no pass can fold stays a node of its own.
    """
    graph = drop_dead(merge_duplicates(join_casts(fold_views(merge_duplicates(drop_dead(graph))))))
    before = None
    while graph != before:
        before = graph
        for fold in LOADS:
            graph = drop_dead(fold(graph))
    graph = drop_dead(fold_stores(store_narrow(read_arrays_narrow(graph))))
    return drop_dead(merge_duplicates(join_batches(graph)))
