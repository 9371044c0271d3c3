"""One attention call on NumPy arrays through a family's plan alone: no graph, no arrays."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from tests.kernels.run_plan import run_plan
from wgattn import _reference, _runtime
from wgattn._dtypes import float32
from wgattn._kernels.attention.launches import WORK_SHARE
from wgattn._kernels.attention.problem import Bound, Call, describe
from wgattn._kernels.kernel import Operand, natural_strides
from wgattn._kernels.rotation import Rope, tables
from wgattn._runtime.profile import DeviceProfile


def operand(array: np.ndarray) -> Operand:
    """A contiguous array's operand."""
    return Operand(array.dtype, array.shape, natural_strides(array.shape))


def five(array: np.ndarray) -> np.ndarray:
    return array.reshape(1, *array.shape)


def run(
    family: ModuleType,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    bias: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    is_causal: bool = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    rope: Rope | None = None,
    out_dtype: np.dtype | None = None,
    profile: Any = None,
    **rows: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The output and the float32 residual of a BTNH call; `rows` are the small run-time arrays by operand name."""
    profile = profile or _runtime.current_profile()
    B, T, N, _ = query.shape
    S, Hv = value.shape[1], value.shape[3]
    clause: tuple[Bound, ...] = ()
    if is_causal:
        clause += (Bound("upper", "diagonal", 0),)
    if window is not None:
        clause += (Bound("lower", "diagonal", -window[0]), Bound("upper", "diagonal", window[1]))
    call = Call(clauses=(clause,), scale=scale, softcap=softcap, rope=rope, residual=float32)
    out_dtype = out_dtype or query.dtype
    pitch = Hv + (Hv % 2 if out_dtype.itemsize == 2 else 0)
    out = Operand(out_dtype, (1, B, T, N, Hv), natural_strides((1, B, T, N, pitch)))
    given = {"query": five(query), "key": five(key), "value": five(value)}
    for name, dense in (("bias", bias), ("mask", mask)):
        if dense is not None:
            given[name] = dense
    operands = {name: operand(array) for name, array in given.items()}
    for name in ("bias", "mask"):
        if name in operands:
            dense = given[name].reshape((1,) * (5 - given[name].ndim) + given[name].shape)
            strides = tuple(0 if n == 1 else s for n, s in zip(dense.shape, natural_strides(dense.shape), strict=True))
            operands[name] = Operand(dense.dtype, (1, B, N, T, S), strides)
    given |= rows
    operands |= {name: operand(array) for name, array in rows.items()}
    operands["out"] = out
    if rope is not None:
        given["rope_tables"] = tables(rope, query.shape[-1])
    problem = describe(call, operands)
    support = family.supports(problem, profile)
    assert support, support.reason
    plan = family.plan(problem, call, operands, profile)
    made = run_plan(plan, given, {"out": B * T * N * pitch * out_dtype.itemsize, "residual": B * T * N * 4})
    answer = made["out"].view(out_dtype).reshape(B, T, N, pitch)[..., :Hv]
    return answer, made["residual"].view(np.float32).reshape(B, T, N)


def weak(profile: Any, **limits: int) -> Any:
    """A profile with some limits lowered, to force the paths of small devices."""
    return replace(profile, limits=replace(profile.limits, **limits))


def slow(profile: DeviceProfile, most: int) -> DeviceProfile:
    """The profile of a device so slow that a dispatch may have at most `most` multiplications."""
    return replace(profile, multiply_adds=most / WORK_SHARE)


def reference(query: np.ndarray, key: np.ndarray, value: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """The contract's answer to the same call."""
    names = {
        "query_lengths": "query_seq_lengths",
        "key_value_lengths": "key_value_seq_lengths",
        "window": "local_window_size",
    }
    for name in ("out_dtype", "profile"):
        options.pop(name, None)
    segments = options.pop("query_segments", None), options.pop("key_segments", None)
    if segments[0] is not None:
        same = _reference.segments(np.arange(query.shape[1]), *segments)
        same = same if same.ndim == 4 else same.reshape((-1, 1, *same.shape[-2:]))
        options["mask"] = same if options.get("mask") is None else same & options["mask"]
    result = _reference.attention(query, key, value, **{names.get(k, k): v for k, v in options.items()})
    return result.out, result.residual
