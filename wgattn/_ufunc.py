"""NumPy ufuncs on an Array. Those that are operators, with a NumPy array on the left, use ours; others raise."""

from typing import Any

import numpy as np

_OPERATORS: dict[np.ufunc, tuple[str, str]] = {
    np.add: ("__add__", "__radd__"),
    np.subtract: ("__sub__", "__rsub__"),
    np.multiply: ("__mul__", "__rmul__"),
    np.true_divide: ("__truediv__", "__rtruediv__"),
    np.bitwise_and: ("__and__", "__rand__"),
    np.bitwise_or: ("__or__", "__ror__"),
    np.equal: ("__eq__", "__eq__"),
    np.not_equal: ("__ne__", "__ne__"),
    np.less: ("__lt__", "__gt__"),
    np.less_equal: ("__le__", "__ge__"),
    np.greater: ("__gt__", "__lt__"),
    np.greater_equal: ("__ge__", "__le__"),
    np.matmul: ("__matmul__", "__rmatmul__"),
    np.power: ("__pow__", "__rpow__"),
    np.remainder: ("__mod__", "__rmod__"),
    np.floor_divide: ("__floordiv__", "__rfloordiv__"),
}


def array_ufunc(self: Any, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
    """`__array_ufunc__` of Array.

    `a + x` for a NumPy array a and an Array x arrives here as np.add and gives an Array; `a += x` writes into a. Raises
    TypeError for all other functions.
    """
    if ufunc in _OPERATORS and method == "__call__" and not options:
        (direct, reflected), (left, right) = _OPERATORS[ufunc], inputs
        return getattr(left, direct)(right) if isinstance(left, type(self)) else getattr(self, reflected)(left)
    if ufunc in _OPERATORS and method == "__call__" and options.keys() == {"out"}:
        (out,) = options["out"]
        if out is inputs[0] and isinstance(out, np.ndarray):
            return ufunc(out, np.asarray(self), out=out)
    called = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    raise TypeError(f"numpy.{called} is for NumPy arrays and leaves a wgattn.Array alone: take np.asarray(x) first")


def refuse_dtype_and_out(dtype: object, out: object) -> None:
    """Raise TypeError if either is given. np.sum(x) and np.mean(x) call x's methods with both None."""
    if dtype is not None or out is not None:
        raise TypeError("sum and mean of an Array take no dtype and no out: cast the result with .astype(dtype)")
