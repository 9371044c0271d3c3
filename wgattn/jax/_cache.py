"""KV caches for JAX programs: as arrays, pure and differentiable, or as a handle of what stays on wgattn's device."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from wgattn import masks
from wgattn._array import Array, elementwise
from wgattn._bind import per_entry, window
from wgattn._cache import LEAVES, KVCache
from wgattn._cache_bind import new_tokens
from wgattn._cache_checks import check_capacity, check_not_negative, check_ring_left
from wgattn._cache_pages import dealt
from wgattn._jit import JitFunction, jit
from wgattn._kernels.rotation import Rope
from wgattn._known import require
from wgattn._options import CachedOptions

from ._cache_calls import CachedCall, cached_call
from ._cache_handle import CacheHandle, attend_held
from ._call import call
from ._callback import operand

ArrayLike = Any
Cache = TypeVar("Cache", KVCache, CacheHandle)


def new_cache(*sizes: int, **options: Any) -> KVCache:
    """An empty `wgattn.KVCache` of JAX arrays. Takes what `wgattn.KVCache.create` takes, and raises what it raises.

    Example:
        >>> cache = wgattn.jax.new_cache(2, 64, kv_heads=4, head_dim=32)
        >>> type(cache).__name__, jax.tree.map(jnp.shape, cache).lengths
        ('KVCache', (2,))
    """
    made = KVCache.create(*sizes, **options)
    leaves = {name: getattr(made, name) for name in LEAVES}
    arrays = {name: jnp.zeros(x.shape, x.dtype) for name, x in leaves.items() if x is not None}
    if made.pages is not None:
        arrays["pages"] = jnp.full(made.pages.shape, -1, jnp.int32)
    return replace(made, **arrays)


def append(
    cache: Cache, key: ArrayLike, value: ArrayLike, lengths: ArrayLike | None = None, *, rope: Rope | None = None
) -> Cache:
    """The cache, of JAX arrays or a handle, with T more tokens a sequence: cast, or quantised, to its dtype.

    key (B)TKH, value (B)TKHv, float32, float16 or bfloat16; `lengths` int32 (B,): how many of the T are real; `rope`
    rotates the keys where they come to lie. `wgattn.KVCache.append` says more. Of arrays it is pure, and gradients flow
    to key, value and a dense cache of floats; the whole cache is copied, to wgattn's device and back. Pages are dealt
    out by `reserve`, before. A handle's cache is written in place: `CacheHandle.append`.

    Raises ValueError and TypeError for what does not fit, while JAX traces; beyond the capacity JAX's error with that
    text, when it runs.

    Example:
        >>> cache = wgattn.jax.new_cache(2, 64, kv_heads=4, head_dim=32); kv = jnp.ones((2, 5, 4, 32))
        >>> jax.jit(wgattn.jax.append)(cache, kv, kv).lengths.tolist()
        [5, 5]
    """
    if isinstance(cache, CacheHandle):
        return cache.append(key, value, lengths, rope=rope)
    _check(cache)
    found = call(_append(rope), cache, key, value, *([] if lengths is None else [lengths]))
    # what an append leaves alone is not brought back
    return replace(cache, **{name: x for name, x in zip(CHANGED, found, strict=True) if x is not None})


def truncate(cache: Cache, lengths: int | ArrayLike) -> Cache:
    """The cache, of JAX arrays or a handle, with no more than `lengths` tokens a sequence: an int, or int32 (B,).

    Keys and values stay where they are, and of a cache of JAX arrays no page is freed. Raises ValueError, when it runs,
    for negative lengths, and of a ring whose tokens before that are overwritten.

    Example:
        >>> kv = jnp.ones((2, 5, 4, 32))
        >>> cache = wgattn.jax.append(wgattn.jax.new_cache(2, 64, kv_heads=4, head_dim=32), kv, kv)
        >>> wgattn.jax.truncate(cache, 3).lengths.tolist()
        [3, 3]
    """
    if isinstance(cache, CacheHandle):
        return cache.truncate(lengths)
    _check(cache)
    spare = None if cache.form.ring is None else cache.form.spare(cache.capacity)
    given = [cache.lengths, operand(lengths, "lengths"), *([] if cache.written is None else [cache.written])]
    kept, *most = call(_truncate(cache.capacity, spare), *given)
    return replace(cache, lengths=kept, written=most[0] if most else None)


def reserve(cache: KVCache, tokens: int | ArrayLike) -> KVCache:
    """A paged cache of JAX arrays with pages for `tokens` more tokens a sequence, an int or (B,); not while JAX traces.

    A handle needs none. Raises ValueError for other tokens than these, beyond the capacity, and where no page is free;
    TypeError of traced arrays.

    Example:
        >>> cache = wgattn.jax.new_cache(1, 64, kv_heads=4, head_dim=32, layout="paged")
        >>> wgattn.jax.reserve(cache, 40).pages.tolist()
        [[0, 1]]
    """
    _check(cache)
    if isinstance(cache.pages, Tracer) or isinstance(cache.lengths, Tracer):
        raise TypeError("reserve deals pages out on the host: call it before what JAX traces, or use a CacheHandle")
    lengths = np.asarray(cache.lengths)
    counts = new_tokens(tokens, cache.batch)
    check_capacity(counts, cache._limit(), lengths, "reserve")
    if cache.form.page_size is None:
        return cache
    plan = dealt(np.asarray(cache.pages), lengths, counts, cache.form.page_size, cache.key.shape[0])
    changed: dict[str, Any] = {"pages": jnp.asarray(plan.table)}
    if plan.copies:
        source, destination = (side[plan.source >= 0] for side in (plan.source, plan.destination))
        for name in ("key", "value", "scales"):
            if (pool := getattr(cache, name)) is not None:
                changed[name] = pool.at[destination].set(pool[source])
    return replace(cache, **changed)


@overload
def cached_attention(
    query: ArrayLike,
    cache: KVCache | CacheHandle,
    bias: ArrayLike | None = None,
    mask: ArrayLike | masks.Mask | None = None,
    *,
    return_residual: Literal[False] = False,
    **options: Unpack[CachedOptions],
) -> jax.Array: ...
@overload
def cached_attention(
    query: ArrayLike,
    cache: KVCache | CacheHandle,
    bias: ArrayLike | None = None,
    mask: ArrayLike | masks.Mask | None = None,
    *,
    return_residual: Literal[True],
    **options: Unpack[CachedOptions],
) -> tuple[jax.Array, jax.Array]: ...
@overload
def cached_attention(
    query: ArrayLike,
    cache: KVCache | CacheHandle,
    bias: ArrayLike | None = None,
    mask: ArrayLike | masks.Mask | None = None,
    *,
    return_residual: bool,
    **options: Unpack[CachedOptions],
) -> jax.Array | tuple[jax.Array, jax.Array]: ...
def cached_attention(
    query: ArrayLike,
    cache: KVCache | CacheHandle,
    bias: ArrayLike | None = None,
    mask: ArrayLike | masks.Mask | None = None,
    *,
    scale: float | ArrayLike | None = None,
    is_causal: bool = True,
    query_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    query_offset: int | ArrayLike | None = None,
    residual_dtype: Any = None,
    rope: Rope | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Attention of queries over the tokens of a cache, of JAX arrays or a handle: `wgattn.nn.cached_attention`.

    query (B)TNH, float32, float16 or bfloat16, whatever the cache holds; the result has its shape, with Hv for H.
    Without `query_offset` the last query of each sequence sits at its last token: append T tokens, then attend with
    their queries. `implementation` None, "xla" and "cudnn" all mean that wgattn chooses. Of arrays it is pure, under
    every transform that `wgattn.jax.call` takes; gradients flow through a dense cache of floats. Of a handle only query
    and result are moved.

    Raises ValueError and TypeError for what does not fit, while JAX traces; what fails at run time is JAX's error with
    the original's type and text, a RuntimeError for a handle that is dead or written over.

    Example:
        >>> cache = wgattn.jax.CacheHandle.create(2, 64, kv_heads=2, head_dim=32)
        >>> kv, q = jnp.ones((2, 5, 2, 32)), jnp.ones((2, 5, 8, 32))
        >>> wgattn.jax.cached_attention(q, cache.append(kv, kv)).shape
        (2, 5, 8, 32)
        >>> cache.free()
    """
    given = {"query": query, "bias": bias, "mask": mask, "scale": scale, "query_seq_lengths": query_seq_lengths}
    given |= {"sinks": sinks, "query_offset": query_offset}
    recorded, operands = cached_call(
        given,
        {
            "is_causal": bool(is_causal),
            "local_window_size": None if local_window_size is None else window(local_window_size),
            "implementation": implementation,
            "return_residual": bool(return_residual),
            "softcap": softcap,
            "residual_dtype": residual_dtype,
            "rope": rope,
        },
    )
    if isinstance(cache, CacheHandle):
        found = attend_held(cache, recorded, operands)
        return (found[0], found[1]) if return_residual else found[0]
    _check(cache)
    return call(_attention(recorded), cache, *operands)


