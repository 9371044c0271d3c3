"""What attention over a cache reads, as the reference takes it: rows of values, each with its position."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._kernels.attention.problem import Call
from .._kernels.stored import scale_count
from .._reference import rotate, rotation
from .._reference_cache import dequantise, gather


@dataclass(frozen=True, slots=True)
class Stored:
    """The operands of a call with rows of float64 for key and value, and the positions (B, S) of keys, -1 for none."""

    operands: dict[str, np.ndarray]
    held: np.ndarray
    turned: bool  # query and key are rotated already


def stored(call: Call, operands: Mapping[str, np.ndarray]) -> Stored:
    """A call over a cache, which has one batch axis and lengths."""
    query, key = operands["query"], operands["key"]
    (B, T, _, H), Hv = query.shape, call.value_dim or operands["value"].shape[-1]
    lengths = np.broadcast_to(operands["key_value_lengths"], (B,)).astype(np.int64)
    scales = operands.get("scales")
    count = 0 if scales is None else scales.shape[-1] - scale_count(key.dtype, Hv)
    sides = {
        "key": dequantise(key, None if scales is None else scales[..., :count], H),
        "value": dequantise(operands["value"], None if scales is None else scales[..., count:], Hv),
    }
    if "pages" in operands:
        pages = np.broadcast_to(operands["pages"], (B, operands["pages"].shape[-1]))
        inside = (pages >= 0) & (pages < len(key))
        sides = {name: _dealt(pool, np.where(inside, pages, 0)) for name, pool in sides.items()}
        there = np.repeat(inside, key.shape[1], axis=1)
        held = np.where(there & (np.arange(there.shape[1]) < lengths[:, None]), np.arange(there.shape[1]), -1)
    else:
        sides = {name: np.broadcast_to(x, (B, *x.shape[1:])) for name, x in sides.items()}
        both = {name: gather(x, lengths, ring=call.ring) for name, x in sides.items()}
        held = both["key"][1]
        sides = {name: rows for name, (rows, _) in both.items()}
    sides = {name: np.where(held[..., None, None] < 0, 0, rows) for name, rows in sides.items()}
    beside = {name: x for name, x in operands.items() if name not in ("scales", "pages", "key_value_lengths")}
    if call.ring is None or call.rope is None:
        return Stored(beside | sides, held, False)
    offset = np.reshape(operands.get("query_offset", 0), (-1, 1)).astype(np.int64)
    asked = np.broadcast_to(np.arange(T) + offset, (B, T))
    turned = {"query": _turned(call.rope, query, asked), "key": _turned(call.rope, sides["key"], held)}
    return Stored(beside | sides | turned, held, True)


def _dealt(pool: np.ndarray, pages: np.ndarray) -> np.ndarray:
    """The pages of each sequence (B, S, K, ·), one after the other."""
    return pool[pages].reshape(len(pages), -1, *pool.shape[2:])


def _turned(rope: Any, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    cos, sin = rotation(positions, x.shape[-1], rope.base, rope.rotary_dim, rope.scaling)
    return rotate(x.astype(np.float64), cos, sin, rope.style)
