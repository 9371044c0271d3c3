"""Values from outside, such as NumPy and JAX arrays, DLPack and Python scalars, as NumPy arrays of a known dtype."""

from typing import Any

import numpy as np

from ._dtypes import bool_, canonical, float32, int32
from ._graph.graph import Aval

Scalar = bool | int | float


def is_scalar(x: object) -> bool:
    """Whether x is a Python scalar, whose type yields to an array's."""
    return isinstance(x, bool | int | float) and not isinstance(x, np.generic)


def scalar_dtype(x: Scalar) -> np.dtype:
    return bool_ if isinstance(x, bool) else int32 if isinstance(x, int) else float32


def checked(x: Scalar, dtype: np.dtype) -> Scalar:
    """x itself. Raises OverflowError for an integer that `dtype` cannot hold, as jax does."""
    if dtype == int32 and isinstance(x, int) and not -(2**31) <= x < 2**31:
        unsigned = f"np.uint32({x}) or " if 0 <= x < 2**32 else ""
        raise OverflowError(f"the Python integer {x} does not fit into int32; give {unsigned}a float")
    return x


def host_value(x: Any, copy: bool) -> tuple[np.ndarray, Aval]:
    """x as a row-major array of a dtype that wgattn has, and its aval. With `copy`, a private, read-only copy."""
    if is_scalar(x):
        dtype = scalar_dtype(x)
        with np.errstate(over="ignore"):  # a number above float32's range is inf, as in jax
            return np.asarray(checked(x, dtype), dtype), Aval((), dtype, not isinstance(x, bool))
    given = _numpy(x)
    if given.dtype.byteorder not in "=|":
        given = given.astype(given.dtype.newbyteorder("="))
    dtype = canonical(given.dtype)
    if dtype == given.dtype:
        value = np.array(given, order="C", copy=True if copy else None)
    else:
        with np.errstate(over="ignore"):
            value = given.astype(dtype, order="C")
    if copy:
        value.flags.writeable = False
    return value, Aval(value.shape, dtype)


def _numpy(x: Any) -> np.ndarray:
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    if type(x).__name__.endswith("Tracer") and type(x).__module__.startswith("jax"):
        raise TypeError(
            "a traced JAX value reached wgattn: inside jax.jit, grad or vmap call wgattn.jax.dot_product_attention, "
            "or wgattn.jax.call(fn, *args) for a wgattn.jit function"
        )
    if hasattr(x, "__dlpack__") and not hasattr(x, "__array__"):
        return np.from_dlpack(x)
    if isinstance(x, list | tuple) and any(hasattr(n, "block_until_ready") for n in x):
        raise TypeError("a list of Arrays is no array: join them, wgattn.concatenate([a[None] for a in arrays])")
    if hasattr(x, "__array__") or isinstance(x, list | tuple):
        found = np.asarray(x)
        if found.dtype != object:
            return found
    raise TypeError(f"asarray takes NumPy and JAX arrays, DLPack, scalars and lists of them; got {type(x).__name__}")
