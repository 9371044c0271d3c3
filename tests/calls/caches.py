"""What a KVCache holds, read back and dequantised, and what attention over it must give, in float64."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import wgattn
from wgattn import KVCache
from wgattn import _reference_cache as reference
from wgattn._reference import Result

DTYPES = ("float32", "float16", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2", "int4")


@dataclass(frozen=True, slots=True)
class Held:
    """Keys (B, S, K, H) and values of each sequence in the order of its tokens, their positions (B, S), -1 for none."""

    keys: np.ndarray
    values: np.ndarray
    lengths: np.ndarray
    positions: np.ndarray


def held(cache: KVCache) -> Held:
    """What the cache holds."""
    lengths = np.asarray(cache.lengths)
    pages = None if cache.pages is None else np.asarray(cache.pages)
    count = reference.blocks(cache.head_dim, cache.dtype)
    scales = None if cache.scales is None else np.asarray(cache.scales)
    sides = (
        (cache.key, cache.head_dim, None if scales is None else scales[..., :count]),
        (cache.value, cache.v_head_dim, None if scales is None else scales[..., count:]),
    )
    found = []
    positions = np.empty(0)
    for storage, dim, own in sides:
        values = reference.dequantise(np.asarray(storage), own, dim, cache.dtype)
        rows, positions = reference.gather(values, lengths, pages=pages, ring=cache.form.ring)
        found.append(rows)
    return Held(found[0], found[1], lengths, positions)


def right(cache: KVCache, query: np.ndarray, **options: Any) -> Result:
    """cached_attention of what the cache holds, in float64."""
    own = held(cache)
    form = cache.form
    return reference.cached_attention(
        query,
        np.where(own.positions[..., None, None] < 0, 0, own.keys),
        np.where(own.positions[..., None, None] < 0, 0, own.values),
        own.lengths,
        positions=own.positions,
        window=form.window,
        pinned=form.pinned,
        **options,
    )


def normal(r: np.random.Generator, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Unit-normal values."""
    return r.standard_normal(shape, np.float32).astype(dtype)


def poisoned(cache: KVCache) -> KVCache:
    """The cache with what no token has written replaced by NaN, or by the largest numbers where there is no NaN."""

    def spoilt(storage: Any) -> Any:
        value = np.array(storage)
        if value.dtype in (np.int8, np.uint8):
            worst = np.array(127, value.dtype)
        else:
            worst = np.array(np.nan, np.float32).astype(value.dtype)
        return wgattn.asarray(np.where(_written(cache, value), value, worst).astype(value.dtype))

    changed = {
        name: spoilt(getattr(cache, name)) for name in ("key", "value", "scales") if getattr(cache, name) is not None
    }
    return replace(cache, **changed)


def _written(cache: KVCache, storage: np.ndarray) -> np.ndarray:
    """Which rows of storage hold a token, as flags that broadcast against it."""
    lengths = np.asarray(cache.lengths)
    if cache.pages is None:
        return (np.arange(storage.shape[1]) < lengths[:, None])[..., None, None]
    flags = np.zeros(storage.shape[:2], bool)
    size = storage.shape[1]
    for b, row in enumerate(np.asarray(cache.pages)):
        for n, page in enumerate(row):
            if page >= 0:
                flags[page] |= np.arange(n * size, (n + 1) * size) < lengths[b]
    return flags[..., None, None]
