"""One backward call on NumPy arrays through a family's plan alone. The saved out and residual are the reference's."""

from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import numpy as np

from tests.kernels.attention.run_attention import operand, reference
from tests.kernels.run_plan import run_plan
from wgattn import _reference, _runtime
from wgattn._dtypes import float32
from wgattn._kernels.attention.backward.problem import WANTED, GradientProblem, describe_gradient
from wgattn._kernels.attention.problem import Bound, Call, Clause
from wgattn._kernels.kernel import Operand, Plan, natural_strides
from wgattn._kernels.rotation import Rope, tables
from wgattn._reference_gradient import Gradient, attention_gradient


def padded_rows(dtype: np.dtype, shape: tuple[int, ...]) -> Operand:
    """16-bit rows of whole words, as gradients are written."""
    pitch = shape[-1] + (shape[-1] % 2 if dtype.itemsize == 2 else 0)
    return Operand(dtype, shape, natural_strides((*shape[:-1], pitch)))


def nbytes(given: Operand) -> int:
    return -(-given.extent()[1] * given.itemsize // 16) * 16 + 16


@dataclass(frozen=True, slots=True)
class Planned:
    """A backward call's problem and plan, its arrays by operand name, and how its results lie."""

    problem: GradientProblem
    plan: Plan
    given: dict[str, np.ndarray]
    results: dict[str, Operand]


def run(family: ModuleType, *arrays: np.ndarray, **options: Any) -> dict[str, np.ndarray]:
    """The wanted gradients of a call by name; the arguments are `plan_of`'s."""
    made = plan_of(family, *arrays, **options)
    used = {name for step in made.plan.steps for name in names_of(step)}
    content = run_plan(
        made.plan,
        {name: array for name, array in made.given.items() if name in used},
        {name: nbytes(laid) for name, laid in made.results.items()},
    )
    return {
        name.removeprefix("grad_"): seen(content[name], laid, name, made.given) for name, laid in made.results.items()
    }


def plan_of(
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
    clauses: tuple[Clause, ...] | None = None,
    batch: tuple[int, int] | None = None,
    profile: Any = None,
    wanted: Iterable[str] = WANTED,
    empty: Literal["mean", "zero"] = "mean",
    saved: tuple[np.ndarray, np.ndarray] | None = None,
    **rows: np.ndarray,
) -> Planned:
    """The plan of a BTNH call's wanted gradients; `rows` are the small run-time arrays by operand name.

    A scale of None, and only then, is static and has no gradient. `batch` splits B into two axes; key and value of one
    batch entry are shared by all, and have a gradient for each. `clauses` stand for the mask, which the reference sees.
    `saved` are the forward's result and residual, the reference's unless given.
    """
    profile = profile or _runtime.current_profile()
    (B, T, N, H), S = query.shape, value.shape[1]
    options = {
        "bias": bias,
        "mask": mask,
        "is_causal": is_causal,
        "window": window,
        "scale": scale,
        "softcap": softcap,
        "rope": rope,
    }
    asked = {name: each for name, each in {**options, **rows}.items() if each is not None and "bound" not in name}
    whole_key, whole_value = (np.broadcast_to(x, (B, *x.shape[1:])) for x in (key, value))
    out, residual = saved or reference(query, whole_key, whole_value, empty=empty, **asked)
    lead = batch or (1, B)
    clause: tuple[Bound, ...] = (Bound("upper", "diagonal", 0),) if is_causal else ()
    if window is not None:
        clause += (Bound("lower", "diagonal", -window[0]), Bound("upper", "diagonal", window[1]))
    call = Call(clauses or (clause,), 1.0 if scale is not None else None, softcap, rope, float32, empty)
    if clauses is not None:
        mask = None
    given = {"query": query, "key": key, "value": value, "grad_out": grad_out}
    given |= {"out": out.astype(query.dtype), "residual": residual.astype(np.float32)}
    operands = {name: spread(array, lead) for name, array in given.items()}
    given |= rows
    if scale is not None:
        given["scale"] = np.array([scale], np.float32)
    operands |= {name: operand(array) for name, array in given.items() if name not in operands}
    results: dict[str, Operand] = {}
    for name, dense in (("bias", bias), ("mask", mask)):
        if dense is not None:
            four = dense.reshape((1,) * (4 - dense.ndim) + dense.shape)
            shape = (*(lead if len(four) > 1 else (1, 1)), *four.shape[1:])
            strides = tuple(0 if n == 1 else s for n, s in zip(shape, natural_strides(shape), strict=True))
            given[name] = dense
            operands[name] = Operand(dense.dtype, (*lead, N, T, S), strides)
            results[f"grad_{name}"] = Operand(dense.dtype, shape, natural_strides(shape))
    results.pop("grad_mask", None)
    results |= {
        f"grad_{name}": padded_rows(given[name].dtype, operands[name].shape) for name in ("query", "key", "value")
    }
    results |= {f"grad_{name}": operand(given[name]) for name in ("sinks", "scale") if name in given}
    if rope is not None:
        given["rope_tables"] = tables(rope, H)
    problem = describe_gradient(call, operands, wanted)
    results = {name: laid for name, laid in results.items() if name.removeprefix("grad_") in problem.wanted}
    support = family.supports(problem, profile)
    assert support, support.reason
    plan = family.plan(problem, call, operands | results, profile)
    return Planned(problem, plan, given, results)


def names_of(step: Any) -> list[str]:
    if hasattr(step, "resources"):
        return [getattr(given, "name", given) for given in step.resources.values()]
    return [step.source.name, step.destination]


def seen(content: np.ndarray, laid: Operand, name: str, given: dict[str, np.ndarray]) -> np.ndarray:
    """The result's bytes as an array of its operand's shape, with one batch axis."""
    strides = tuple(stride * laid.itemsize for stride in laid.strides)
    array = np.lib.stride_tricks.as_strided(content.view(laid.dtype), laid.shape, strides)
    like = given[name.removeprefix("grad_")]
    whole = name in ("grad_bias", "grad_sinks", "grad_scale")
    return array.reshape(like.shape if whole else (-1, *like.shape[1:])).copy()


def spread(array: np.ndarray, batch: tuple[int, int]) -> Operand:
    """A (B, …) array's operand on two batch axes; one entry serves all."""
    lead, tail = natural_strides((*batch, *array.shape[1:]))[:2], natural_strides(array.shape)[1:]
    return Operand(array.dtype, (*batch, *array.shape[1:]), (*(lead if len(array) > 1 else (0, 0)), *tail))


def reference_gradient(
    grad_out: np.ndarray, query: np.ndarray, key: np.ndarray, value: np.ndarray, **options: Any
) -> Gradient:
    """The contract's gradients of the same call."""
    names = {
        "query_lengths": "query_seq_lengths",
        "key_value_lengths": "key_value_seq_lengths",
        "window": "local_window_size",
    }
    for name in ("profile", "wanted", "clauses", "batch", "bound0"):
        options.pop(name, None)
    segments = options.pop("query_segments", None), options.pop("key_segments", None)
    if segments[0] is not None:
        options["mask"] = _reference.segments(np.arange(query.shape[1]), *segments)
    return attention_gradient(grad_out, query, key, value, **{names.get(k, k): v for k, v in options.items()})
