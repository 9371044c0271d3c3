"""The recorded program, an immutable value: operations in order, each use a strided view of what a node wrote."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from wgattn._dtypes import short_name
from wgattn._kernels.kernel import natural_strides


@dataclass(frozen=True, slots=True)
class Aval:
    """What is known of a value before it is computed: shape and dtype; weak where it came from a Python scalar."""

    shape: tuple[int, ...]
    dtype: np.dtype
    weak: bool = False

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        size = 1
        for n in self.shape:
            size *= n
        return size


def describe(aval: Aval) -> str:
    """`f16[2,1024,8,64]`: an aval in the text form of graphs."""
    return f"{short_name(aval.dtype)}[{','.join(map(str, aval.shape))}]"


@dataclass(frozen=True, slots=True)
class View:
    """Where a value lies in its node's buffer: offset and strides in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @staticmethod
    @lru_cache(maxsize=4096)
    def natural(shape: tuple[int, ...]) -> "View":
        return View(shape, natural_strides(shape), 0)


@dataclass(frozen=True, slots=True)
class Use:
    """A use of result number `result` of node number `node`; `view` None: as the node wrote it."""

    node: int
    result: int = 0
    view: View | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """An operation, what it uses, and for each result its aval and how it lies in the buffer that the node fills."""

    operation: object  # one of _graph.operations
    uses: tuple[Use, ...]
    avals: tuple[Aval, ...]
    layouts: tuple[View, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order in which they can run; inputs are nodes too."""

    nodes: tuple[Node, ...]
    outputs: tuple[Use, ...]

    def view(self, use: Use) -> View:
        """The layout that a use sees."""
        return self.nodes[use.node].layouts[use.result] if use.view is None else use.view

    def aval(self, use: Use) -> Aval:
        known = self.nodes[use.node].avals[use.result]
        return known if use.view is None else Aval(use.view.shape, known.dtype, known.weak)