CHANGED = ("key", "value", "scales", "lengths")


@lru_cache(maxsize=64)
def _append(rope: Rope | None) -> JitFunction:
    def append(cache: KVCache, key: Array, value: Array, *lengths: Array) -> tuple[Array | None, ...]:
        found = cache.append(key, value, *lengths, rope=rope)
        return tuple(getattr(found, name) for name in CHANGED)

    return jit(append)


@lru_cache(maxsize=64)
def _truncate(capacity: int, spare: int | None) -> JitFunction:
    def truncate(lengths: Array, kept: Array, *written: Array) -> tuple[Array, ...]:
        kept = per_entry(kept, "lengths", lengths.shape[0])
        require(check_not_negative, kept)
        shorter = elementwise("minimum", lengths, kept)
        most = [elementwise("maximum", lengths, x) for x in written]
        if spare is not None:
            require(partial(check_ring_left, capacity, spare), *most, shorter)
        return shorter, *most

    return jit(truncate)


@lru_cache(maxsize=256)
def _attention(recorded: CachedCall) -> JitFunction:
    def cached_attention(cache: KVCache, *operands: Array) -> Any:
        return recorded.record(cache, operands)

    return jit(cached_attention)


def _check(cache: Any) -> None:
    if not isinstance(cache, KVCache):
        raise TypeError(
            f"cache is a wgattn.KVCache or a wgattn.jax.CacheHandle; got {type(cache).__name__}: make one with "
            "wgattn.jax.new_cache or CacheHandle.create"
        )
