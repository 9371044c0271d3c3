"""Caches in jitted functions: one trace and program for all lengths, written in place where donated, memory flat."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import wgattn as wa
from tests.calls.caches import held, normal, right
from tests.calls.decoding import LAYOUTS, Decoder, resident, token
from tests.tolerance import check
from wgattn import KVCache, _run, _runtime, nn

pytestmark = pytest.mark.device
# by layout and T, the tokens of an append: how many are appended in all
TOKENS = {("dense", 1): 2_000, ("paged", 1): 500, ("ring", 1): 500, ("paged", 25): 2_500, ("ring", 25): 2_500}
if os.environ.get("HYPOTHESIS_PROFILE") == "thorough":
    TOKENS = {(layout, T): 100_000 if T > 1 or layout == "dense" else 20_000 for layout, T in TOKENS}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_token_more_compiles_nothing(layout: str, monkeypatch: pytest.MonkeyPatch):
    """Nor traces anything, over 200 tokens; and nothing is read back but the result."""
    decoder = Decoder()
    cache = KVCache.create(2, 256, 2, 16, **LAYOUTS[layout]).reserve(200)
    prompt = normal(np.random.default_rng(0), 2, 5, 2, 16)
    cache = cache.append(prompt, prompt, lengths=np.array([5, 0], np.int32))
    kept = decoder.step(cache, *token(0))[0]
    made: list[Any] = []
    loaded = _run._kept

    def counted(cache: Any, key: Any, make: Any) -> Any:
        return loaded(cache, key, lambda: (made.append(key), make())[1])

    monkeypatch.setattr(_run, "_kept", counted)
    for i in range(1, 199):
        kept, out = decoder.step(kept, *token(i))
        if i % 66 == 0:
            np.asarray(out)
    assert decoder.traces == 1
    assert not made
    kept, out = decoder.step(kept, *token(199))
    check(np.asarray(out), right(kept, token(199)[2]).out)
    assert np.asarray(kept.lengths).tolist() == [205, 200]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_donated_cache_is_written_in_place(layout: str):
    decoder = Decoder()
    cache = KVCache.create(2, 64, 2, 16, **LAYOUTS[layout]).reserve(20)
    for i in range(3):  # the first call may find key and value in one buffer
        cache, _ = decoder.step(cache, *token(i))
    names = [name for name in ("key", "value", "scales") if getattr(cache, name) is not None]

    def buffers(cache: KVCache) -> list[int]:
        return [id(getattr(cache, name)._step.values[getattr(cache, name)._result].buffer) for name in names]

    before = buffers(cache)
    for i in range(3, 6):
        cache, out = decoder.step(cache, *token(i))
        assert len(set(buffers(cache))) == len(names)
    check(np.asarray(out), right(cache, token(5)[2]).out)
    reserved = _runtime.device().memory.reserved
    for i in range(6, 20):
        cache, _ = decoder.step(cache, *token(i))
    assert _runtime.device().memory.reserved == reserved
    assert sorted(buffers(cache)) == sorted(before), "no other memory is taken"


def test_without_donation_the_old_cache_lives():
    decoder = Decoder(donate=False)
    first = KVCache.create(2, 64, 2, 16, dtype=np.float32)
    second, _ = decoder.step(first, *token(0))
    third, out = decoder.step(second, *token(1))
    again, same = decoder.step(second, *token(1))
    assert np.array_equal(np.asarray(out), np.asarray(same))
    assert np.array_equal(held(third).keys, held(again).keys)
    assert held(first).lengths.tolist() == [0, 0]
    assert held(second).lengths.tolist() == [1, 1]


def test_several_layers_in_one_function():
    """A list of caches is a tree like any other; each is donated and written in place."""

    def step(caches: list[KVCache], key: Any, value: Any, query: Any) -> tuple[list[KVCache], Any]:
        grown = [cache.append(key, value) for cache in caches]
        for cache in grown:
            query = nn.cached_attention(query, cache)
        return grown, query

    jitted = wa.jit(step, donate_argnums=0)
    caches = [KVCache.create(2, 32, 2, 16, dtype=np.float32) for _ in range(3)]
    for i in range(4):
        caches, out = jitted(caches, *token(i))
    expected = token(3)[2]
    for cache in caches:
        expected = right(cache, expected).out.astype(np.float32)
    check(np.asarray(out), expected.astype(np.float64))


def test_prefill_and_decode_in_one_jitted_function():
    """Appends of different sizes a sequence, in one dispatch: as many as `lengths` says."""
    jitted = wa.jit(lambda cache, key, value, n: cache.append(key, value, lengths=n), donate_argnums=0)
    r = np.random.default_rng(1)
    cache = KVCache.create(3, 32, 2, 16, dtype=np.float32)
    model: list[list[np.ndarray]] = [[], [], []]
    for n in ([4, 0, 2], [1, 4, 4], [0, 3, 1]):
        key = normal(r, 3, 4, 2, 16)
        cache = jitted(cache, key, key, np.array(n, np.int32))
        for b in range(3):
            model[b] += list(key[b, : n[b]])
    own = held(cache)
    for b in range(3):
        assert own.lengths[b] == len(model[b])
        assert np.array_equal(own.keys[b, : len(model[b])], np.stack(model[b]))


def test_lengths_that_only_the_device_knows():
    """Tokens beyond the capacity are dropped, and nothing is read back to find out."""

    def step(cache: KVCache, key: Any, n: Any) -> KVCache:
        return cache.append(key, key, lengths=n.astype(np.int32))

    jitted = wa.jit(step, donate_argnums=0)
    key = normal(np.random.default_rng(2), 2, 5, 2, 16)
    cache = KVCache.create(2, 8, 2, 16, dtype=np.float32)
    for _ in range(3):
        cache = jitted(cache, key, np.array([5.0, 2.0], np.float32))
    own = held(cache)
    assert own.lengths.tolist() == [8, 6]
    assert np.array_equal(own.keys[0], np.concatenate([key[0], key[0, :3]]))
    assert np.array_equal(own.keys[1, :6], np.concatenate([key[1, :2]] * 3))


def test_many_tokens_leave_memory_flat():
    """And nothing is compiled. In a process of its own, where no types are checked: that takes five times as long."""
    given = [str(x) for (layout, T), count in TOKENS.items() for x in (layout, T, count)]
    done = subprocess.run([sys.executable, "-m", "tests.calls.decoding", *given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_an_eager_loop_leaves_memory_flat():
    cache = KVCache.create(1, 64, 2, 16)

    def run(count: int) -> None:
        nonlocal cache
        for i in range(count):
            key, value, query = token(i, B=1)
            cache = cache.truncate(0) if i % 50 == 49 else cache.append(key, value)
            np.asarray(nn.cached_attention(query, cache))

    run(100)
    reserved, before = _runtime.device().memory.reserved, resident()
    run(300)
    assert _runtime.device().memory.reserved == reserved
    assert resident() - before < 8 << 20


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_cache_gave_outlives_its_donation(layout: str):
    """Page tables and the like pass from cache to cache: each has its own."""
    donating, copying = Decoder(), Decoder(donate=False)
    truncate = wa.jit(lambda cache: cache.truncate(2))
    prompt = normal(np.random.default_rng(3), 2, 3, 2, 16)
    for give in (
        lambda cache: copying.step(cache, *token(0))[0],
        lambda cache: cache.append(*token(0)[:2]),
        truncate,
    ):
        cache = KVCache.create(2, 64, 2, 16, **LAYOUTS[layout]).append(prompt, prompt).reserve(2)
        given = give(cache)
        expected = right(given, token(2)[2]).out
        donating.step(cache, *token(1))
        check(np.asarray(nn.cached_attention(token(2)[2], given)), expected)


def test_a_donated_argument_that_is_returned_is_still_what_others_wait_for():
    """What was recorded before keeps the old tokens, though the truncated cache is written in place later."""
    donating, truncate = Decoder(), wa.jit(lambda cache: cache.truncate(1), donate_argnums=0)
    prompt = normal(np.random.default_rng(4), 2, 3, 2, 16)
    cache = donating.step(KVCache.create(2, 64, 2, 16, dtype=np.float32).append(prompt, prompt), *token(0))[0]
    before, kept = np.asarray(cache.key), wa.jit(lambda cache: cache.truncate(3))(cache)
    waits = cache.append(*token(1)[:2])
    donating.step(truncate(cache), *token(2))
    assert np.array_equal(np.asarray(waits.key)[:, :4], before[:, :4])
    assert np.array_equal(np.asarray(kept.key), before)
