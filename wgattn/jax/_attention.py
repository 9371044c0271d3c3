"""dot_product_attention for JAX programs: jax.nn's call, computed by wgattn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Unpack, overload

import jax
import jax.numpy as jnp
from jax import lax

from wgattn import masks
from wgattn._bind import residual_dtype_of, rope_of, softcap_of, window
from wgattn._kernels.rotation import Rope
from wgattn._options import AttentionOptions

from ._arguments import implementation_of, mask_parts, scale_of
from ._batching import Batching
from ._callback import HostProgram, check_backend, operand, vary, varying_axes
from ._recorded import Spec, avals_of, forward_program
from ._transforms import attention

ArrayLike = Any


@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | masks.Mask | None = None,
    *,
    return_residual: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> jax.Array: ...
@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | masks.Mask | None = None,
    *,
    return_residual: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[jax.Array, jax.Array]: ...
@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | masks.Mask | None = None,
    *,
    return_residual: bool,
    **options: Unpack[AttentionOptions],
) -> jax.Array | tuple[jax.Array, jax.Array]: ...
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | masks.Mask | None = None,
    *,
    scale: float | ArrayLike | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    query_offset: int | ArrayLike | None = None,
    residual_dtype: Any = None,
    rope: Rope | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """`jax.nn.dot_product_attention`, computed by wgattn, with wgattn's extensions.

    query is (B)TNH, key (B)SKH and value (B)SKHv, in float32, float16 or bfloat16; the result has query's shape with Hv
    in place of H. The arguments mean what they mean in `wgattn.nn.dot_product_attention`, but are JAX arrays, traced or
    not. `implementation` None, "xla" and "cudnn" all let wgattn choose. A mask may come from `wgattn.masks`, with JAX
    arrays as its run-time values. Gradients flow to query, key, value, bias, sinks and a scale that is an array.

    Raises ValueError and TypeError for arguments that do not fit, while JAX traces, and UnsupportedError on a JAX
    backend without callbacks. A failure at run time is raised as JAX's error, with the type and text of the original,
    which `last_error()` returns.

    Example:
        >>> q = jnp.ones((2, 5, 8, 64)); kv = jnp.ones((2, 7, 2, 64))
        >>> jax.jit(wgattn.jax.dot_product_attention)(q, kv, kv).shape
        (2, 5, 8, 64)
    """
    check_backend()
    if return_residual is False and residual_dtype is not None:
        raise ValueError("residual_dtype is given without return_residual=True: there would be no residual to cast")
    if rope is not None:
        rope_of(rope)
    family = implementation_of(implementation)
    clauses, of_mask = mask_parts(mask)
    static_scale, scale = scale_of(scale)
    given = {"query": query, "key": key, "value": value, "bias": bias, **of_mask, "scale": scale}
    given |= {"query_lengths": query_seq_lengths, "key_value_lengths": key_value_seq_lengths}
    given |= {"query_offset": query_offset, "sinks": sinks}
    operands = {
        name: operand(x, name.replace("_lengths", "_seq_lengths"))
        for name, x in given.items()
        if x is not None or name in ("query", "key", "value")
    }
    spec = Spec(
        names=tuple(operands),
        clauses=clauses,
        scale=static_scale,
        is_causal=bool(is_causal),
        window=None if local_window_size is None else window(local_window_size),
        softcap=softcap_of(softcap),
        rope=rope,
        implementation=family,
        residual=bool(return_residual),
    )
    arrays = list(operands.values())
    checked = forward_program(spec, Batching.none(len(arrays)), avals_of(arrays))
    if any(0 in x.shape for x in arrays[:3]):
        out, *kept = _without_keys(checked, operands.get("sinks"))
    else:
        varying = varying_axes(arrays)
        out, *kept = attention(spec)(*(vary(x, varying) for x in arrays))
    if not return_residual:
        return out
    dtype = residual_dtype_of(operands["key"].dtype if residual_dtype is None else residual_dtype)
    return out, lax.stop_gradient(kept[0]).astype(dtype)


def _without_keys(program: HostProgram, sinks: jax.Array | None) -> Sequence[jax.Array]:
    """The results if an axis is empty: zeros, and a residual of -inf or each head's sink."""
    out, *kept = (jnp.zeros(aval.shape, aval.dtype) for aval in program.results)
    empty = jnp.float32(-jnp.inf) if sinks is None else sinks.astype(jnp.float32)
    return out, *(jnp.broadcast_to(empty, x.shape) for x in kept)
