"""Attention and rotary embeddings, with the meaning of `jax.nn`. A call binds its arguments once and records one node.

Letters: B batch, T queries, S keys, N query heads, K key/value heads, G = N / K, H query and key head dim, Hv value
head dim. BTNH is the shape (B, T, N, H).
"""

from __future__ import annotations  # jaxtyping is for readers and type checkers: it loads too much for an import

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from ._array import Array, apply
from ._attend import attend, ranges_of, rotated
from ._bind import array_of, bind, per_entry, rope_of
from ._cache import KVCache
from ._cache_bind import bind_cached, check_ring, looks_at_positions, require_ring_seen, within_window
from ._dtypes import float32, int4, int32
from ._graph.operations import Rotate
from ._kernels.attention.problem import Call
from ._kernels.rotation import Rope as Rope
from ._merge import merge_attention as merge_attention
from .masks import Mask

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from ._options import AttentionOptions, CachedOptions

__all__ = ["Rope", "cached_attention", "dot_product_attention", "merge_attention", "rope"]

ArrayLike = Any  # what asarray takes: NumPy, JAX, DLPack, numbers


@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | Mask | None = None,
    *,
    return_residual: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> Float[Array, "*B T N Hv"]: ...
@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | Mask | None = None,
    *,
    return_residual: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[Float[Array, "*B T N Hv"], Float[Array, "*B T N"]]: ...
@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | Mask | None = None,
    *,
    return_residual: bool,
    **options: Unpack[AttentionOptions],
) -> Array | tuple[Array, Array]: ...
def dot_product_attention(
    query: Float[Array, "*B T N H"] | ArrayLike,
    key: Float[Array, "*B S K H"] | ArrayLike,
    value: Float[Array, "*B S K Hv"] | ArrayLike,
    bias: Float[Array, ...] | ArrayLike | None = None,
    mask: Bool[Array, ...] | ArrayLike | Mask | None = None,
    *,
    scale: float | Float[Array, ""] | ArrayLike | None = None,
    is_causal: bool = False,
    query_seq_lengths: Int[Array, " B"] | ArrayLike | None = None,
    key_value_seq_lengths: Int[Array, " B"] | ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
    softcap: float | None = None,
    sinks: Float[Array, " N"] | ArrayLike | None = None,
    query_offset: int | Int[Array, ...] | ArrayLike | None = None,
    residual_dtype: Any = None,
    rope: Rope | None = None,
) -> Array | tuple[Array, Array]:
    """Scaled dot-product attention, softmax(scale · q·k + bias) · v for each head, as `jax.nn.dot_product_attention`.

    query is BTNH, key BSKH and value BSKHv; the result has query's shape, with Hv in place of H. Query head n reads
    key/value head n // G. query, key and value share one dtype, float32, float16 or bfloat16, and so does the result;
    logits and softmax are float32. Logits are scaled, capped, biased and masked, in this order. A row that keeps no key
    gives the mean of V over all S keys, as in jax, or 0 with `sinks`.

    Args:
        query, key, value: Arrays, or anything `asarray` takes. Without the axis B an argument is one batch entry.
        bias: added to the logits; broadcastable to (B, N, T, S), with a head axis of 1 or N. -inf masks a key.
        mask: bool, broadcastable as bias is, True where a key takes part; or a mask of `wgattn.masks`.
        scale: a finite number, or a run-time array of shape (); 1/√H by default.
        is_causal: query i keeps key j only where j ≤ i + query_offset.
        query_seq_lengths: int32 (B,), run-time. Rows from this length on are 0.
        key_value_seq_lengths: int32 (B,), run-time. Keys from this length on reach no row that keeps a key.
        local_window_size: w or (left, right): query i keeps i + query_offset - left ≤ j ≤ i + query_offset + right.
        implementation: None, or the kernel family that must be used: plain, flash_tiled, flash_matrix, flash_rows,
            decode, decode_lanes, decode_subgroups or decode_matrix. If it cannot serve the call, compiling the call
            raises UnsupportedError.
        return_residual: also return the natural logsumexp of the kept logits and the sink, (B)TN.
        softcap: c, which caps the logits: s becomes c · tanh(s / c).
        sinks: (N,), one logit per head that joins the softmax but contributes no value.
        query_offset: the position of query 0 among the keys: an int, or a run-time int32 array () or (B,).
        residual_dtype: the dtype of the residual; key's by default.
        rope: rotates query at i + query_offset and key at j while they are read, with the result of `wgattn.nn.rope`.

    Raises ValueError for shapes and options that do not fit and TypeError for dtypes, when it is called and without a
    device.

    Example:
        >>> q = np.ones((2, 5, 8, 64), np.float16); kv = np.ones((2, 7, 2, 64), np.float16)
        >>> wgattn.nn.dot_product_attention(q, kv, kv, is_causal=True).shape
        (2, 5, 8, 64)
    """
    call = bind(query, key, value)
    offset = None if query_offset is None else per_entry(query_offset, "query_offset", call.B)
    if rope is not None:
        rope_of(rope).rotated(call.H)
        turned = rotated(rope, call, offset)
        call = replace(call, query=turned[0], key=turned[1])
    lengths = key_value_seq_lengths
    if lengths is not None:
        lengths = per_entry(lengths, "key_value_seq_lengths", call.B, scalar=False)
    return attend(
        call,
        ranges_of(mask, is_causal, local_window_size),
        Call(),
        key_value_lengths=lengths,
        query_offset=offset,
        query_seq_lengths=query_seq_lengths,
        bias=bias,
        mask=None if isinstance(mask, Mask) else mask,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        implementation=implementation,
        return_residual=return_residual,
        residual_dtype=residual_dtype,
        usual_dtype=call.key.dtype,
    )


