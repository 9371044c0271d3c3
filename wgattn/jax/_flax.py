"""Attention with Flax's signature: `nnx.MultiHeadAttention(attention_fn=wgattn.jax.flax_attention)`."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from wgattn.masks import Mask

from ._attention import dot_product_attention

ArrayLike = Any


def flax_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | Mask | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: Any = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = None,
    precision: Any = None,
    module: Any = None,
    promote_dtype: Callable[..., Any] | None = None,
    is_causal: bool = False,
    **options: Any,
) -> jax.Array:
    """`flax.nnx.dot_product_attention`, computed by wgattn. Flax Linen passes arguments of the same names.

    query is (…, T, N, H), key (…, S, K, H) and value (…, S, K, Hv), with any number of batch axes. bias and mask are
    broadcastable to (…, N, T, S); mask may also come from `wgattn.masks`. With `is_causal` no mask is needed, and whole
    tiles of keys are skipped. `dtype` casts query, key and value first. `options` are further options of
    `wgattn.jax.dot_product_attention`.

    Raises ValueError for active dropout (dropout_rate > 0 and not deterministic), for a `module` that would sow the
    attention weights, which wgattn never materialises, and for `return_residual`, as a module takes one result.

    Example:
        >>> q = jnp.ones((2, 5, 8, 64)); wgattn.jax.flax_attention(q, q, q, is_causal=True).shape
        (2, 5, 8, 64)
    """
    del broadcast_dropout, dropout_rng, precision
    if dropout_rate > 0.0 and not deterministic:
        raise ValueError(
            f"dropout_rate is {dropout_rate} and deterministic is False: wgattn has no dropout on attention weights. "
            "Give the module dropout_rate=0.0, or call it with deterministic=True"
        )
    if module is not None:
        raise ValueError("sow_weights=True asks for the attention weights, which wgattn never makes: leave it out")
    if options.get("return_residual"):
        raise ValueError(
            "return_residual=True asks for two results, and a Flax module takes one: leave it out, or call "
            "wgattn.jax.dot_product_attention"
        )
    query, key, value = (jnp.asarray(x) for x in (query, key, value))
    if promote_dtype is not None:
        query, key, value = promote_dtype((query, key, value), dtype=dtype)
    else:
        wanted = jnp.result_type(query, key, value) if dtype is None else dtype
        query, key, value = (x.astype(wanted) for x in (query, key, value))
    lead = query.shape[:-3]
    if mask is not None and not isinstance(mask, Mask):
        mask = jnp.asarray(mask).astype(bool)
    if len(lead) > 1:
        query, key, value = (x.reshape((math.prod(lead), *x.shape[-3:])) for x in (query, key, value))
        bias, mask = (_one_batch_axis(x, lead) for x in (bias, mask))
    out = dot_product_attention(query, key, value, bias, mask, is_causal=is_causal, **options)
    return out.reshape((*lead, *out.shape[-3:]))


def _one_batch_axis(given: ArrayLike | Mask | None, lead: tuple[int, ...]) -> jax.Array | Mask | None:
    """A bias or mask (…, N, T, S) with its batch axes merged into one, of size 1 if it is broadcast along all."""
    if given is None or isinstance(given, Mask):
        return given
    x = jnp.asarray(given)
    batch = x.shape[:-3]
    if math.prod(batch) != 1:
        x = jnp.broadcast_to(x, (*lead, *x.shape[-3:]))
    return x.reshape((-1, *x.shape[-3:])) if x.ndim > 3 else x
