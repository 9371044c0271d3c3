"""Drawn programs on the device, fused, against the recorded graph in NumPy."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.graph.evaluate import evaluate
from tests.graph.recording import arguments
from tests.graph.rewrite.drawn import graphs
from tests.graph.rewrite.drawn_calls import calls
from tests.schedule.run_graph import run_graph
from wgattn._graph.graph import Graph

pytestmark = pytest.mark.device
DRAWN = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def same(graph: Graph, donated: tuple[int, ...] = ()) -> None:
    given = arguments(graph)
    for right, found in zip(evaluate(graph, given), run_graph(graph, given, donated), strict=True):
        assert found.dtype == right.dtype
        narrow = any(aval.dtype.itemsize == 2 for node in graph.nodes for aval in node.avals)
        scale = max(1.0, float(np.abs(right.astype(np.float64)).max(initial=0)))
        np.testing.assert_allclose(
            found.astype(np.float64), right.astype(np.float64), atol=(5e-2 if narrow else 2e-5) * scale, rtol=0
        )


@settings(DRAWN, max_examples=25)
@given(graph=calls())
def test_attention_programs(graph):
    same(graph)


@settings(DRAWN, max_examples=40)
@given(graph=graphs())
def test_any_programs_with_a_donated_argument(graph):
    same(graph, donated=(0,))
