"""What appends, truncations, reorderings and forks make of a cache; pages are dealt out, shared and copied."""

from typing import Any

import numpy as np
import pytest

import wgattn as wa
from tests.calls.caches import DTYPES, held, normal
from wgattn import KVCache
from wgattn import _reference_cache as reference
from wgattn._known import known

pytestmark = pytest.mark.device
PAGED: dict[str, Any] = {"layout": "paged", "page_size": 8}


def tokens(seed: int, T: int, B: int = 2, K: int = 2, H: int = 8) -> tuple[np.ndarray, np.ndarray]:
    r = np.random.default_rng(seed)
    return normal(r, B, T, K, H), normal(r, B, T, K, H)


def lengths(cache: KVCache) -> list[int]:
    """Known on the host: nothing is read back."""
    value = known(cache.lengths._step, cache.lengths._result)
    assert value is not None
    assert value.tolist() == np.asarray(cache.lengths).tolist()
    return value.tolist()


def table(cache: KVCache) -> np.ndarray:
    value = known(cache.pages._step, cache.pages._result)
    assert value is not None
    return value


@pytest.mark.parametrize("layout", [{}, PAGED])
@pytest.mark.parametrize("given", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_stored(dtype: str, given: str, layout: dict[str, Any]):
    """Cast or quantised as the reference does it, bit for bit."""
    key, value = (x.astype(given) * 3 for x in tokens(0, 9))
    cache = KVCache.create(2, 16, 2, 8, dtype=dtype, **layout).append(key, value, lengths=np.array([9, 4], np.int32))
    own = held(cache)
    for rows, found in ((key, own.keys), (value, own.values)):
        right = reference.dequantise(*reference.quantise(rows, np.dtype(dtype)), 8, np.dtype(dtype))
        assert np.array_equal(found[0, :9], right[0])
        assert np.array_equal(found[1, :4], right[1, :4])
    assert lengths(cache) == [9, 4]


def test_a_cache_is_a_value():
    """What was there before an append, a truncation or a fork is there after it."""
    first = KVCache.create(2, 16, 2, 8, dtype=np.float32).append(*tokens(0, 3))
    before = held(first)
    first.append(*tokens(1, 2)).truncate(1).append(*tokens(2, 4))
    np.asarray(first.fork([1, 1]).append(*tokens(3, 4)).key)
    after = held(first)
    assert lengths(first) == [3, 3]
    assert np.array_equal(before.keys, after.keys)
    assert np.array_equal(before.values, after.values)


def test_what_is_taken():
    """NumPy and JAX arrays, Arrays and views of them."""
    import jax

    key, value = tokens(0, 3)
    empty = KVCache.create(2, 16, 2, 8, dtype=np.float32)
    right = held(empty.append(key, value)).keys
    swapped = wa.asarray(np.ascontiguousarray(key.swapaxes(1, 2))).swapaxes(1, 2)
    for given in (jax.numpy.asarray(key), wa.asarray(key), swapped):
        assert np.array_equal(held(empty.append(given, value)).keys, right)
    one = KVCache.create(1, 16, 2, 8, dtype=np.float32)
    assert np.array_equal(held(one.append(key[0], value[0])).keys, right[:1])
    assert empty.append(key[:, :0], value[:, :0]) is empty
    assert lengths(empty.append(key, value, lengths=np.array([0, 0], np.int32))) == [0, 0]


def test_positions():
    cache = KVCache.create(2, 16, 2, 8).append(*tokens(0, 3), lengths=np.array([3, 1], np.int32))
    assert np.asarray(cache.positions(2)).tolist() == [[3, 4], [1, 2]]
    assert cache.positions(2).dtype == np.int32


@pytest.mark.parametrize("layout", [{}, PAGED, {"window": 6, "pinned": 2}])
def test_truncate(layout: dict[str, Any]):
    cache = KVCache.create(2, 16, 2, 8, dtype=np.float32, **layout)
    cache = cache.append(*tokens(0, 12), lengths=np.array([12, 5], np.int32))
    assert lengths(cache.truncate(7)) == [7, 5]
    assert lengths(cache.truncate(np.array([1, 9], np.int32))) == [1, 5]
    assert lengths(cache.truncate(0)) == [0, 0]
    whole, cut = held(cache), held(cache.truncate(7))
    assert np.array_equal(cut.keys[0, :7], whole.keys[0, :7])


@pytest.mark.parametrize("dtype", ["float16", "int8", "int4"])
@pytest.mark.parametrize("layout", [{}, PAGED])
def test_reorder_and_fork(layout: dict[str, Any], dtype: str):
    cache = KVCache.create(3, 16, 2, 8, dtype=dtype, **layout)
    cache = cache.append(*tokens(0, 9, B=3), lengths=np.array([9, 4, 6], np.int32))
    whole = held(cache)
    for indices in ([2, 0, 0], [1, 1, 1], [0, 1, 2]):
        moved = held(cache.reorder(np.array(indices, np.int32)))
        assert np.array_equal(moved.keys, whole.keys[indices])
        assert np.array_equal(moved.values, whole.values[indices])
        assert np.array_equal(moved.lengths, whole.lengths[indices])
    wide = cache.fork([1, 2, 1, 0, 2])
    assert lengths(wide) == [4, 6, 4, 9, 6]
    assert np.array_equal(held(wide).keys, whole.keys[[1, 2, 1, 0, 2]])
    run_time = wa.jit(lambda c, i: c.fork(i))(cache, np.array([2, 2], np.int32))
    assert np.array_equal(held(run_time).keys, whole.keys[[2, 2]])
    assert lengths(run_time) == [6, 6]


@pytest.mark.parametrize("eager", [True, False])
def test_pages_that_a_jitted_truncate_leaves_are_dealt_out_where_none_is_free(eager: bool):
    cut, grow = wa.jit(lambda cache: cache.truncate(np.array([3, 24], np.int32))), wa.jit(KVCache.append)
    cache = cut(KVCache.create(2, 32, 2, 8, pages=6, **PAGED).append(*tokens(0, 24)))
    assert table(cache).tolist() == [[0, 1, 2, -1], [3, 4, 5, -1]]
    for count, wanted in (([5, 0], [[0, 1, 2, -1], [3, 4, 5, -1]]), ([0, 8], [[0, -1, -1, -1], [3, 4, 5, 1]])):
        given = (*tokens(1, 8), np.array(count, np.int32))
        cache = cache.append(*given) if eager else grow(cache.reserve(given[2]), *given)
        assert table(cache).tolist() == wanted
    assert np.array_equal(held(cache).keys[1, 24:32], tokens(1, 8)[0][1].astype(np.float16))
    assert np.array_equal(held(cache).keys[0, 3:8], tokens(1, 8)[0][0, :5].astype(np.float16))
    with pytest.raises(ValueError, match="none of the 6 is free"):
        cache.reserve([17, 0])


def test_pages_are_dealt_out_as_tokens_come():
    cache = KVCache.create(2, 32, 2, 8, **PAGED)
    assert cache.key.shape == (8, 8, 2, 8)
    cache = cache.append(*tokens(0, 9), lengths=np.array([9, 0], np.int32))
    assert table(cache).tolist() == [[0, 1, -1, -1], [-1] * 4]
    cache = cache.append(*tokens(1, 8))
    assert table(cache).tolist() == [[0, 1, 2, -1], [3, -1, -1, -1]]
    assert table(cache.truncate(9)).tolist() == [[0, 1, -1, -1], [3, -1, -1, -1]], "pages without a token are free"
    assert table(cache.reserve(np.array([0, 9]))).tolist() == [[0, 1, 2, -1], [3, 4, 5, -1]]
    assert cache.reserve(7) is not cache
    assert cache.reserve(np.array([7, 0])) is cache, "the pages that it has do"


def test_capacity_is_whole_pages():
    cache = KVCache.create(3, 20, 2, 8, layout="paged", page_size=16)
    assert (cache.capacity, cache.batch, cache.kv_heads, cache.head_dim, cache.v_head_dim) == (32, 3, 2, 8, 8)
    assert cache.key.shape == (6, 16, 2, 8)
    assert cache.nbytes == 2 * 6 * 16 * 2 * 8 * 2 + (6 + 3) * 4


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_shared_pages_are_copied_before_they_are_written(dtype: str):
    """Four samples of one prompt: whole pages stay shared, the page that all go on in is copied for three of them."""
    prompt = KVCache.create(1, 32, 2, 8, dtype=dtype, layout="paged", page_size=8, pages=16)
    prompt = prompt.append(*tokens(0, 11, B=1))
    samples = prompt.fork([0, 0, 0, 0])
    assert table(samples).tolist() == [[0, 1, -1, -1]] * 4
    grown = samples.append(*tokens(1, 2, B=4))
    pages = table(grown)
    assert pages[:, 0].tolist() == [0] * 4
    assert len(set(pages[:, 1].tolist())) == 4
    dense = KVCache.create(1, 32, 2, 8, dtype=dtype).append(*tokens(0, 11, B=1)).fork([0, 0, 0, 0])
    right = held(dense.append(*tokens(1, 2, B=4)))
    found = held(grown)
    assert np.array_equal(found.keys[:, :13], right.keys[:, :13])
    assert np.array_equal(found.values[:, :13], right.values[:, :13])
    assert np.array_equal(held(samples).keys[:, :11], np.repeat(held(prompt).keys[:, :11], 4, 0)), (
        "the fork is as it was"
    )


def test_a_shared_page_that_holds_no_token_is_not_copied():
    cache = KVCache.create(1, 32, 2, 8, layout="paged", page_size=8, pages=8).append(*tokens(0, 8, B=1)).reserve(4)
    both = cache.fork([0, 0]).reserve(4)
    assert both.key is cache.key
    assert table(both)[:, 0].tolist() == [0, 0]
    assert len(set(table(both)[:, 1].tolist())) == 2


def test_beam_search_ends_with_the_pages_it_needs():
    """Whoever is left out gives its pages back."""
    cache = KVCache.create(2, 64, 2, 8, layout="paged", page_size=8, pages=10)
    for step in range(30):
        cache = cache.append(*tokens(step, 2)).reorder([0, 0] if step % 3 else [1, 0])
    assert lengths(cache) == [60, 60]
    named = table(cache)
    assert len(np.unique(named[named >= 0])) <= 10


@pytest.mark.parametrize("pinned", [0, 2])
def test_a_ring_keeps_the_newest_tokens(pinned: int):
    key, value = tokens(0, 30)
    cache = KVCache.create(2, 12, 2, 8, dtype=np.float32, window=5, pinned=pinned)
    for start in range(0, 30, 6):
        cache = cache.append(key[:, start : start + 6], value[:, start : start + 6])
    assert lengths(cache) == [30, 30]
    own = held(cache)
    kept = [*range(pinned), *range(30 - 12 + pinned, 30)]
    assert own.positions[0].tolist() == kept
    assert np.array_equal(own.keys, key[:, kept])
    assert np.array_equal(own.values, value[:, kept])


def test_how_it_prints():
    assert repr(KVCache.create(2, 16, 4, 8, 6)) == "KVCache(float16, B=2 C=16 K=4 H=8 Hv=6)"
    ring = KVCache.create(2, 16, 4, 8, dtype="int8", window=8, pinned=2)
    assert repr(ring) == "KVCache(int8, B=2 C=16 K=4 H=8, window=8 pinned=2)"
