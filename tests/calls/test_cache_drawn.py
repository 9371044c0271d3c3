"""Caches driven at random: appends, truncations, forks, reorderings and attention, against lists of tokens in NumPy."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wgattn as wa
from tests.calls.caches import normal
from tests.tolerance import check
from wgattn import KVCache, nn
from wgattn import _reference_cache as reference

pytestmark = pytest.mark.device
K, G, H, CAPACITY = 2, 2, 16, 40
LAYOUTS: dict[str, dict[str, Any]] = {
    "dense": {},
    "paged": {"layout": "paged", "page_size": 8},
    "ring": {"window": 8, "pinned": 3},
}
# The jitted functions of all examples: what is drawn is known only at run time, so little compiles.
APPEND = wa.jit(lambda cache, key, value, n: cache.append(key, value, lengths=n), donate_argnums=0)
ATTEND = wa.jit(lambda cache, query: nn.cached_attention(query, cache))
TRUNCATE = wa.jit(lambda cache, n: cache.truncate(n))
FORK = wa.jit(lambda cache, indices: cache.fork(indices))


@dataclass
class Model:
    """The tokens of each sequence as the cache's type holds them: pairs of a key and a value (K, H) in float64."""

    dtype: np.dtype
    sequences: list[list[tuple[np.ndarray, np.ndarray]]] = field(default_factory=list)

    def append(self, key: np.ndarray, value: np.ndarray, counts: np.ndarray) -> None:
        stored = [reference.dequantise(*reference.quantise(x, self.dtype), H, self.dtype) for x in (key, value)]
        for b, n in enumerate(counts):
            self.sequences[b] = self.sequences[b] + [(stored[0][b, t], stored[1][b, t]) for t in range(n)]

    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(tokens) for tokens in self.sequences], np.int32)

    def attention(self, query: np.ndarray, **window: int) -> np.ndarray:
        S = max(int(self.lengths.max()), 1)
        rows = np.zeros((2, len(self.sequences), S, K, H))
        for b, tokens in enumerate(self.sequences):
            for t, (key, value) in enumerate(tokens):
                rows[0, b, t], rows[1, b, t] = key, value
        return reference.cached_attention(query, *rows, self.lengths, **window).out


@given(st.data(), st.sampled_from(sorted(LAYOUTS)), st.sampled_from(("float32", "int8")), st.booleans())
def test_any_history(data: st.DataObject, layout: str, dtype: str, jitted: bool):
    batch = data.draw(st.integers(1, 3))
    r = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    cache = KVCache.create(batch, CAPACITY, K, H, dtype=dtype, **LAYOUTS[layout])
    model = Model(np.dtype(dtype), [[] for _ in range(batch)])
    window = {} if layout != "ring" else {"window": 8, "pinned": 3}
    lost = np.zeros(batch, int)  # of a ring: the tokens of each sequence that were ever there
    for _ in range(data.draw(st.integers(1, 8))):
        action = data.draw(st.sampled_from(("append", "append", "append", "truncate", "fork", "reorder")))
        if action == "append":
            T = data.draw(st.sampled_from((1, 4, 9)))
            counts = np.array([data.draw(st.integers(0, T)) for _ in range(batch)], np.int32)
            if layout != "ring":
                counts = np.minimum(counts, CAPACITY - model.lengths).astype(np.int32)
            key, value = normal(r, batch, T, K, H), normal(r, batch, T, K, H)
            cache = APPEND(cache.reserve(counts), key, value, counts) if jitted else cache.append(key, value, counts)
            model.append(key, value, counts)
            lost = np.maximum(lost, model.lengths)
        elif action == "truncate":
            kept = np.array([data.draw(st.integers(0, CAPACITY)) for _ in range(batch)], np.int32)
            if layout == "ring":
                kept = np.maximum(kept, lost - 15).astype(np.int32)
            cache = TRUNCATE(cache, kept) if jitted else cache.truncate(kept)
            model.sequences = [tokens[:n] for tokens, n in zip(model.sequences, kept, strict=True)]
        else:
            indices = np.array([data.draw(st.integers(0, batch - 1)) for _ in range(batch)], np.int32)
            cache = FORK(cache, indices) if jitted else getattr(cache, action)(indices)
            model.sequences = [list(model.sequences[i]) for i in indices]
            lost = lost[indices]
        T = data.draw(st.sampled_from((1, 3)))
        query = normal(r, batch, T, K * G, H)
        out = ATTEND(cache, query) if jitted else nn.cached_attention(query, cache)
        check(np.asarray(out), model.attention(query, **window))
        assert np.array_equal(np.asarray(cache.lengths), model.lengths)
