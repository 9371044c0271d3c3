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
    """softmax(scale · q·k + bias, over the keys a row keeps) · V, for each head: query's shape with Hv for H.

    Query head n reads key/value head n // G. float32, float16 or bfloat16, one dtype for query, key and value, which
    the result has; logits and softmax are float32. Order: scale (1/√H unless given), `softcap` (c · tanh(s / c)), bias,
    masks, softmax. A row that keeps no key is the mean of V over all S, as in jax, or 0 with `sinks`.

    Args:
        query, key, value: arrays, or anything `asarray` takes; without B each is one batch entry.
        bias: added to the logits; broadcastable to (B, N, T, S), the head axis 1 or N. -inf masks a key.
        mask: bool, of shapes as bias, True where a key takes part; or a value of `wgattn.masks`.
        scale: a finite number, or a run-time array ().
        is_causal: key j is kept by query i where j ≤ i + query_offset.
        query_seq_lengths, key_value_seq_lengths: int32 (B,), run-time. Rows past the first are 0, keys past the second
            reach no row that keeps a key.
        local_window_size: w or (left, right): i + query_offset - left ≤ j ≤ i + query_offset + right.
        implementation: None, or the family of kernels that must serve: plain, flash_tiled, flash_matrix, flash_rows,
            decode, decode_lanes, decode_subgroups or decode_matrix. One that cannot raises UnsupportedError when the
            call is compiled.
        return_residual: also give the natural logsumexp of the kept logits and the sink, (B)TN, in `residual_dtype`
            (key's dtype unless given).
        sinks: (N,), a logit a head that joins the softmax and adds no value.
        query_offset: the position of query 0 among the keys: an int, or run-time int32 () or (B,).
        rope: rotates query at i + query_offset and key at j, as `wgattn.nn.rope`, while they are read.

    Raises ValueError for shapes and options that do not fit, TypeError for dtypes; both when called, without a device.

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
    """Attention of queries over the tokens of a cache: query's shape with Hv for H, and query's dtype.

    Without `query_offset` the last query of each sequence sits at its last token, so query i at length - T + i: append
    the keys and values of T tokens, then attend with their queries. That is prefill, chunked prefill, speculative
    decode and, with T = 1, the decode of one token, where `is_causal` costs nothing. A row that keeps no key is 0, its
    residual -inf (with `sinks`: 0 and the sink).

    Args:
        query: BTNH, or TNH where the cache has one sequence; float32, float16 or bfloat16, whatever the cache holds.
        cache: a `wgattn.KVCache`. Its lengths, and its window if it has one, apply by themselves.
        is_causal: True unless told: key j is kept by query i where j ≤ i + query_offset. False for cross attention.
        query_seq_lengths: int32 (B,): rows past them are 0. They do not move the others: give `query_offset` where the
            T queries of a sequence are not its last T tokens.
        bias, mask: as for `dot_product_attention`, S being the cache's capacity.
        rope: rotates query at i + query_offset and key at j while they are read; for keys that were appended without.
        residual_dtype: float32 unless given, which is what `merge_attention` takes.

    The other arguments are `dot_product_attention`'s. Gradients flow through a dense cache of floats.

    Raises ValueError for shapes and options that do not fit, of a window cache also where queries see more than its
    slots hold still; TypeError for dtypes, RuntimeError for a donated cache.

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
    """Rotary position embedding: each pair of features turned by position · frequency, in float32; x's shape and dtype.

    Args:
        x: (B)TNH, float32, float16 or bfloat16.
        positions: int32 (T,) or (B, T), run-time; 0 … T-1 unless given.
        base: frequencies are base^(-2i / rotary_dim).
        rotary_dim: how many features are turned, from the first; all H unless given.
        style: "half" pairs feature i with i + rotary_dim / 2 (NeoX; Llama as Hugging Face has it), "interleaved" pairs
            2i with 2i + 1.
        scaling: a factor that positions are divided by, or a mapping with `rule` "linear", "llama3" or "yarn" and its
            parameters under the names of published configurations.

    A `rope` whose result goes into `dot_product_attention` is done there, while query and key are read. It has a
    gradient by x.

    Raises ValueError for shapes and parameters that do not fit, TypeError for dtypes; both when called.

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
