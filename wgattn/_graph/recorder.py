"""What adjoints are written in and what they see: a recorder of operations on values of some kind, and a node."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from .graph import Aval
from .operations import Reshape, Sum

V = TypeVar("V")


class Recorder(Protocol[V]):
    """Records operations on values of some kind: what adjoints are written in."""

    def do(self, operation: object, *operands: V) -> tuple[V, ...]: ...

    def constant(self, value: float, dtype: np.dtype) -> V: ...

    def aval(self, value: V) -> Aval: ...


@dataclass(frozen=True, slots=True)
class Forward(Generic[V]):
    """A node as its adjoint sees it; of the values those are there that `needed` asks for."""

    operation: object
    avals: tuple[Aval, ...]  # of the operands
    operands: tuple[V | None, ...]
    results: tuple[V | None, ...]


def summed(record: Recorder[V], cotangent: V, shape: tuple[int, ...]) -> V:
    """The adjoint of broadcasting `shape`: the sum over what was repeated."""
    have = record.aval(cotangent).shape
    lead = len(have) - len(shape)
    axes = tuple(a for a, n in enumerate(have) if a < lead or (n != 1 and shape[a - lead] == 1))
    if axes:
        (cotangent,) = record.do(Sum(axes), cotangent)
    return reshaped(record, cotangent, shape)


def reshaped(record: Recorder[V], x: V, shape: tuple[int, ...]) -> V:
    """`x` in `shape`; itself where it has that."""
    return x if record.aval(x).shape == shape else record.do(Reshape(shape), x)[0]
