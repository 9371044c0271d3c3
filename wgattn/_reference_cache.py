"""What a KV cache stores and what attention over it gives: NumPy and float64, apart from every kernel.

A storage array is (B, C, K, ·), dense: token j of a sequence in slot j; or, as a ring with P pinned tokens, token j ≥ P
in slot P + (j - P) mod (C - P). A paged pool is (pages, page_size, K, ·) with a table (B, C / page_size), -1 where a
sequence has no page. A test takes what a cache holds through `dequantise` and `gather` to (keys, positions), and those
to `cached_attention`:

    keys, positions = gather(dequantise(cache.key, key_scales, H), lengths, pages=cache.pages)
    right = cached_attention(query, keys, values, lengths, positions=positions)
"""

from typing import Any

import ml_dtypes
import numpy as np

from wgattn._reference import Result, RopeRule, attention, causal, local, rotate, rotation

BLOCK = 32  # values of an int4 row that share a scale


def blocks(head_dim: int, dtype: Any) -> int:
    """How many scales a row of `head_dim` values has: 1 for int8, one for 32 values for int4, else 0."""
    return {"int8": 1, "int4": -(-head_dim // BLOCK)}.get(np.dtype(dtype).name, 0)


def quantise(x: np.ndarray, dtype: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """x (…, H) as a cache of `dtype` stores it, and the float32 scales (…, blocks), None where it has none.

    float32, float16 and bfloat16 are cast; float8_e4m3fn and float8_e5m2 are clipped to their range and cast; int8 and
    int4 are round-half-even(x / scale), in float32, with scale = max|x| / 127 of the row and max|x| / 7 of 32 values.
    A scale of 0 stores 0; NaN or infinity makes a block's scale NaN and stores 0. int4 comes as uint8 (…, 16 · blocks):
    two's complement, the low nibble first, values past H are 0.

    >>> stored, scales = quantise(np.array([[1.0, -7.0, 3.5]]), ml_dtypes.int4)
    >>> stored[0, :2].tolist(), scales.tolist()
    ([145, 4], [[1.0]])
    """
    name = np.dtype(dtype).name
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.asarray(x).astype(np.float32)
        if name in ("float8_e4m3fn", "float8_e5m2"):
            most = np.float32(ml_dtypes.finfo(name).max)
            return np.clip(x, -most, most).astype(dtype), None
    if name not in ("int8", "int4"):
        with np.errstate(over="ignore", invalid="ignore"):
            return x.astype(dtype), None
    H = x.shape[-1]
    width = BLOCK if name == "int4" else H
    grouped = _grouped(x, blocks(H, dtype), width)
    peak = np.abs(grouped).max(-1, initial=0)
    scales = np.where(np.isfinite(peak), peak / np.float32(7 if name == "int4" else 127), np.float32(np.nan))
    usable = (scales > 0)[..., None]
    most = 7 if name == "int4" else 127
    with np.errstate(invalid="ignore", divide="ignore"):
        rounded = np.where(usable, np.rint(grouped / np.where(usable, scales[..., None], 1)), 0)
    whole = np.clip(rounded, -most, most).astype(np.int8).reshape(*x.shape[:-1], -1)
    return (_packed(whole) if name == "int4" else whole), scales.astype(np.float32)


def dequantise(stored: np.ndarray, scales: np.ndarray | None, head_dim: int, dtype: Any = None) -> np.ndarray:
    """The values (…, head_dim) in float64 that `stored` (…, H or more) stands for: `quantise`'s way back.

    `dtype` is the cache's, the array's own unless given; uint8 is packed int4. Elements past head_dim are padding.

    >>> dequantise(*quantise(np.array([[1.0, -7.0, 3.5]]), ml_dtypes.int4), 3).tolist()
    [[1.0, -7.0, 4.0]]
    """
    name = np.dtype(stored.dtype if dtype is None else dtype).name
    if name in ("uint8", "int4"):
        assert scales is not None
        values = _grouped(_unpacked(np.asarray(stored).view(np.uint8)), scales.shape[-1], BLOCK)
        return (values * scales.astype(np.float64)[..., None]).reshape(*stored.shape[:-1], -1)[..., :head_dim]
    values = np.asarray(stored)[..., :head_dim].astype(np.float64)
    return values if scales is None else values * scales.astype(np.float64)


def ring_slots(positions: np.ndarray, capacity: int, pinned: int = 0) -> np.ndarray:
    """The slot of each position in a ring of `capacity` slots, whose first `pinned` tokens stay."""
    positions = np.asarray(positions)
    return np.where(positions < pinned, positions, pinned + (positions - pinned) % max(capacity - pinned, 1))


def ring_positions(lengths: np.ndarray, capacity: int, pinned: int = 0) -> np.ndarray:
    """The position (B, capacity) of the token in each slot of a ring after `lengths` (B,) tokens; -1 for an empty slot.

    >>> ring_positions([2, 6], 4, pinned=1).tolist()
    [[0, 1, -1, -1], [0, 4, 5, 3]]
    """
    lengths = np.reshape(lengths, (-1, 1)).astype(np.int64)
    slot, turn = np.arange(capacity), capacity - pinned
    newest = lengths - 1 - pinned
    turned = newest - (newest - (slot - pinned)) % max(turn, 1)
    found = np.where(slot < pinned, slot, np.where(turned >= 0, pinned + turned, -1))
    return np.where(found < lengths, found, -1)


def gather(
    storage: np.ndarray,
    lengths: np.ndarray,
    *,
    pages: np.ndarray | None = None,
    ring: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """What the sequences of a cache hold, in the order of its tokens: (B, S, …) and each row's position (B, S).

    `storage` is (B, C, …), or the pool (pages, page_size, …) with the table `pages` (B, C / page_size); `ring` is the
    number of pinned tokens where the cache is a ring. S is the capacity C; rows that hold no token have position -1 and
    come last. Scales are gathered as values are.

    >>> gather(np.array([[10, 20, 30]]), [5], ring=1)[0].tolist()
    [[10, 20, 30]]
    >>> gather(np.array([[10, 20, 30]]), [4], ring=1)
    (array([[10, 30, 20]]), array([[0, 2, 3]]))
    """
    storage, lengths = np.asarray(storage), np.asarray(lengths, np.int64)
    if pages is not None:
        pages = np.asarray(pages)
        size = storage.shape[1]
        storage = np.where(_like(pages < 0, storage), 0, storage[np.maximum(pages, 0)])
        storage = storage.reshape(len(pages), -1, *storage.shape[3:])
        absent = np.repeat(pages < 0, size, axis=1)
    else:
        absent = np.zeros(storage.shape[:2], bool)
    B, C = storage.shape[:2]
    if ring is None:
        positions = np.where(np.arange(C) < lengths.reshape(B, 1), np.arange(C), -1)
    else:
        positions = ring_positions(lengths.reshape(B), C, ring)
    positions = np.where(absent, -1, positions)
    order = np.argsort(np.where(positions < 0, np.iinfo(np.int64).max, positions), axis=1, kind="stable")
    return storage[np.arange(B)[:, None], order], np.take_along_axis(positions, order, axis=1)


def cached_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    lengths: np.ndarray,
    *,
    positions: np.ndarray | None = None,
    query_offset: int | np.ndarray | None = None,
    is_causal: bool = True,
    local_window_size: int | tuple[int, int] | None = None,
    window: int | None = None,
    pinned: int = 0,
    mask: np.ndarray | None = None,
    rope: RopeRule | None = None,
    **options: Any,
) -> Result:
    """Attention of query BTNH over what a cache holds, dequantised: key BSKH, value BSKHv, lengths (B,), in float64.

    `positions` (B, S) are those of the keys, -1 where there is none: 0 … length - 1 unless given. Query i sits at
    query_offset + i, by default so that the last query sits at the sequence's last token. `window` keeps the `window`
    newest keys up to a query's own and the first `pinned`; `local_window_size` and `is_causal` are
    `dot_product_attention`'s, and `options` `_reference.attention`'s. A row that keeps no key is 0, its residual -inf;
    with sinks 0 and the sink. `rope` turns query and key at their positions.
    """
    (B, S), T = key.shape[:2], query.shape[1]
    lengths = np.reshape(lengths, (B,)).astype(np.int64)
    if positions is None:
        positions = np.where(np.arange(S) < lengths[:, None], np.arange(S), -1)
    held = np.asarray(positions).astype(np.int64)
    offset = np.broadcast_to(lengths - T if query_offset is None else query_offset, (B,)).astype(np.int64)
    asked = np.arange(T) + offset[:, None]

    keep = (held >= 0)[:, None, None]
    if is_causal:
        keep = keep & _kept(held, causal, asked)
    if local_window_size is not None:
        both = local_window_size
        left, right = both if isinstance(both, tuple | list) else (both, both)
        keep = keep & _kept(held, local, asked, left, right)
    if window is not None:
        keep = keep & (_kept(held, local, asked, window - 1, 0) | (held < pinned)[:, None, None])
    keep = np.broadcast_to(keep, (B, 1, T, S))
    if mask is not None:
        keep = keep & np.asarray(mask).reshape((1,) * (4 - np.ndim(mask)) + np.shape(mask))
    if rope is not None:
        H = query.shape[-1]
        query, key = (
            rotate(x.astype(np.float64), *rotation(at, H, rope.base, rope.rotary_dim, rope.scaling), rope.style)
            for x, at in ((query, asked), (key, held))
        )
    return attention(query, key, value, mask=keep, empty="zero", **options)


def _kept(held: np.ndarray, rule: Any, asked: np.ndarray, *sizes: int) -> np.ndarray:
    """`rule`, one of `_reference`'s, for keys at the positions held (B, S); bool (B, 1, T, S)."""
    most = max(int(held.max(initial=0)), 0) + 1
    whole = np.broadcast_to(rule(asked, most, *sizes), (len(held), 1, asked.shape[1], most))
    return np.take_along_axis(whole, np.maximum(held, 0)[:, None, None], axis=-1)


def _like(flags: np.ndarray, x: np.ndarray) -> np.ndarray:
    """flags (B, pages) with an axis of 1 for every axis that a page has."""
    return flags.reshape(*flags.shape, *(1,) * (x.ndim - 1))


def _grouped(x: np.ndarray, count: int, width: int) -> np.ndarray:
    """x (…, n) as (…, count, width), filled up with zeros or cut."""
    x = x[..., : count * width]
    short = count * width - x.shape[-1]
    return np.pad(x, (*((0, 0),) * (x.ndim - 1), (0, short))).reshape(*x.shape[:-1], count, width)


def _packed(whole: np.ndarray) -> np.ndarray:
    low, high = whole[..., 0::2].view(np.uint8) & 15, whole[..., 1::2].view(np.uint8) & 15
    return low | high << 4


def _unpacked(packed: np.ndarray) -> np.ndarray:
    both = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.int64)
    return np.where(both > 7, both - 16, both).reshape(*packed.shape[:-1], -1)
