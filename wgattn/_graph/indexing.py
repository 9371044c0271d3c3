"""Basic indexing, as NumPy has it: what an index keeps of a shape."""

import operator
from typing import Any

from .operations import Slice


def basic(index: Any, shape: tuple[int, ...]) -> tuple[Slice, tuple[int, ...]]:
    """The Slice of every axis that `index` takes, and the shape that is left: integers drop an axis, None adds one.

    Raises IndexError for an integer out of range or too many indices, TypeError for an index that is an array.

    Example: basic((0, slice(1, None), None), (2, 5))[1] is (4, 1).
    """
    parts = index if isinstance(index, tuple) else (index,)
    ellipses = sum(part is Ellipsis for part in parts)
    if ellipses > 1:
        raise IndexError("an index can have only one ellipsis (...)")
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    if taken > len(shape):
        raise IndexError(f"{taken} indices were given for an array of {len(shape)} axes, shape {shape}")
    if not ellipses:
        parts = (*parts, Ellipsis)
    starts, sizes, steps, kept = [], [], [], []
    for part in parts:
        if part is None:
            kept.append(1)
            continue
        if part is Ellipsis:
            whole = shape[len(sizes) : len(sizes) + len(shape) - taken]
            starts += [0] * len(whole)
            steps += [1] * len(whole)
            sizes += whole
            kept += whole
            continue
        axis, n = len(sizes), shape[len(sizes)]
        if isinstance(part, slice):
            start, stop, step = part.indices(n)
            size = len(range(start, stop, step))
            kept.append(size)
        else:
            start, size, step = _integer(part, axis, n), 1, 1
        starts.append(start if size else 0)
        sizes.append(size)
        steps.append(step)
    return Slice(tuple(starts), tuple(sizes), tuple(steps)), tuple(kept)


def _integer(part: Any, axis: int, n: int) -> int:
    if isinstance(part, bool) or getattr(part, "ndim", 0) or isinstance(part, list) or not hasattr(part, "__index__"):
        raise TypeError(
            f"an index may be integers, slices, None and ...; got {type(part).__name__}: gathering by arrays is not "
            "part of wgattn, so index np.asarray(x), or choose with wgattn.where and concatenate"
        )
    at = operator.index(part)
    if not -n <= at < n:
        raise IndexError(f"index {at} is out of range for axis {axis} of size {n}")
    return at % n


def axis_of(axis: Any, ndim: int) -> int:
    """`axis` counted from the front. Raises ValueError where there is none."""
    at = operator.index(axis)
    if not -ndim <= at < ndim:
        raise ValueError(f"axis {at} does not exist in an Array of {ndim} axes")
    return at % ndim


def sizes_of(given: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes or axes, given one by one or as one sequence."""
    sizes = given[0] if len(given) == 1 and isinstance(given[0], tuple | list) else given
    return tuple(operator.index(n) for n in sizes)
