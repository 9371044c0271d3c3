"""Many caches at once, some donated, some pending, some kept: each holds what its own history says."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wgattn as wa
from tests.calls.caches import held, normal
from wgattn import KVCache

pytestmark = pytest.mark.device
K, H, CAPACITY, MOST = 1, 8, 24, 4
LAYOUTS: dict[str, dict[str, Any]] = {
    "dense": {},
    "paged": {"layout": "paged", "page_size": 8, "pages": 12},
    "ring": {"window": 8, "pinned": 2},
}
STEPS = {
    "append": lambda cache, new, n: cache.append(new, 2 * new, lengths=n),
    "truncate": lambda cache, new, n: cache.truncate(n),
    "reorder": lambda cache, new, n: cache.reorder(n),
    "append twice": lambda cache, new, n: cache.append(new, 2 * new, lengths=n).append(-new, new, lengths=n),
    "beam": lambda cache, new, n: cache.append(new, 2 * new).reorder(n),
    "beside": lambda cache, new, n: (cache.append(new, 2 * new, lengths=n), cache.key + 0, cache.fork([0]))[0],
}
DONATING = {name: wa.jit(step, donate_argnums=0) for name, step in STEPS.items()}
COPYING = {name: wa.jit(step) for name, step in STEPS.items()}


@dataclass
class Line:
    """A cache that somebody holds, and what it should hold: for each sequence keys and values (n, K, 2H)."""

    cache: KVCache
    rows: list[np.ndarray]
    most: np.ndarray  # tokens that each sequence ever had


def grown(rows: list[np.ndarray], key: np.ndarray, value: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    new = np.concatenate([key, value], axis=-1)
    return [np.concatenate([own, new[b, : counts[b]]]) for b, own in enumerate(rows)]


def after(action: str, rows: list[np.ndarray], new: np.ndarray, n: np.ndarray) -> list[np.ndarray]:
    """What a step makes of the rows."""
    match action:
        case "append" | "beside":
            return grown(rows, new, 2 * new, n)
        case "truncate":
            return [own[:kept] for own, kept in zip(rows, n, strict=True)]
        case "reorder":
            return [rows[i] for i in n]
        case "append twice":
            return grown(grown(rows, new, 2 * new, n), -new, new, n)
    moved = grown(rows, new, 2 * new, np.full(len(rows), new.shape[1]))
    return [moved[i] for i in n]


def check(line: Line) -> None:
    """Fail unless the cache holds its rows."""
    own = held(line.cache)
    assert own.lengths.tolist() == [len(rows) for rows in line.rows]
    found = np.concatenate([own.keys, own.values], axis=-1)
    for b, rows in enumerate(line.rows):
        there = own.positions[b] >= 0
        assert np.array_equal(found[b][there], rows[own.positions[b][there]])


@given(st.data(), st.sampled_from(sorted(LAYOUTS)))
def test_caches_that_are_donated_while_others_wait(data: st.DataObject, layout: str):
    r = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    first = KVCache.create(2, CAPACITY, K, H, dtype=np.float32, **LAYOUTS[layout])
    lines = [Line(first, [np.zeros((0, K, 2 * H), np.float32)] * 2, np.zeros(2, int))]
    for _ in range(data.draw(st.integers(2, 10))):
        line = lines[data.draw(st.integers(0, len(lines) - 1))]
        action = data.draw(st.sampled_from(sorted(STEPS)))
        T = data.draw(st.sampled_from((1, 3)))
        room = T * 2 if action == "append twice" else T
        lengths = np.array([len(rows) for rows in line.rows])
        if action not in ("truncate", "reorder") and layout != "ring" and (lengths + room > CAPACITY).any():
            action = "truncate"
        if action == "truncate":
            n = np.array([data.draw(st.integers(0, 12)) for _ in range(2)], np.int32)
            if layout == "ring":
                n = np.maximum(n, line.most - (CAPACITY - 2 - 8 + 1)).astype(np.int32)
        else:
            most = 1 if action in ("reorder", "beam") else T
            n = np.array([data.draw(st.integers(0, most)) for _ in range(2)], np.int32)
        new = normal(r, 2, T, K, H)
        cache, how = line.cache, data.draw(st.sampled_from(("donated", "donated", "copied", "eager")))
        if layout == "paged" and action not in ("truncate", "reorder"):
            cache = cache.reserve(room)
        found = {"donated": DONATING, "copied": COPYING, "eager": STEPS}[how][action](cache, new, n)
        rows = after(action, line.rows, new, n)
        most = np.maximum(line.most, lengths + (0 if action in ("truncate", "reorder") else room))
        if how == "donated":  # what was truncated or given pages eagerly has the same Arrays, and dies with it
            with pytest.raises(RuntimeError, match="donated"):
                np.asarray(cache.key)
            lines = [other for other in lines if other.cache.key is not cache.key]
        lines.append(Line(found, rows, most[n] if action in ("reorder", "beam") else most))
        if len(lines) > MOST:
            del lines[data.draw(st.integers(0, MOST - 1))]
        if data.draw(st.booleans()):
            check(lines[data.draw(st.integers(0, len(lines) - 1))])
    for line in lines:
        check(line)
