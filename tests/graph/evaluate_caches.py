"""The operations on caches in NumPy, by the reference's storage rules."""

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from wgattn import _reference
from wgattn import _reference_cache as reference
from wgattn._graph import operations as op


def append(operation: op.CacheAppend, given: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Token by token, as the contract says."""
    operands = dict(zip(operation.operands, given, strict=True))
    found = {name: np.array(operands[name]) for name in operation.results[:-1]}
    sides = [side for side in ("key", "value") if side in operands]
    pages, storage = operands.get("pages"), operands[sides[0]]
    capacity = storage.shape[1] * (1 if pages is None else pages.shape[1])
    new = {side: _turned(operation, operands) if side == "key" else operands[f"new_{side}"] for side in sides}
    B, T = new[sides[0]].shape[:2]
    ends = []
    for b in range(B):
        start = max(int(operands["lengths"][b]), 0)
        count = min(max(int(operands["counts"][b]), 0), T) if "counts" in operands else T
        start = start if operation.ring is not None else min(start, capacity)
        end = start + count if operation.ring is not None else min(start + count, capacity)
        ends.append(end)
        for t in range(end - start):
            slot = start + t
            if operation.ring is not None:
                if slot >= operation.ring and slot + capacity - operation.ring < end:
                    continue
                slot = int(reference.ring_slots(np.array(slot), capacity, operation.ring))
            place = (b, slot)
            if pages is not None:
                page = int(pages[b, slot // storage.shape[1]])
                if not 0 <= page < len(storage):
                    continue
                place = (page, slot % storage.shape[1])
            block = 0
            for side in sides:
                stored, scales = reference.quantise(new[side][b, t], _stored(storage.dtype))
                found[side][place] = 0
                found[side][place][:, : stored.shape[-1]] = stored
                if scales is not None:
                    found["scales"][place][:, block : block + scales.shape[-1]] = scales
                    block += scales.shape[-1]
    return (*found.values(), np.array(ends, np.int32))


def _stored(dtype: np.dtype) -> np.dtype:
    return np.dtype(ml_dtypes.int4) if dtype == np.uint8 else dtype


def _turned(operation: op.CacheAppend, operands: dict[str, np.ndarray]) -> np.ndarray:
    new, rope = operands["new_key"], operation.rope
    if rope is None:
        return new
    positions = np.maximum(operands["lengths"], 0)[:, None] + np.arange(new.shape[1])
    turned = _reference.rope(new, positions, base=rope.base, rotary_dim=rope.rotary_dim, style=rope.style)
    return turned.astype(np.float32)


def rows(operation: op.CacheRows, given: Sequence[np.ndarray]) -> np.ndarray:
    storage, lengths = given[:2]
    found = np.zeros((len(storage), operation.count, *storage.shape[2:]), storage.dtype)
    for b, length in enumerate(np.maximum(lengths, 0)):
        count = operation.count if len(given) < 3 else min(max(int(given[2][b]), 0), operation.count)
        taken = storage[b, length : length + count]
        found[b, : len(taken)] = taken
    return found


def move(operation: op.CacheMove, given: Sequence[np.ndarray]) -> np.ndarray:
    storage, source = given[0], given[1]
    if not operation.destination:
        return storage[np.clip(source, 0, len(storage) - 1)]
    moved, there = np.array(storage), range(len(storage))
    pairs = [(a, b) for a, b in zip(source.tolist(), given[2].tolist(), strict=True) if a in there and b in there]
    for a, b in pairs:
        moved[b] = storage[a]
    return moved
