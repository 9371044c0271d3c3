"""The public functions on Arrays other than attention: concatenate, where, sums, and those that deal with devices."""

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _run
from ._array import Array, apply, asarray, broadcast, coerced, elementwise, of, promoted
from ._dtypes import bool_, float32, is_float
from ._graph.graph import Aval
from ._graph.indexing import axis_of
from ._graph.operations import Concatenate, Elementwise, Repeat, Sum
from ._graph.rules import infer
from ._host import is_scalar
from ._record import leaf

if TYPE_CHECKING:
    from ._runtime import AdapterInfo


def concatenate(arrays: Sequence[Any], axis: int = 0) -> Array:
    """Arrays joined along `axis`, in the dtype that they promote to. Their shapes must be equal on the other axes.

    Raises ValueError if there are no arrays, and for shapes that differ on another axis.

    Example:
        >>> wgattn.concatenate([np.ones((2, 1)), np.ones((2, 3))], axis=1).shape
        (2, 4)
    """
    if isinstance(arrays, Array):
        arrays = list(arrays)
    parts = [asarray(a) for a in arrays]
    if not parts:
        raise ValueError("concatenate needs at least one array")
    dtype, weak = promoted(parts)
    parts = [coerced(a, dtype, weak) for a in parts]
    at = axis_of(axis, parts[0].ndim)
    whole = apply(Concatenate(at), *parts)
    full = [a for a in parts if a.size]
    return whole if len(full) in (0, len(parts)) else full[0] if len(full) == 1 else apply(Concatenate(at), *full)


def where(condition: Any, x: Any, y: Any) -> Array:
    """x where `condition` (bool) is true, else y. All three broadcast, and x and y promote to one dtype.

    Raises TypeError for a condition that is not bool.

    Example:
        >>> x = wgattn.asarray(np.array([-1.0, 2.0], np.float32)); np.asarray(wgattn.where(x > 0, x, 0)).tolist()
        [0.0, 2.0]
    """
    chosen = asarray(condition)
    if chosen.dtype != bool_:
        raise TypeError(f"the condition of where must be bool; got {chosen.dtype.name}: compare it, as in c != 0")
    sides = [s if is_scalar(s) else asarray(s) for s in (x, y)]
    dtype, weak = promoted(sides)
    return apply(Elementwise("where"), chosen, *(coerced(s, dtype, weak) for s in sides))


def exp(x: Any) -> Array:
    """e to the power of each element. A float x keeps its dtype; integers and bools give float32.

    Example:
        >>> np.asarray(wgattn.exp(np.zeros(2, np.float32))).tolist()
        [1.0, 1.0]
    """
    return elementwise("exp", asarray(x))


def sum(x: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """The sum of a float array over `axis` (by default all axes), accumulated in float32 in a fixed order.

    Raises TypeError for integers and bools, ValueError for an axis that does not exist or is given twice.

    Example:
        >>> np.asarray(wgattn.sum(np.ones((2, 3), np.float32), axis=1)).tolist()
        [3.0, 3.0]
    """
    return _sum(asarray(x), axis, keepdims, mean=False)


def mean(x: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """The mean over `axis` (by default all axes), computed in float32. A float x keeps its dtype; others give float32.

    Raises ValueError for an axis that does not exist or is given twice.

    Example:
        >>> float(wgattn.mean(np.arange(4)))
        1.5
    """
    array = asarray(x)
    return _sum(array if is_float(array.dtype) else array.astype(float32), axis, keepdims, mean=True)


def _sum(x: Array, axis: Any, keepdims: bool, mean: bool) -> Array:
    given = range(x.ndim) if axis is None else (axis,) if not isinstance(axis, list | tuple) else axis
    axes = tuple(sorted(axis_of(a, x.ndim) for a in given))
    if len(set(axes)) != len(axes):
        raise ValueError(f"an axis is given twice in {axis}")
    count = math.prod(x.shape[a] for a in axes)
    operation = Sum(axes, keepdims, count if mean and count else 1)
    if x.size:
        return apply(operation, x) if axes else x
    (aval,) = infer(operation, [x._aval])
    return of(leaf(np.full(aval.shape, np.nan if mean else 0, aval.dtype), Aval(aval.shape, aval.dtype)))


def repeat(x: Any, repeats: int, axis: int | None = None) -> Array:
    """Each element along `axis` repeated `repeats` times, as numpy.repeat; by default x is flattened first.

    Key and value heads that are repeated for an attention call are not copied: they are read once for their group.

    Raises TypeError for a count per element, ValueError for a negative count.

    Example:
        >>> wgattn.repeat(np.ones((2, 7, 2, 64), np.float32), 4, axis=2).shape
        (2, 7, 8, 64)
    """
    array = asarray(x)
    if getattr(repeats, "ndim", 0) or isinstance(repeats, list | tuple):
        raise TypeError("repeat takes one integer for repeats; counts that differ by element are not taken")
    if axis is None:
        array, axis = array.reshape(-1), 0
    count = operator.index(repeats)
    return array if count == 1 else apply(Repeat(count, axis_of(axis, array.ndim)), array)


def broadcast_to(x: Any, shape: int | list[int] | tuple[int, ...]) -> Array:
    """x broadcast to `shape` by NumPy's rules, without a copy.

    Raises ValueError for a shape that x does not broadcast to.

    Example:
        >>> wgattn.broadcast_to(np.ones((1, 3), np.float32), (2, 4, 3)).shape
        (2, 4, 3)
    """
    sizes = shape if isinstance(shape, list | tuple) else (shape,)
    return broadcast(asarray(x), tuple(operator.index(n) for n in sizes))


def device_put(x: Any) -> Array:
    """`asarray`, but uploaded to the device before it returns. Use it for what a jitted function is to be donated.

    Raises AdapterNotFoundError if there is no device, OutOfDeviceMemoryError if the bytes do not fit.

    Example:
        >>> wgattn.device_put(np.ones(3, np.float32)).is_ready()
        True
    """
    array = asarray(x)
    _run.force([(array._step, array._result)], "device_put")
    _run.stored(array._step, array._result)
    return array


def devices() -> "tuple[AdapterInfo, ...]":
    """The adapters of this machine, found without making a device; empty if there is no driver.

    Each has `index`, `name`, `kind` ("discrete", "integrated", "cpu" or "unknown"), `backend` and `driver`.

    Example:
        >>> [adapter.index for adapter in wgattn.devices()][:1]
        [0]
    """
    from ._runtime import list_adapters

    return list_adapters()


def default_device(adapter: int | str) -> None:
    """Choose the adapter, by its index in `devices()` or by a part of its name. Call it before anything uses a device.

    Raises AdapterNotFoundError for an adapter that does not exist, WgattnError once a device is in use.
    """
    from ._runtime import choose_adapter

    choose_adapter(adapter)
