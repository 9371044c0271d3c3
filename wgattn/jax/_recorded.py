"""An attention call of JAX as functions that wgattn records: for one example, and for all that vmap maps at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import jax
import numpy as np

from wgattn import masks, nn
from wgattn._array import Array, apply
from wgattn._attend import record_attention
from wgattn._dtypes import float32
from wgattn._functions import broadcast_to
from wgattn._graph.operations import Rotate
from wgattn._jit import JitFunction, jit
from wgattn._kernels.attention.problem import Call, Clause
from wgattn._kernels.rotation import Rope
from wgattn._trace import Traced

from ._arguments import mask_of
from ._batching import Batching, Entries, entries, merged, split_point
from ._callback import HostProgram

DIFFERENTIABLE = ("query", "key", "value", "bias", "sinks", "scale")
Avals = tuple[tuple[tuple[int, ...], np.dtype], ...]


@dataclass(frozen=True, slots=True)
class Spec:
    """Everything static about a call: the names of its operands in order, and its options."""

    names: tuple[str, ...]
    clauses: tuple[Clause, ...] | None = None  # of a mask value, whose run-time values are operands
    scale: float | None = None
    is_causal: bool = False
    window: tuple[int, int] | None = None
    softcap: float | None = None
    rope: Rope | None = None
    implementation: str | None = None
    residual: bool = False

    def ranges(self, operands: dict[str, Array]) -> masks.Mask | None:
        """The call's mask, with its run-time values from `operands`."""
        return mask_of(self.clauses, operands)


def avals_of(arrays: Sequence[jax.Array]) -> Avals:
    """The shapes and dtypes of arrays."""
    return tuple((x.shape, np.dtype(x.dtype)) for x in arrays)


@lru_cache(maxsize=1024)
def forward_program(spec: Spec, batching: Batching, avals: Avals) -> HostProgram:
    """The program of a call. It returns out, and the float32 residual if that is kept. Raises what `nn` raises."""
    return HostProgram(lowered(_forward(spec, batching), avals))


def lowered(recorded: JitFunction, avals: Avals) -> Traced:
    """What a function records for arguments of these shapes and dtypes."""
    return recorded.lower(*(jax.ShapeDtypeStruct(*aval) for aval in avals))._traced


@lru_cache(maxsize=1024)
def _forward(spec: Spec, batching: Batching) -> JitFunction:
    def attention(*arrays: Array) -> tuple[Array, ...]:
        return attend(spec, batching, arrays)

    return jit(attention)


def attend(spec: Spec, batching: Batching, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """out, with the mapped axes in front, and the float32 residual if that is kept."""
    if not batching.sizes:
        return _one_example(spec, dict(zip(spec.names, arrays, strict=True)))
    return _together(spec, batching, arrays)


def _one_example(spec: Spec, operands: dict[str, Array]) -> tuple[Array, ...]:
    """The call, checked and recorded by `nn`."""
    result = nn.dot_product_attention(
        operands["query"], operands["key"], operands["value"], operands.get("bias"),
        operands["mask"] if "mask" in operands else spec.ranges(operands),
        scale=operands.get("scale", spec.scale),
        is_causal=spec.is_causal,
        query_seq_lengths=operands.get("query_lengths"),
        key_value_seq_lengths=operands.get("key_value_lengths"),
        local_window_size=spec.window,
        implementation=spec.implementation,
        return_residual=spec.residual,
        softcap=spec.softcap,
        sinks=operands.get("sinks"),
        query_offset=operands.get("query_offset"),
        residual_dtype=float32 if spec.residual else None,
        rope=spec.rope,
    )  # fmt: skip
    return result if isinstance(result, tuple) else (result,)


def _together(spec: Spec, batching: Batching, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """One call, with all mapped axes and B merged into the two batch axes that attention takes."""
    owns = [batching.own_shape(i, x.shape) for i, x in enumerate(arrays)]
    parts = {
        name: entries(name, own, batching.sizes, flags)
        for name, own, flags in zip(spec.names, owns, batching.mapped, strict=True)
    }
    axes = (*batching.sizes, parts["query"].counts[-1])
    at = split_point(axes, parts)
    batch = math.prod(axes[:at]), math.prod(axes[at:])
    operands = {name: merged(x, parts[name], axes, at) for name, x in zip(spec.names, arrays, strict=True)}
    operands = {name: _small(x, parts[name]) if len(parts[name].tail) < 2 else x for name, x in operands.items()}
    operands["query"] = broadcast_to(operands["query"], (*batch, *parts["query"].tail))
    ranges = masks.full() if spec.clauses is None else spec.ranges(operands)
    assert ranges is not None
    if spec.is_causal:
        ranges = ranges & masks.causal()
    if spec.window is not None:
        ranges = ranges & masks.local(*spec.window)
    clauses, sources, _ = masks.bind(ranges)
    operands = {name: x for name, x in operands.items() if not name.startswith("bound")}
    operands |= {f"bound{n}": source for n, source in enumerate(sources)}
    for name, tail in (("sinks", 1), ("scale", 0)):
        if name in operands:
            x = operands[name].astype(float32)
            # its gradient has one value per batch entry, or one in total
            operands[name] = x if x.ndim == tail else broadcast_to(x, (*batch, *x.shape[2:]))
    if spec.rope is not None:
        operands["query"], operands["key"] = _rotated(spec.rope, operands)
    scale = 1.0 if "scale" in operands else spec.scale
    call = Call(clauses, scale, spec.softcap, None, float32 if spec.residual else None)
    out, residual = record_attention(operands, call, operands["query"].dtype, spec.implementation)
    lead = (*batching.sizes, *owns[0][:-3])
    T, N = parts["query"].tail[:2]
    out = out.reshape((*lead, T, N, parts["value"].tail[-1]))
    return (out,) if residual is None else (out, residual.reshape((*lead, T, N)))


def _small(x: Array, own: Entries) -> Array:
    """A run-time value, without its batch axes if all entries share it."""
    return x.reshape(own.tail) if math.prod(own.counts) == 1 else x


def _rotated(rope: Rope, operands: dict[str, Array]) -> tuple[Array, Array]:
    """query rotated at i + query_offset and key at j, each before it is broadcast."""
    query, key, offset = operands["query"], operands["key"], operands.get("query_offset")
    flat = query.reshape((-1, *query.shape[2:]))
    if offset is None:
        turned = apply(Rotate(rope), flat)
    else:
        at = offset if offset.shape == () else broadcast_to(offset, query.shape[:2]).reshape((-1,))
        turned = apply(Rotate(rope, "offset"), flat, at)
    return turned.reshape(query.shape), apply(Rotate(rope), key.reshape((-1, *key.shape[2:]))).reshape(key.shape)
