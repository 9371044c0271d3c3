"""What a backward call must compute: the forward Problem, and which gradients are wanted."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from wgattn._dtypes import float32
from wgattn._kernels.attention.problem import (
    AttentionProblem,
    Call,
    KeyRange,
    aligned_bytes,
    describe,
    scale_of,
    vectorized,
)
from wgattn._kernels.kernel import Operand

Wanted = Literal["query", "key", "value", "bias", "sinks", "scale"]
WANTED: tuple[Wanted, ...] = ("query", "key", "value", "bias", "sinks", "scale")


@dataclass(frozen=True, slots=True)
class GradientProblem:
    """A backward call, with everything that does not change a shader taken out.

    `sweep` is what the kernels that pass over queries and keys see: q and k already rotated (then they are float32, and
    no rope is left), `out` standing for grad_out in its dtype.
    """

    forward: AttentionProblem
    sweep: AttentionProblem
    wanted: tuple[Wanted, ...]
    saved_dtype: np.dtype  # of the forward's out
    saved_quads: bool
    aligned: int = 0  # as the forward problem's, of query's and grad_out's rows too


def describe_gradient(call: Call, operands: Mapping[str, Operand], wanted: Iterable[str]) -> GradientProblem:
    """The problem of a backward call. `operands` holds what `describe` takes, and grad_out and residual.

    Wanted are any of query, key, value, bias, sinks, scale; those that the call does not have are left out.
    """
    forward = describe(call, operands)
    turned = forward.rope is not None
    names = set(wanted)
    there = {"bias": forward.bias is not None, "sinks": forward.sinks, "scale": forward.run_time_scale}
    grad_out, query, key = operands["grad_out"], operands["query"], operands["key"]
    quads = {
        "query": vectorized(turned_rows(query)) if turned else "query" in forward.vectors,
        "key": vectorized(turned_rows(key)) if turned else "key" in forward.vectors,
        "value": "value" in forward.vectors,
        "grad_out": vectorized(grad_out),
    }
    sweep = replace(
        forward,
        query_dtype=float32 if turned else forward.query_dtype,
        key_dtype=float32 if turned else forward.key_dtype,
        out_dtype=grad_out.dtype,
        queries="many",
        rope=None,
        residual=None,
        empty_rows=None,
        vectors=(*(name for name, quad in quads.items() if quad), "out"),
    )
    return GradientProblem(
        forward,
        sweep,
        tuple(name for name in WANTED if name in names and there.get(name, True)),
        operands["out"].dtype,
        "out" in forward.vectors,
        aligned_bytes(query, key, operands["value"], grad_out),
    )


def turned_rows(given: Operand) -> Operand:
    """How the rotated copy of query or key lies: float32, one row after another, each from a quad's start."""
    *outer, width = given.shape
    pitch = -(-width // 4) * 4
    strides, step = [1], pitch
    for size in reversed(outer):
        strides.append(step)
        step *= size
    return Operand(float32, given.shape, tuple(reversed(strides)))


def sweep_call(call: Call, head_dim: int) -> Call:
    """The call as the sweeps see it: nothing is left to rotate or to keep."""
    return replace(call, rope=None, residual=None, scale=scale_of(call, head_dim))


def stripped(problem: AttentionProblem, **kept: object) -> AttentionProblem:
    """A problem of rows alone: no keys, no scores; `kept` are the fields that stay."""
    bare = replace(
        problem, query_dtype=float32, key_dtype=float32, value_dtype=float32, out_dtype=float32, keys=KeyRange(),
        bias=None, mask=False, query_lengths=False, query_offset=False, sinks=False, softcap=False,
        run_time_scale=False, segments=False, rope=None, residual=None, empty_rows=None, group=1, queries="many",
        head_dim=16, value_dim=16, exact_dims=True, vectors=(),
    )  # fmt: skip
    return replace(bare, **kept)  # type: ignore[arg-type]
