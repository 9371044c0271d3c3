"""make_graph: shows what a function records."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ._graph.graph import Graph
from ._graph.text import Result, as_text
from ._jit import JitFunction, jit


class Recorded:
    """The result of `make_graph`. Its repr is the recorded graph as text; `graph` is the Graph."""

    def __init__(self, graph: Graph, results: Sequence[Result]) -> None:
        self.graph, self._results = graph, results

    def __repr__(self) -> str:
        return as_text(self.graph, results=self._results)


def make_graph(fn: Callable[..., Any]) -> Callable[..., Recorded]:
    """A function that shows what `fn` records for its arguments, as `jax.make_jaxpr`. Needs no device.

    Example:
        >>> wgattn.make_graph(lambda x: x * 2)(np.ones(3, np.float32))
        a: f32[3]
        b = multiply a 2.0
        out b: f32[3]
    """
    traced = fn if isinstance(fn, JitFunction) else jit(fn)

    @functools.wraps(fn)
    def recorded(*args: Any, **kwargs: Any) -> Recorded:
        found = traced.lower(*args, **kwargs)._traced
        return Recorded(found.graph, found.told)

    return recorded
