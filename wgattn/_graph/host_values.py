"""Small integers computed in NumPy from what the host knows: lengths, offsets and page tables, never read back."""

from collections.abc import Callable, Sequence

import numpy as np

from wgattn._dtypes import bool_, int32, uint32
from wgattn._kernels.stored import SIDES

from .graph import Aval
from .operations import (
    BroadcastTo,
    CacheAppend,
    CacheMove,
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

FEW = 64  # elements
LARGEST = 1 << 18  # elements: a page table of 64 sequences with 4,096 pages each
_COMPUTED = (
    Constant, Elementwise, Reshape, Transpose, Slice, BroadcastTo, Repeat, Cast, Pad, Concatenate, CacheMove, Copy
)  # fmt: skip


def kept(aval: Aval) -> bool:
    """Whether values like this one are kept on the host where they are known there."""
    return aval.dtype in (int32, uint32, bool_) and aval.size <= LARGEST


def needs(operation: object, result: int, operands: int) -> tuple[int, ...] | None:
    """Which of the `operands` give this result on the host; None where the device alone can give it."""
    match operation:
        case Elementwise("exp" | "divide") | CacheMove(destination=True):
            return None
        case CacheAppend(names) if operation.results[result] == "lengths":
            return tuple(names.index(name) for name in ("lengths", "counts") if name in names)
    return tuple(range(operands)) if isinstance(operation, _COMPUTED) else None


def evaluated(operation: object, aval: Aval, operands: list[np.ndarray], avals: Sequence[Aval]) -> np.ndarray:
    """The result of an operation that `needs` these operands, which are `kept`; `avals` are of all that it has."""
    return evaluator(operation, aval, avals)(*operands)


def evaluator(operation: object, aval: Aval, avals: Sequence[Aval]) -> Callable[..., np.ndarray]:
    """The function of the operands' values that gives the result: what is known once is worked out once."""
    if isinstance(operation, CacheAppend):
        return _lengths(operation, avals)

    def result(*operands: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            found = np.asarray(_evaluated(operation, list(operands)))
        return np.ascontiguousarray(found, aval.dtype).reshape(aval.shape)

    return result


def _lengths(append: CacheAppend, avals: Sequence[Aval]) -> Callable[..., np.ndarray]:
    """The lengths after an append, as its kernel counts them, of those before and the counts."""
    given = dict(zip(append.operands, avals, strict=True))
    side = next(name for name in SIDES if name in given)
    tokens, capacity = given[f"new_{side}"].shape[1], given[side].shape[1]
    if "pages" in given:
        capacity *= given["pages"].shape[1]

    def after(lengths: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
        if counts is None and lengths.size <= FEW:  # Python's numbers are quicker
            now = [max(n, 0) + tokens for n in lengths.tolist()]
            return np.array(now if append.ring is not None else [min(n, capacity) for n in now], np.int32)
        found = np.maximum(lengths, 0)
        found += tokens if counts is None else counts.clip(0, tokens)
        return found if append.ring is not None else np.minimum(found, capacity, out=found)

    return after


def _evaluated(operation: object, operands: list[np.ndarray]) -> np.ndarray | float:
    match operation:
        case Constant(value):
            return value
        case Elementwise(function):
            return getattr(np, function)(*operands)
        case Concatenate(axis):
            return np.concatenate(operands, axis)
        case CacheMove():
            storage, source = operands
            return storage[source.clip(0, len(storage) - 1)]
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
