"""What kernels see of a graph's values: Operands of views, and attention's operands on the axes that it takes."""

import math
from dataclasses import replace

import numpy as np

from wgattn._dtypes import float32, int32
from wgattn._graph.graph import View
from wgattn._kernels.attention.problem import TAILED
from wgattn._kernels.kernel import Operand

ALIGNMENT = 16  # kernels read whole quads, so every buffer is padded to one


def operand(dtype: np.dtype, view: View) -> Operand:
    return Operand(dtype, view.shape, view.strides, view.offset)


def nbytes(layout: Operand) -> int:
    """The bytes of a buffer that holds an operand, padded."""
    return padded(layout.extent()[1] * layout.itemsize)


def padded(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def expand(given: Operand, shape: tuple[int, ...]) -> Operand:
    """`given` broadcast to `shape`, axes aligned at the right: those that are missing or of size 1 get stride 0."""
    missing = len(shape) - len(given.shape)
    sizes, strides = (1,) * missing + given.shape, (0,) * missing + given.strides
    steps = tuple(0 if have == 1 else stride for have, stride in zip(sizes, strides, strict=True))
    return replace(given, shape=shape, strides=steps)


def narrow(given: Operand) -> Operand:
    """`given` with its broadcast axes cut to one element: what a copy of it has to hold."""
    return replace(
        given, shape=tuple(1 if stride == 0 else size for size, stride in zip(given.shape, given.strides, strict=True))
    )


def heads(given: Operand, batch: tuple[int, int]) -> Operand:
    """query, key, value or out as (B0, B1, T or S, N or K, H or Hv)."""
    return expand(given, (*batch, *given.shape[-3:]))


def rows_are_runs(given: Operand) -> bool:
    """Whether attention's kernels can read rows of `given`: the last axis lies element by element."""
    return given.strides[-1] == 1 or given.shape[-1] == 1


def per_entry(name: str, given: Operand, batch: tuple[int, int]) -> Operand:
    """A small run-time array as (1 or B0 · B1,), segments with T or S behind, sinks with N."""
    tail = given.shape[-1:] if name in TAILED else ()
    lead = given.shape[: len(given.shape) - len(tail)]
    if all(size == 1 for size in lead):
        return replace(given, shape=(1, *tail), strides=(math.prod(tail), *given.strides[len(lead) :]))
    whole = expand(given, (*batch, *tail))
    (B0, B1), (outer, inner) = batch, whole.strides[:2]
    if B0 == 1 or B1 == 1 or outer == B1 * inner:
        step = outer if B1 == 1 else inner
        return replace(whole, shape=(B0 * B1, *tail), strides=(step, *whole.strides[2:]))
    return whole


def small_dtype(name: str) -> np.dtype:
    return float32 if name in ("sinks", "scale") else int32