@overload
def cached_attention(
    query: ArrayLike,
    cache: KVCache,
    bias: ArrayLike | None = None,
    mask: ArrayLike | Mask | None = None,
    *,
    return_residual: Literal[False] = False,
    **options: Unpack[CachedOptions],
) -> Float[Array, "*B T N Hv"]: ...
@overload
def cached_attention(
    query: ArrayLike,
    cache: KVCache,
    bias: ArrayLike | None = None,
    mask: ArrayLike | Mask | None = None,
    *,
    return_residual: Literal[True],
    **options: Unpack[CachedOptions],
) -> tuple[Float[Array, "*B T N Hv"], Float[Array, "*B T N"]]: ...
@overload
def cached_attention(
    query: ArrayLike,
    cache: KVCache,
    bias: ArrayLike | None = None,
    mask: ArrayLike | Mask | None = None,
    *,
    return_residual: bool,
    **options: Unpack[CachedOptions],
) -> Array | tuple[Array, Array]: ...
def cached_attention(
    query: Float[Array, "*B T N H"] | ArrayLike,
    cache: KVCache,
    bias: Float[Array, ...] | ArrayLike | None = None,
    mask: Bool[Array, ...] | ArrayLike | Mask | None = None,
    *,
    scale: float | Float[Array, ""] | ArrayLike | None = None,
    is_causal: bool = True,
    query_seq_lengths: Int[Array, " B"] | ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
    softcap: float | None = None,
    sinks: Float[Array, " N"] | ArrayLike | None = None,
    query_offset: int | Int[Array, ...] | ArrayLike | None = None,
    residual_dtype: Any = None,
    rope: Rope | None = None,
) -> Array | tuple[Array, Array]:
    """Attention of queries over the tokens of a cache. The result has query's dtype, and its shape with Hv for H.

    By default the last query of each sequence is at its last token, which puts query i at position length - T + i. So
    append the keys and values of T tokens, then attend with their queries: this is prefill, chunked prefill,
    speculative decoding and, with T = 1, the decoding of one token, where `is_causal` costs nothing. A row that keeps
    no key gives 0 and a residual of -inf (with `sinks`, 0 and the sink).

    Args:
        query: BTNH, or TNH if the cache has one sequence; float32, float16 or bfloat16, whatever the cache holds.
        cache: a `wgattn.KVCache`. Its lengths, and its window if it has one, are applied automatically.
        is_causal: True by default: query i keeps key j only where j ≤ i + query_offset. False for cross attention.
        query_seq_lengths: int32 (B,). Rows from this length on are 0. The other rows keep their positions: give
            `query_offset` if the T queries of a sequence are not its last T tokens.
        bias, mask: as for `dot_product_attention`, where S is the cache's capacity.
        rope: rotates query at i + query_offset and key at j while they are read; for keys that were appended unrotated.
        residual_dtype: float32 by default, which is what `merge_attention` takes.

    The other arguments are those of `dot_product_attention`. Gradients flow through a dense cache of floats.

    Raises ValueError for shapes and options that do not fit, and where queries would see tokens that a window cache has
    overwritten; TypeError for dtypes; RuntimeError for a donated cache.

    Example:
        >>> cache = wgattn.KVCache.create(2, 64, kv_heads=2, head_dim=32)
        >>> kv, q = np.ones((2, 5, 2, 32), np.float32), np.ones((2, 5, 8, 32), np.float32)
        >>> wgattn.nn.cached_attention(q, cache.append(kv, kv)).shape
        (2, 5, 8, 32)
    """
    if not isinstance(cache, KVCache):
        handle = type(cache).__name__ == "CacheHandle"  # of wgattn.jax, which is not loaded for this
        hint = "wgattn.jax.cached_attention takes that" if handle else "make one with wgattn.KVCache.create"
        raise TypeError(f"cache is a wgattn.KVCache; got {type(cache).__name__}: {hint}")
    call = bind_cached(query, cache)
    if cache.form.ring is not None:
        check_ring(cache, call.T, bias, mask)
    last = query_offset is None and call.T == 1  # every key of the sequence comes before the query
    ranges = within_window(cache.form, last, ranges_of(mask, is_causal and not last, local_window_size))
    if query_offset is not None:
        offset = per_entry(query_offset, "query_offset", call.B)
    else:
        offset = cache.lengths - call.T if rope is not None or looks_at_positions(ranges) else None
    if cache.form.ring is not None:
        require_ring_seen(cache, call.T, offset)
    if rope is not None:
        rope_of(rope).rotated(call.H)
    form = cache.form
    options = Call(
        rope=rope,
        empty="zero",
        page_size=form.page_size,
        ring=form.ring,
        value_dim=form.v_head_dim if form.dtype == int4 else None,
    )
    return attend(
        call,
        ranges,
        options,
        key_value_lengths=cache.lengths,
        query_offset=offset,
        query_seq_lengths=query_seq_lengths,
        bias=bias,
        mask=None if isinstance(mask, Mask) else mask,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        implementation=implementation,
        return_residual=return_residual,
        residual_dtype=residual_dtype,
        usual_dtype=float32,
        scales=cache.scales,
        pages=cache.pages,
    )


