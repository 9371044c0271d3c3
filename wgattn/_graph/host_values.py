"""Small integers computed in NumPy from what the host knows: lengths, offsets and page tables, never read back."""

import numpy as np

from wgattn._dtypes import bool_, int32, uint32

from .graph import Aval
from .operations import (
    BroadcastTo,
    Cast,
    Concatenate,
    Constant,
    Copy,
    Elementwise,
    Pad,
    Repeat,
    Reshape,
    Slice,
    Transpose,
)

LARGEST = 1 << 18  # elements: a page table of 64 sequences with 4,096 pages each
_COMPUTED = (Constant, Elementwise, Reshape, Transpose, Slice, BroadcastTo, Repeat, Cast, Pad, Concatenate, Copy)


def kept(aval: Aval) -> bool:
    """Whether values like this one are kept on the host where they are known there."""
    return aval.dtype in (int32, uint32, bool_) and aval.size <= LARGEST


def needs(operation: object, result: int, operands: int) -> tuple[int, ...] | None:
    """Which of the `operands` give this result on the host; None where the device alone can give it."""
    if isinstance(operation, Elementwise) and operation.function in ("exp", "divide"):
        return None
    return tuple(range(operands)) if isinstance(operation, _COMPUTED) else None


def evaluated(operation: object, aval: Aval, operands: list[np.ndarray]) -> np.ndarray:
    """The result of an operation with `needs`, of operands that are `kept`."""
    with np.errstate(over="ignore"):
        found = np.asarray(_evaluated(operation, operands))
    return np.ascontiguousarray(found, aval.dtype).reshape(aval.shape)


def _evaluated(operation: object, operands: list[np.ndarray]) -> np.ndarray | float:
    match operation:
        case Constant(value):
            return value
        case Elementwise(function):
            return getattr(np, function)(*operands)
        case Concatenate(axis):
            return np.concatenate(operands, axis)
    (x,) = operands
    match operation:
        case Reshape(shape):
            return x.reshape(shape)
        case Transpose(axes):
            return x.transpose(axes)
        case Slice(start, size, step):
            picked = (np.arange(n) * by + first for first, n, by in zip(start, size, step, strict=True))
            return x[np.ix_(*picked)] if size else x
        case BroadcastTo(shape):
            return np.broadcast_to(x, shape)
        case Repeat(repeats, axis):
            return np.repeat(x, repeats, axis)
        case Cast(dtype):
            return x.astype(dtype)
        case Pad(low, high):
            return np.pad(x, list(zip(low, high, strict=True)))
        case Copy():
            return x
    raise TypeError(f"{operation!r} is not computed on the host")
