"""One backward call on NumPy arrays through a family's plan alone. The saved out and residual are the reference's."""

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np

from tests.kernels.attention.run_attention import five, operand, reference
from tests.kernels.run_plan import run_plan
from wgattn import _reference, _runtime
from wgattn._dtypes import float32
from wgattn._kernels.attention.backward.problem import WANTED, describe_gradient
from wgattn._kernels.attention.problem import Bound, Call
from wgattn._kernels.kernel import Operand, natural_strides
from wgattn._kernels.rotation import Rope, tables
from wgattn._reference_gradient import Gradient, attention_gradient


def padded_rows(dtype: np.dtype, shape: tuple[int, ...]) -> Operand:
    """16-bit rows of whole words, as gradients are written."""
    pitch = shape[-1] + (shape[-1] % 2 if dtype.itemsize == 2 else 0)
    return Operand(dtype, shape, natural_strides((*shape[:-1], pitch)))


def nbytes(given: Operand) -> int:
    return -(-given.extent()[1] * given.itemsize // 16) * 16 + 16


def run(
    family: ModuleType,
    grad_out: np.ndarray,
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
    profile: Any = None,
    wanted: Iterable[str] = WANTED,
    **rows: np.ndarray,
) -> dict[str, np.ndarray]:
    """The wanted gradients of a BTNH call by name; `rows` are the small run-time arrays by operand name.

    A scale of None, and only then, is static and has no gradient.
    """
    profile = profile or _runtime.current_profile()
    (B, T, N, H), (S, K, Hv) = query.shape, value.shape[1:]
    options = {
        "bias": bias,
        "mask": mask,
        "is_causal": is_causal,
        "window": window,
        "scale": scale,
        "softcap": softcap,
        "rope": rope,
    }
    saved, residual = reference(query, key, value, **{n: v for n, v in options.items() if v is not None}, **rows)
    clause: tuple[Bound, ...] = (Bound("upper", "diagonal", 0),) if is_causal else ()
    if window is not None:
        clause += (Bound("lower", "diagonal", -window[0]), Bound("upper", "diagonal", window[1]))
    call = Call((clause,), 1.0 if scale is not None else None, softcap, rope, float32)
    given = {name: five(array) for name, array in (("query", query), ("key", key), ("value", value))}
    given |= {
        "grad_out": five(grad_out),
        "out": five(saved.astype(query.dtype)),
        "residual": five(residual.astype(np.float32)),
    }
    given |= rows
    if scale is not None:
        given["scale"] = np.array([scale], np.float32)
    operands = {name: operand(array) for name, array in given.items()}
    results: dict[str, Operand] = {}
    for name, dense in (("bias", bias), ("mask", mask)):
        if dense is not None:
            shape = (1,) * (5 - dense.ndim) + dense.shape
            strides = tuple(0 if n == 1 else s for n, s in zip(shape, natural_strides(shape), strict=True))
            given[name] = dense
            operands[name] = Operand(dense.dtype, (1, B, N, T, S), strides)
            results[f"grad_{name}"] = Operand(dense.dtype, shape, natural_strides(shape))
    results.pop("grad_mask", None)
    results |= {f"grad_{name}": padded_rows(given[name].dtype, given[name].shape) for name in ("query", "key", "value")}
    results |= {f"grad_{name}": operand(given[name]) for name in ("sinks", "scale") if name in given}
    if rope is not None:
        given["rope_tables"] = tables(rope, H)
    problem = describe_gradient(call, operands, wanted)
    results = {name: laid for name, laid in results.items() if name.removeprefix("grad_") in problem.wanted}
    support = family.supports(problem, profile)
    assert support, support.reason
    plan = family.plan(problem, call, operands | results, profile)
    used = {name for step in plan.steps for name in names_of(step)}
    made = run_plan(
        plan, {n: v for n, v in given.items() if n in used}, {name: nbytes(laid) for name, laid in results.items()}
    )
    return {name.removeprefix("grad_"): seen(made[name], laid, name, given) for name, laid in results.items()}


def names_of(step: Any) -> list[str]:
    if hasattr(step, "resources"):
        return [getattr(given, "name", given) for given in step.resources.values()]
    return [step.source.name, step.destination]


def seen(content: np.ndarray, laid: Operand, name: str, given: dict[str, np.ndarray]) -> np.ndarray:
    """The result's bytes as an array of its operand's shape."""
    flat = content.view(laid.dtype)
    strides = tuple(stride * laid.itemsize for stride in laid.strides)
    array = np.lib.stride_tricks.as_strided(flat, laid.shape, strides)
    like = given[name.removeprefix("grad_")]
    return array.reshape(like.shape if name in ("grad_bias", "grad_sinks", "grad_scale") else like.shape[1:]).copy()


def reference_gradient(
    grad_out: np.ndarray, query: np.ndarray, key: np.ndarray, value: np.ndarray, **options: Any
) -> Gradient:
    """The contract's gradients of the same call."""
    names = {
        "query_lengths": "query_seq_lengths",
        "key_value_lengths": "key_value_seq_lengths",
        "window": "local_window_size",
    }
    for name in ("profile", "wanted"):
        options.pop(name, None)
    segments = options.pop("query_segments", None), options.pop("key_segments", None)
    if segments[0] is not None:
        options["mask"] = _reference.segments(np.arange(query.shape[1]), *segments)
    return attention_gradient(grad_out, query, key, value, **{names.get(k, k): v for k, v in options.items()})
