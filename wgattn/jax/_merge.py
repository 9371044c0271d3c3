"""merge_attention for JAX programs: partial attention results merged by wgattn, with a gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from wgattn._array import Array
from wgattn._dtypes import float32
from wgattn._gradient import vjp
from wgattn._graph.graph import Aval
from wgattn._jit import jit
from wgattn._merge import check_alike, check_parts, merged
from wgattn._merge import merge_attention as record_merge

from ._batching import Batching
from ._callback import HostProgram, check_backend, operand, vary, varying_axes
from ._recorded import Avals, avals_of, lowered
from ._transforms import Arrays, Wanted, batched

ArrayLike = Any


@overload
def merge_attention(
    outputs: Sequence[ArrayLike] | ArrayLike,
    residuals: Sequence[ArrayLike] | ArrayLike,
    sinks: ArrayLike | None = None,
    *,
    return_residual: Literal[False] = False,
) -> jax.Array: ...
@overload
def merge_attention(
    outputs: Sequence[ArrayLike] | ArrayLike,
    residuals: Sequence[ArrayLike] | ArrayLike,
    sinks: ArrayLike | None = None,
    *,
    return_residual: Literal[True],
) -> tuple[jax.Array, jax.Array]: ...
@overload
def merge_attention(
    outputs: Sequence[ArrayLike] | ArrayLike,
    residuals: Sequence[ArrayLike] | ArrayLike,
    sinks: ArrayLike | None = None,
    *,
    return_residual: bool,
) -> jax.Array | tuple[jax.Array, jax.Array]: ...
def merge_attention(
    outputs: Sequence[ArrayLike] | ArrayLike,
    residuals: Sequence[ArrayLike] | ArrayLike,
    sinks: ArrayLike | None = None,
    *,
    return_residual: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """`wgattn.nn.merge_attention` of JAX arrays: attention over all keys, from results over disjoint ranges of keys.

    outputs are P arrays (B)TNHv, or one array (P, …), in float32, float16 or bfloat16; residuals are float32 (B)TN in
    the same form; sinks are (N,). Gradients flow to all three, in reverse mode; under vmap it is one dispatch. The
    residual of `dot_product_attention` is constant to a gradient, so train through one call over all keys rather than
    through parts.

    Raises ValueError and TypeError for arguments that do not fit, while JAX traces.

    Example:
        >>> parts, residuals = jnp.ones((3, 2, 5, 8, 64)), jnp.zeros((3, 2, 5, 8))
        >>> jax.jit(wgattn.jax.merge_attention)(parts, residuals).shape
        (2, 5, 8, 64)
    """
    check_backend()
    arrays = [_stacked(outputs, "outputs"), _stacked(residuals, "residuals")]
    parts, logits = map(_aval, arrays)
    check_parts(parts, logits)
    if sinks is not None:
        arrays.append(operand(sinks, "sinks"))
    _forward_program(Batching.none(len(arrays)), avals_of(arrays))
    if 0 in logits.shape:
        out, residual = jnp.zeros(parts.shape[1:], parts.dtype), jnp.zeros(logits.shape[1:], float32)
    else:
        varying = varying_axes(arrays)
        out, residual = _transformable(len(arrays))(*(vary(x, varying) for x in arrays))
    return (out, residual) if return_residual else out


def _aval(x: jax.Array) -> Aval:
    return Aval(x.shape, np.dtype(x.dtype))


def _stacked(given: Any, name: str) -> jax.Array:
    if not isinstance(given, list | tuple):
        return operand(given, name)
    parts = [operand(x, f"{name}[{place}]") for place, x in enumerate(given)]
    check_alike([_aval(x) for x in parts], name)
    return jnp.stack(parts)


@lru_cache(maxsize=2)
def _transformable(count: int) -> Callable[..., Arrays]:
    """The merge of two operands, or of three with sinks, as a function that jax can transform."""
    run = batched(_forward_program, Batching.none(count))

    @jax.custom_vjp
    def wgattn_merge(*operands: jax.Array) -> Arrays:
        return run(*operands)

    def forward(*operands: Any) -> tuple[Arrays, Any]:
        values = tuple(x.value for x in operands)
        wanted = Wanted(tuple(i for i, x in enumerate(operands) if x.perturbed))
        return run(*values), (wanted, values)

    def backward(kept: Any, cotangents: Arrays) -> tuple[jax.Array | None, ...]:
        wanted, values = kept
        given = tuple(i for i, x in enumerate(cotangents) if not isinstance(x, SymbolicZero))
        if not wanted.operands or not given:
            return (None,) * count
        arrays = (*values, *(cotangents[i] for i in given))
        programs = partial(_backward_program, count, wanted.operands, given)
        found = batched(programs, Batching.none(len(arrays)))(*arrays)
        by_place = dict(zip(wanted.operands, found, strict=True))
        return tuple(by_place.get(i) for i in range(count))

    wgattn_merge.defvjp(forward, backward, symbolic_zeros=True)
    return jax.jit(wgattn_merge)


@lru_cache(maxsize=256)
def _forward_program(batching: Batching, avals: Avals) -> HostProgram:
    def merge(*arrays: Array) -> tuple[Array, Array]:
        return _together(batching, [batching.whole(i, x) for i, x in enumerate(arrays)])

    return HostProgram(lowered(jit(merge), avals))


@lru_cache(maxsize=256)
def _backward_program(
    count: int, wanted: tuple[int, ...], given: tuple[int, ...], batching: Batching, avals: Avals
) -> HostProgram:
    """The gradients of the operands numbered `wanted`, given the cotangents of the results numbered `given`."""

    def merge_gradient(*arrays: Array) -> tuple[Array, ...]:
        whole = [batching.whole(i, x) for i, x in enumerate(arrays)]
        operands, cotangents = whole[:count], dict(zip(given, whole[count:], strict=True))

        def of_wanted(*chosen: Array) -> tuple[Array, Array]:
            filled = dict(zip(wanted, chosen, strict=True))
            return _together(batching, [filled.get(i, x) for i, x in enumerate(operands)])

        _, pull = vjp(of_wanted, *(operands[i] for i in wanted))
        return pull((cotangents.get(0), cotangents.get(1)))

    return HostProgram(lowered(jit(merge_gradient), avals))


def _together(batching: Batching, arrays: Sequence[Array]) -> tuple[Array, Array]:
    """The merge of operands that have every mapped axis. These become batch axes, after the axis of the parts."""
    lead = len(batching.sizes)
    if not lead:
        return record_merge(*arrays, return_residual=True)
    outputs, residuals = (x.transpose((lead, *range(lead), *range(lead + 1, x.ndim))) for x in arrays[:2])
    sinks = None
    if len(arrays) == 3:
        shape = residuals.shape[1:]
        own = (*batching.sizes, *(1,) * (len(shape) - lead - 1), shape[-1])
        sinks = arrays[2].astype(float32).reshape(own)
    return merged(outputs, residuals, sinks)
