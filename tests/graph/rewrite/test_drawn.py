"""Every pass, and all of them, leave the values of drawn graphs as they were."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.graph.evaluate import evaluate
from tests.graph.recording import VIEWS, arguments, count
from tests.graph.rewrite.drawn import graphs
from tests.graph.rewrite.drawn_calls import calls
from wgattn._graph import operations as op
from wgattn._graph.graph import Graph
from wgattn._graph.rewrite import batches, casts, dead, duplicates, fuse, groups, rotations, scales, stores, views

DRAWN = settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
PASSES = {
    "views": lambda graph: graph,
    "duplicates": duplicates.merge_duplicates,
    "dead": dead.drop_dead,
    "join_casts": casts.join_casts,
    "read_narrow": casts.read_narrow,
    "read_arrays_narrow": casts.read_arrays_narrow,
    "store_narrow": casts.store_narrow,
    "repeats": groups.fold_repeats,
    "rotations": rotations.fold_rotations,
    "scales": scales.fold_scales,
    "stores": stores.fold_stores,
    "batches": batches.join_batches,
}


def same(before: Graph, after: Graph) -> None:
    """The outputs agree to what 16-bit steps in between may round away."""
    for left, right in zip(evaluate(before, arguments(before)), evaluate(after, arguments(before)), strict=True):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        narrow = any(aval.dtype.itemsize == 2 for node in before.nodes for aval in node.avals)
        scale = max(1.0, float(np.abs(left.astype(np.float64)).max(initial=0)))
        np.testing.assert_allclose(
            right.astype(np.float64), left.astype(np.float64), atol=(5e-2 if narrow else 2e-5) * scale, rtol=0
        )


@pytest.mark.parametrize("name", PASSES)
@settings(DRAWN, max_examples=25)
@given(graph=st.one_of(graphs(), calls()))
def test_a_pass_keeps_the_values(name, graph):
    seen = dead.drop_dead(views.fold_views(graph))
    assert count(seen, *VIEWS, op.Repeat) == 0
    same(graph, PASSES[name](seen))


@DRAWN
@given(graph=st.one_of(graphs(), calls()))
def test_fusing_keeps_the_values_and_is_done_once(graph):
    fused = fuse(graph)
    same(graph, fused)
    assert fuse(fused) == fused
    assert hash(fuse(graph)) == hash(fused)
