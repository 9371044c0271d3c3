"""A step of decoding under jit; run as a program, very many of them, which must leave memory flat and compile nothing.

python -m tests.calls.decoding LAYOUT T TOKENS [LAYOUT T TOKENS ...]
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

import wgattn as wa
from tests.calls.caches import normal
from wgattn import KVCache, _run, _runtime, nn

LAYOUTS: dict[str, dict[str, Any]] = {
    "dense": {},
    "int8": {"dtype": "int8"},
    "paged": {"layout": "paged", "page_size": 16},
    "ring": {"window": 24, "pinned": 2},
}
CAPACITY = 250


class Decoder:
    """Appends tokens and attends to them; counts its traces."""

    def __init__(self, donate: bool = True) -> None:
        self.traces = 0
        self.step = wa.jit(self._step, donate_argnums=0 if donate else ())

    def _step(self, cache: KVCache, key: Any, value: Any, query: Any) -> tuple[KVCache, Any]:
        self.traces += 1
        cache = cache.append(key, value)
        return cache, nn.cached_attention(query, cache)


class Made:
    """Counts the programs that are made for calls, from when it is made itself."""

    def __init__(self) -> None:
        self.count, kept = 0, _run._kept

        def counted(cache: Any, key: Any, make: Any) -> Any:
            return kept(cache, key, lambda: (setattr(self, "count", self.count + 1), make())[1])

        _run._kept = counted


def token(i: int, B: int = 2, T: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Key, value and query of T tokens."""
    r = np.random.default_rng(i)
    return normal(r, B, T, 2, 16), normal(r, B, T, 2, 16), normal(r, B, T, 4, 16)


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def decode_many(layout: str, T: int, tokens: int) -> None:
    """Append and attend, T tokens a call; a cache that is full is truncated, and a ring goes on."""
    decoder = Decoder()
    cache = KVCache.create(2, CAPACITY, 2, 16, **LAYOUTS[layout])
    cache = cache.reserve(cache.capacity)
    shorten = wa.jit(lambda cache: cache.truncate(0), donate_argnums=0)
    given = token(0, T=T)

    def run(cache: KVCache, tokens: int) -> KVCache:
        for i in range(tokens // T):
            if layout != "ring" and i * T % CAPACITY == 0:
                cache = shorten(cache)
            cache, out = decoder.step(cache, *given)
            if i % 50 == 0:
                np.asarray(out)
        np.asarray(out)
        return cache

    cache = run(cache, 2 * CAPACITY)
    made, reserved, before = Made(), _runtime.device().memory.reserved, resident()
    run(cache, tokens)
    more = {
        "traces": decoder.traces - 1,
        "programs": made.count,
        "reserved": _runtime.device().memory.reserved - reserved,
        "resident": max(resident() - before - (8 << 20), 0),
    }
    assert not any(more.values()), more


if __name__ == "__main__":
    for layout, T, tokens in zip(*[iter(sys.argv[1:])] * 3, strict=True):
        decode_many(layout, int(T), int(tokens))
