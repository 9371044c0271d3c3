"""The element types: which compute, which only store, their short names and jax.numpy's promotion with x64 off."""

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

float32 = np.dtype(np.float32)
float16 = np.dtype(np.float16)
bfloat16 = np.dtype(ml_dtypes.bfloat16)
int32 = np.dtype(np.int32)
uint32 = np.dtype(np.uint32)
bool_ = np.dtype(np.bool_)
int8 = np.dtype(np.int8)
uint8 = np.dtype(np.uint8)
float8_e4m3fn = np.dtype(ml_dtypes.float8_e4m3fn)
float8_e5m2 = np.dtype(ml_dtypes.float8_e5m2)
int4 = np.dtype(ml_dtypes.int4)

FLOATS = (float32, float16, bfloat16)
COMPUTE = (*FLOATS, int32, uint32, bool_)
STORAGE = (int8, uint8, float8_e4m3fn, float8_e5m2, int4)

_SHORT = {
    float32: "f32", float16: "f16", bfloat16: "bf16", int32: "i32", uint32: "u32", bool_: "bool",
    int8: "i8", uint8: "u8", float8_e4m3fn: "f8e4m3", float8_e5m2: "f8e5m2", int4: "i4",
}  # fmt: skip


def short_name(dtype: np.dtype) -> str:
    """`f16` for float16, and so on: the names used in graphs, variants and WGSL."""
    return _SHORT[dtype]


def is_float(dtype: np.dtype) -> bool:
    return dtype in FLOATS


def canonical(dtype: Any) -> np.dtype:
    """The type an array of `dtype` gets here: 64-bit types become 32-bit, as in jax with x64 off.

    Raises TypeError for a type that wgattn has no storage for.
    """
    given = np.dtype(dtype).newbyteorder("=")
    if given in _SHORT:
        return given
    narrowed = {"f8": float32, "i8": int32, "u8": uint32, "i2": int32, "u2": uint32}.get(given.str[1:], given)
    if narrowed not in _SHORT:
        known = ", ".join(d.name for d in _SHORT)
        raise TypeError(f"wgattn has no dtype {named(dtype)}: it takes {known}; cast with .astype first")
    return narrowed


def named(dtype: Any) -> str:
    """How an error names a type that was given: NumPy reads a text such as f16 as sixteen bytes, so that is told."""
    name = np.dtype(dtype).name
    return f"{name} (NumPy's reading of {dtype!r})" if isinstance(dtype, str) and dtype != name else name


@cache
def promote(left: np.dtype, right: np.dtype, left_weak: bool = False, right_weak: bool = False) -> np.dtype:
    """The type of `left + right` under jax.numpy's rules, x64 off; a weak side is a Python scalar.

    Example: promote(float16, float32, right_weak=True) is float16.
    """
    if left_weak != right_weak:
        strong, weak = (right, left) if left_weak else (left, right)
        return strong if _rank(strong) >= _rank(weak) else weak
    if left == right:
        return left
    if bool_ in (left, right):
        return right if left == bool_ else left
    if is_float(left) or is_float(right):
        if is_float(left) and is_float(right):
            return float32
        return left if is_float(left) else right
    return int32  # int32 with uint32: jax widens to int64, which x64-off narrows again


def _rank(dtype: np.dtype) -> int:
    """Bools, then integers, then floats: a Python scalar gives way to an array of its own rank."""
    return {"b": 0, "i": 1, "u": 1}.get(dtype.kind, 2)
