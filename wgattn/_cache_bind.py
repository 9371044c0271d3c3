"""What is given to a KV cache, bound: new keys and values, and queries, as Arrays that fit it, or an error."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from . import masks
from ._array import Array
from ._bind import BoundCall, array_of
from ._cache_checks import TableCheck, check_ring_seen
from ._cache_form import CacheForm
from ._dtypes import FLOATS, int4
from ._kernels.attention.problem import Bound
from ._known import require
from .masks import Mask

if TYPE_CHECKING:
    from ._cache import KVCache


def new_rows(cache: "KVCache", key: Any, value: Any) -> tuple[Array, Array]:
    """New keys (B, T, K, H) and values (B, T, K, Hv) for a cache."""
    rows = {name: _float_rows(given, name, "BTKH or TKH") for name, given in (("key", key), ("value", value))}
    whole = {name: x if x.ndim == 4 else x[None] for name, x in rows.items()}
    dims = {"key": cache.head_dim, "value": cache.v_head_dim}
    for name, x in whole.items():
        B, T, K, H = x.shape
        if (cache.batch, cache.kv_heads, dims[name]) == (B, K, H):
            continue
        letter = "H" if name == "key" else "Hv"
        read = f"{name} {rows[name].shape} is read as B={B} T={T} K={K} {letter}={H}"
        has = f"the cache has B={cache.batch} K={cache.kv_heads} {letter}={dims[name]}"
        swapped = (cache.batch, cache.kv_heads, dims[name]) == (B, T, H)
        axes = (1, 2) if rows[name].ndim == 4 else (0, 1)
        raise ValueError(f"{read}; {has}" + (f": it looks like BKTH, use {name}.swapaxes{axes}" if swapped else ""))
    if whole["key"].shape[1] != whole["value"].shape[1]:
        raise ValueError(f"key {rows['key'].shape} and value {rows['value'].shape} must have the same T")
    return whole["key"], whole["value"]


def new_tokens(given: Any, batch: int) -> np.ndarray:
    """How many tokens each sequence is to have room for, (B,)."""
    counts = np.asarray(given)
    if counts.dtype.kind not in "iu" or counts.shape not in ((), (batch,)) or (counts < 0).any():
        raise ValueError(
            f"tokens is a number of at least 0, or one a sequence, integers (B,) = ({batch},); got {given!r}"
        )
    return np.broadcast_to(counts, (batch,))


def bind_cached(query: Any, cache: "KVCache") -> BoundCall:
    """A query beside a cache's storage. Rows of floats are cut to H and Hv, as they may be padded."""
    cache._alive()
    given = _float_rows(query, "query", "BTNH or TNH")
    q = given if given.ndim == 4 else given[None]
    B, T, N, H = q.shape
    if (cache.batch, cache.head_dim) != (B, H) or N % cache.kv_heads:
        K = cache.kv_heads
        problem = f"the cache has B={cache.batch} K={K} H={cache.head_dim}"
        if (cache.batch, cache.head_dim) == (B, H):
            problem += f", and N={N} must be a multiple of K"
            if not T % K:
                axes = (1, 2) if given.ndim == 4 else (0, 1)
                problem += f": if it is BNTH, use query.swapaxes{axes}"
        raise ValueError(f"query {given.shape} is read as B={B} T={T} N={N} H={H}; {problem}")
    if cache.pages is not None:
        require(TableCheck(cache.key.shape[0]), cache.pages)
    key, value = cache.key, cache.value
    if cache.dtype != int4:
        key, value = key[..., : cache.head_dim], value[..., : cache.v_head_dim]
    return BoundCall(q, key, value, given.shape[:-3], cache.capacity, cache.v_head_dim)


def cache_window(form: CacheForm, last: bool) -> Mask:
    """What a window cache keeps: the newest tokens up to the query's own and the pinned ones; all of another cache.

    `last` tells that every token comes before the query.
    """
    if form.window is None:
        return masks.full()
    if last:
        newest = Mask(((Bound("lower", "diagonal", 1 - form.window),),), text=f"local({form.window - 1}, …)")
        return newest | masks.prefix(form.pinned) if form.pinned else newest
    newest = masks.local(form.window - 1, 0)
    return newest | masks.prefix(form.pinned) if form.pinned else newest


def within_window(form: CacheForm, last: bool, ranges: Mask) -> Mask:
    """What a call's `ranges` leave of what the cache keeps. Raises TypeError where that is no range and a prefix."""
    window = cache_window(form, last)
    try:
        return window & ranges
    except TypeError:
        raise TypeError(
            f"the window cache keeps {window}, and the call {ranges}: kernels take a range, or a range and a prefix, "
            "which both together are not. Leave the window to the cache, or create it with pinned=0"
        ) from None


def looks_at_positions(mask: Mask) -> bool:
    """Whether which keys a row keeps hangs on where it sits."""
    return any(bound.kind != "constant" for clause in mask.clauses for bound in clause)


def check_ring(cache: "KVCache", T: int, bias: Any, mask: Any) -> None:
    """Raise ValueError for what a window cache does not give: a look-up by slot, or tokens that are gone."""
    ranges = mask is None or (isinstance(mask, Mask) and mask.segments is None)
    if bias is not None or not ranges:
        raise ValueError(
            "a window cache takes no bias, no dense mask and no segments: its slots hold tokens in turn. Give a range "
            "of wgattn.masks, or create the cache without a window"
        )
    window, turning = cache.form.window or 0, cache.capacity - cache.form.pinned
    if T + window - 1 > turning:
        raise ValueError(
            f"{T} queries with a window of {window} see {T + window - 1} tokens, and the cache's ring holds {turning}: "
            f"attend after every {turning - window + 1} tokens, or create it with capacity "
            f"{T + window - 1 + cache.form.pinned}"
        )


def require_ring_seen(cache: "KVCache", T: int, offset: Array | None) -> None:
    """Have ValueError raised where T queries from `offset` on see what a ring has written over."""
    told = {"lengths": cache.lengths, "written": cache.written, "offset": offset}
    there = {name: array for name, array in told.items() if array is not None}
    require(partial(check_ring_seen, cache.form, T, cache.capacity, tuple(there)), *there.values())


def _float_rows(given: Any, name: str, letters: str) -> Array:
    x = array_of(given, name)
    if x.dtype not in FLOATS:
        raise TypeError(
            f"{name} is {x.dtype.name}; it must be float32, float16 or bfloat16, whatever the cache holds: "
            f"cast with {name}.astype(np.float32)"
        )
    if x.ndim not in (3, 4):
        raise ValueError(f"{name} must have 3 or 4 axes, {letters}; got shape {x.shape}")
    return x