def rope(
    x: Float[Array, "*B T N H"] | ArrayLike,
    positions: Int[Array, "*B T"] | ArrayLike | None = None,
    *,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    style: Literal["half", "interleaved"] = "half",
    scaling: float | Mapping[str, float | str] | None = None,
) -> Float[Array, "*B T N H"]:
    """Rotary position embedding: rotates each pair of features by position · frequency. Keeps x's shape and dtype.

    Args:
        x: (B)TNH, float32, float16 or bfloat16.
        positions: int32 (T,) or (B, T), run-time; 0 … T - 1 by default.
        base: pair i has frequency base^(-2i / rotary_dim).
        rotary_dim: how many features, counted from the first, are rotated; all H by default.
        style: "half" pairs feature i with i + rotary_dim / 2 (as NeoX, and Llama on Hugging Face, do); "interleaved"
            pairs feature 2i with 2i + 1.
        scaling: a factor that divides the positions, or a mapping with `rule` "linear", "llama3" or "yarn" and its
            parameters, under the names that published model configurations use.

    The rotation is computed in float32. Where the result goes into `dot_product_attention`, it is fused: query and key
    are rotated while they are read. Gradients flow to x.

    Raises ValueError for shapes and parameters that do not fit and TypeError for dtypes, when it is called.

    Example:
        >>> wgattn.nn.rope(np.ones((2, 5, 8, 64), np.float32)).shape
        (2, 5, 8, 64)
    """
    array = array_of(x, "x")
    if array.ndim not in (3, 4):
        raise ValueError(f"rope takes x as BTNH or TNH; got shape {array.shape}")
    rule = Rope(base, rotary_dim, style, scaling)
    whole = array if array.ndim == 4 else array[None]
    if positions is None:
        return apply(Rotate(rule), whole).reshape(array.shape)
    at = array_of(positions, "positions")
    if at.dtype != int32:
        raise TypeError(f"positions must be int32; got {at.dtype.name}: cast with positions.astype(np.int32)")
    return apply(Rotate(rule, "positions"), whole, at).reshape(array.shape)


def __dir__() -> list[str]:
    return __all__
