"""Shape and dtype rules of the operations on KV caches."""

from collections.abc import Sequence

from wgattn._dtypes import FLOATS, float8_e4m3fn, float8_e5m2, float32, int8, int32, uint8
from wgattn._kernels.stored import SIDES, row_size, scale_count

from .graph import Aval, describe
from .operations import CacheAppend, CacheMove, CacheRows

STORED = (*FLOATS, int8, uint8, float8_e4m3fn, float8_e5m2)  # uint8: two int4 a byte


def append_avals(append: CacheAppend, operands: Sequence[Aval]) -> tuple[Aval, ...]:
    """`nn` has checked what a user gave; these hold for every CacheAppend node."""
    given = dict(zip(append.operands, operands, strict=True))
    sides = [side for side in SIDES if side in given]
    if not sides or any((side in given) != (f"new_{side}" in given) for side in SIDES) or "lengths" not in given:
        raise ValueError(f"cache_append takes key and new_key, value and new_value, and lengths; got {append.operands}")
    storage, new = given[sides[0]], given[f"new_{sides[0]}"]
    if storage.ndim != 4 or new.ndim != 4 or 0 in storage.shape[:3]:
        raise ValueError(f"cache_append: {sides[0]} {storage.shape} and new rows {new.shape} are not (B, C, K, H)")
    (B, T, K, _), blocks = new.shape, 0
    for side in sides:
        stored, rows = given[side], given[f"new_{side}"]
        if stored.dtype != storage.dtype or stored.dtype not in STORED or rows.dtype not in FLOATS:
            raise TypeError(
                f"cache_append: {side} is {stored.dtype.name} beside {storage.dtype.name}, its new rows "
                f"{rows.dtype.name}: a cache is of one storage type, and new rows are float32, float16 or bfloat16"
            )
        if rows.ndim != 4 or rows.shape[:3] != (B, T, K) or rows.shape[3] == 0:
            raise ValueError(f"cache_append: new rows {rows.shape} beside {new.shape}")
        wanted = (*storage.shape[:2], K, row_size(stored.dtype, rows.shape[3]))
        if stored.shape != wanted:
            raise ValueError(
                f"cache_append: {side} {stored.shape} does not hold new rows {rows.shape}: it would be {wanted}"
            )
        blocks += scale_count(stored.dtype, rows.shape[3])
    if ("scales" in given) != (blocks > 0):
        raise ValueError(f"cache_append: {storage.dtype.name} storage has {'' if blocks else 'no '}scales")
    if blocks and given["scales"] != Aval((*storage.shape[:2], K, blocks), float32):
        raise ValueError(f"cache_append: scales must be {describe(Aval((*storage.shape[:2], K, blocks), float32))}")
    capacity = storage.shape[1]
    if "pages" in given:
        pages = given["pages"]
        if pages.ndim != 2 or pages.shape[0] != B or pages.dtype != int32 or pages.shape[1] == 0:
            raise ValueError(f"cache_append: pages must be i32[{B},pages]; got {describe(pages)}")
        capacity *= pages.shape[1]
        if storage.shape[1] & (storage.shape[1] - 1):
            raise ValueError(f"cache_append: a page has a power of two of tokens; got {storage.shape[1]}")
    elif storage.shape[0] != B:
        raise ValueError(f"cache_append: storage of {storage.shape[0]} sequences, new rows of {B}")
    for name in ("lengths", "counts"):
        if name in given and (given[name].shape != (B,) or given[name].dtype != int32):
            raise ValueError(f"cache_append: {name} must be i32[{B}]; got {describe(given[name])}")
    if append.ring is not None and not 0 <= append.ring < capacity:
        raise ValueError(f"cache_append: a ring of {capacity} slots cannot have {append.ring} pinned")
    if append.rope is not None and "new_key" in given:
        append.rope.rotated(given["new_key"].shape[-1])
    return tuple(Aval(given[name].shape, given[name].dtype) for name in append.results)


def rows_avals(rows: CacheRows, operands: Sequence[Aval]) -> tuple[Aval, ...]:
    storage, *small = operands
    if storage.ndim != 4 or storage.dtype not in FLOATS or not 1 <= len(small) <= 2:
        raise ValueError(f"cache_rows reads dense float storage (B, C, K, H); got {describe(storage)}")
    if any((given.shape, given.dtype) != (storage.shape[:1], int32) for given in small):
        raise ValueError(f"cache_rows: lengths and counts must be i32[{storage.shape[0]}]")
    return (Aval((storage.shape[0], rows.count, *storage.shape[2:]), storage.dtype),)


def move_avals(move: CacheMove, operands: Sequence[Aval]) -> tuple[Aval, ...]:
    storage, *indices = operands
    if storage.ndim == 0 or storage.shape[0] == 0 or len(indices) != 1 + move.destination:
        raise ValueError(
            f"cache_move takes storage (N, …), a source and perhaps a destination; got {describe(storage)}"
        )
    shape = indices[0].shape
    if len(shape) != 1 or any(given.shape != shape or given.dtype != int32 for given in indices):
        raise ValueError(f"cache_move takes int32 indices (M,); got {', '.join(map(describe, indices))}")
    if storage.size // storage.shape[0] * storage.dtype.itemsize % 4:
        raise ValueError(f"cache_move moves whole words; an entry of {describe(storage)} is none")
    return (Aval(storage.shape if move.destination else (*shape, *storage.shape[1:]), storage.dtype),)
