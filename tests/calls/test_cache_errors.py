"""What a cache refuses: every error says what was given, what is taken and what to do, before anything is written."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import wgattn as wa
from wgattn import KVCache, masks, nn
from wgattn._known import known


def rows(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def cache(**options: Any) -> KVCache:
    """Two sequences of up to 16 tokens."""
    return KVCache.create(2, 16, 4, 8, **{"dtype": np.float32, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch must be at least 1; got 0"),
        ({"capacity": 2.5}, "capacity must be an integer; got float"),
        ({"dtype": np.int32}, "the dtype of a cache is one of float32, .*int4; got int32"),
        ({"dtype": "nonsense"}, "the dtype of a cache is one of float32, .*; got 'nonsense'"),
        ({"layout": "pages"}, 'layout is "dense" or "paged"; got \'pages\''),
        ({"page_size": 16}, 'page_size and pages are for layout="paged"'),
        ({"layout": "paged", "page_size": 12}, "page_size must be a power of two and at least 8; got 12"),
        ({"layout": "paged", "page_size": 4}, "page_size must be a power of two and at least 8; got 4"),
        ({"layout": "paged", "pages": 0}, "pages must be at least 1; got 0"),
        ({"layout": "paged", "window": 4}, "a window cache is a ring of slots and has no pages"),
        ({"pinned": 2}, "pinned is the number of first tokens that a window cache keeps; got 2, window=None"),
        ({"layout": "paged", "pinned": 2}, "pinned is the number of first tokens that a window cache keeps; got 2"),
        ({"window": 4, "pinned": -1}, "pinned must be at least 0; got -1"),
        ({"window": 4, "pinned": 1.5}, "pinned must be an integer; got float"),
        ({"capacity": 1 << 31}, "capacity must be at most 1,073,741,824; got 2,147,483,648"),
        (
            {"window": 15, "pinned": 2},
            "capacity 16 does not hold a window of 15 tokens and 2 pinned ones: give at least",
        ),
    ],
)
def test_create(options: dict[str, Any], message: str):
    sizes = {"batch": 2, "capacity": 16, "kv_heads": 4, "head_dim": 8}
    with pytest.raises((ValueError, TypeError), match=message):
        KVCache.create(**{**sizes, **options})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            rows(2, 3, 2, 8),
            rows(2, 3, 4, 8),
            r"key \(2, 3, 2, 8\) is read as B=2 T=3 K=2 H=8; the cache has B=2 K=4 H=8",
        ),
        (rows(2, 3, 4, 8), rows(2, 3, 4, 6), r"value .* is read as B=2 T=3 K=4 Hv=6; the cache has B=2 K=4 Hv=8"),
        (rows(3, 3, 4, 8), rows(2, 3, 4, 8), "B=3 .* the cache has B=2"),
        (rows(3, 4, 8), rows(3, 4, 8), r"key \(3, 4, 8\) is read as B=1 .* the cache has B=2"),
        (rows(2, 4, 3, 8), rows(2, 4, 3, 8), r"it looks like BKTH, use key.swapaxes\(1, 2\)"),
        (rows(2, 3, 4, 8), rows(2, 2, 4, 8), "must have the same T"),
        (rows(4, 8), rows(4, 8), r"key must have 3 or 4 axes, BTKH or TKH; got shape \(4, 8\)"),
        (rows(2, 3, 4, 8).astype(np.int32), rows(2, 3, 4, 8), r"key is int32; .*cast with key.astype\(np.float32\)"),
    ],
)
def test_new_rows_that_do_not_fit(key: np.ndarray, value: np.ndarray, message: str):
    with pytest.raises((ValueError, TypeError), match=message):
        cache().append(key, value)


def test_counts_of_new_rows():
    new = rows(2, 3, 4, 8)
    with pytest.raises(TypeError, match="lengths must be int32; got float32"):
        cache().append(new, new, lengths=np.ones(2, np.float32))
    with pytest.raises(ValueError, match=r"lengths must have shape \(B,\) = \(2,\); got \(3,\)"):
        cache().append(new, new, lengths=np.ones(3, np.int32))
    with pytest.raises(ValueError, match=r"how many of the 3 new tokens are real, 0 to 3; got \[4, 0\]"):
        cache().append(new, new, lengths=np.array([4, 0], np.int32))
    with pytest.raises(ValueError, match=r"how many of the 0 new tokens are real, 0 to 0; got \[1, 0\]"):
        cache().append(new[:, :0], new[:, :0], lengths=np.array([1, 0], np.int32))
    for T, message in ((-1, "T must be at least 0; got -1"), (1.5, "T must be an integer; got float")):
        with pytest.raises((ValueError, TypeError), match=message):
            cache().positions(T)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"rope takes a wgattn.nn.Rope; got int"):
        cache().append(new, new, rope=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="rotary_dim"):
        cache().append(new, new, rope=nn.Rope(rotary_dim=10))


@pytest.mark.parametrize("layout", ["dense", "paged"])
def test_append_beyond_the_capacity(layout: str):
    full = cache(layout=layout, **({"page_size": 8} if layout == "paged" else {})).append(*[rows(2, 14, 4, 8)] * 2)
    more = rows(2, 3, 4, 8)
    with pytest.raises(
        ValueError, match=r"^append: sequence 0 holds 14 tokens, 3 more are given, and the capacity is 16"
    ):
        full.append(more, more)
    with pytest.raises(ValueError, match="sequence 1 holds 14 tokens, 3 more are given"):
        full.append(more, more, lengths=np.array([2, 3], np.int32))
    assert full.append(more, more, lengths=np.array([2, 0], np.int32)).batch == 2
    with pytest.raises(ValueError, match=r"^reserve: sequence 0 holds 14 tokens, 5 more are asked for"):
        full.reserve(5)


@pytest.mark.device
def test_append_beyond_the_capacity_under_jit_writes_nothing():
    step = wa.jit(lambda cache, new: cache.append(new, new), donate_argnums=0)
    full = cache(dtype=np.float16)
    for _ in range(5):
        full = step(full, rows(2, 3, 4, 8))
    before = np.asarray(full.key)
    with pytest.raises(ValueError, match="sequence 0 holds 15 tokens, 3 more are given, and the capacity is 16"):
        step(full, rows(2, 3, 4, 8))
    assert np.array_equal(np.asarray(full.key), before), "it was not donated either"


@pytest.mark.device
def test_a_donated_cache_used_again():
    step = wa.jit(lambda cache, new: cache.append(new, new), donate_argnums=0)
    first = cache()
    second = step(first, rows(2, 3, 4, 8))
    for use in (
        lambda: first.append(rows(2, 1, 4, 8), rows(2, 1, 4, 8)),
        lambda: first.truncate(0),
        lambda: first.positions(2),
        lambda: first.fork([0]),
        lambda: nn.cached_attention(rows(2, 1, 4, 8), first),
    ):
        with pytest.raises(RuntimeError, match="this KVCache was donated to <lambda>"):
            use()
    with pytest.raises(RuntimeError, match=r"argument cache.key of <lambda>: this Array was donated to <lambda>"):
        step(first, rows(2, 3, 4, 8))
    assert known(second.lengths._step) is not None


def test_truncate_reorder_fork_and_reserve():
    with pytest.raises(ValueError, match=r"truncate takes lengths of at least 0; got -1"):
        cache().truncate(-1)
    with pytest.raises(ValueError, match=r"lengths must have shape \(\) or \(B,\) = \(2,\); got \(3,\)"):
        cache().truncate(np.zeros(3, np.int32))
    with pytest.raises(ValueError, match=r"one index a sequence: shape \(B,\) = \(2,\); got \(3,\): fork"):
        cache().reorder([0, 1, 1])
    with pytest.raises(ValueError, match=r"indices name sequences 0 to 1; got \[0, 2\]"):
        cache().fork([0, 2])
    with pytest.raises(ValueError, match=r"indices are int32 \(M,\), at least one; got float32"):
        cache().fork(np.zeros(2, np.float32))
    for tokens in (-1, np.array([1, 2, 3]), np.ones(2)):
        with pytest.raises(
            ValueError, match=r"tokens is a number of at least 0, or one a sequence, integers \(B,\) = \(2,\)"
        ):
            cache().reserve(tokens)
    with pytest.raises(ValueError, match=r"none of the 3 is free: create the cache with more pages"):
        cache(layout="paged", page_size=8, pages=3).reserve(16)


def test_a_ring_that_has_overwritten_what_is_asked_for():
    ring = cache(window=6, pinned=2).append(*[rows(2, 16, 4, 8)] * 2).append(*[rows(2, 8, 4, 8)] * 2)
    with pytest.raises(ValueError, match=r"sequence 0 of a ring had 24 tokens and can lose 8 of them, .* got 15"):
        ring.truncate(15)
    assert known(ring.truncate(16).lengths._step, ring.truncate(16).lengths._result) is not None
    with pytest.raises(ValueError, match=r"sequence 0 of a ring had 24 tokens and can lose 8 of them, .* got 15"):
        ring.truncate(20).truncate(15)
    with pytest.raises(ValueError, match=r"sequence 1 of a ring had 24 tokens .* got 3"):
        ring.truncate(16).fork([1, 0, 1]).truncate(np.array([16, 3, 3], np.int32))
    query = rows(2, 10, 8, 8)
    with pytest.raises(ValueError, match="10 queries with a window of 6 see 15 tokens, and the cache's ring holds 14"):
        nn.cached_attention(query, ring)
    for given in (
        {"bias": rows(1, 1, 1, 16)},
        {"mask": np.ones((1, 1, 1, 16), bool)},
        {"mask": masks.segments(np.zeros(2, np.int32), np.zeros(16, np.int32))},
    ):
        with pytest.raises(ValueError, match="a window cache takes no bias, no dense mask and no segments"):
            nn.cached_attention(query[:, :2], ring, **given)
    with pytest.raises(
        TypeError, match=r"keeps local\(5, 0\) \| prefix\(2\), and the call .* local\(8, 1\): .*pinned=0"
    ):
        nn.cached_attention(query[:, :2], ring, local_window_size=(8, 1))


@pytest.mark.device
@pytest.mark.parametrize("jitted", [False, True])
def test_queries_that_see_what_a_ring_has_written_over(jitted: bool):
    """Behind a truncation, or before the newest tokens: what lies in the slots is another token's."""
    ring = cache(window=6, pinned=2).append(*[rows(2, 24, 4, 8)] * 2).truncate(np.array([24, 18], np.int32))
    query = rows(2, 4, 8, 8)
    attend = wa.jit(nn.cached_attention) if jitted else nn.cached_attention
    with pytest.raises(ValueError, match=r"query 0 of sequence 1 sits at 14 and sees tokens from 9 on; .* from 10 on"):
        attend(query, ring)
    with pytest.raises(ValueError, match=r"query 0 of sequence 0 sits at 14 and sees tokens from 9 on; .* had 24"):
        attend(query, ring, query_offset=14)
    assert attend(query[:, :3], ring).shape == (2, 3, 8, 8)
    early = cache(window=6, pinned=2).append(*[rows(2, 16, 4, 8)] * 2).truncate(3)
    assert attend(query, early).shape == query.shape, "nothing was written over yet"


def test_queries_that_do_not_fit():
    with pytest.raises(ValueError, match=r"query \(2, 1, 6, 8\) is read as B=2 T=1 N=6 H=8; .*N=6 must be a multiple"):
        nn.cached_attention(rows(2, 1, 6, 8), cache())
    with pytest.raises(ValueError, match=r"if it is BNTH, use query.swapaxes\(1, 2\)"):
        nn.cached_attention(rows(2, 8, 1, 8), cache())
    with pytest.raises(ValueError, match="H=7; the cache has B=2 K=4 H=8"):
        nn.cached_attention(rows(2, 1, 8, 7), cache())
    with pytest.raises(TypeError, match=r"query is float64.*|query is int32; it must be float32"):
        nn.cached_attention(rows(2, 1, 8, 8).astype(np.int32), cache())
    with pytest.raises(TypeError, match=r"cache is a wgattn.KVCache; got ndarray: make one with"):
        nn.cached_attention(rows(2, 1, 8, 8), rows(2, 16, 4, 8))  # pyright: ignore[reportArgumentType]
    handle = type("CacheHandle", (), {})()
    with pytest.raises(TypeError, match=r"got CacheHandle: wgattn.jax.cached_attention takes that"):
        nn.cached_attention(rows(2, 1, 8, 8), handle)
    with pytest.raises(ValueError, match=r"bias \(2, 1, 1, 12\) must broadcast to \(B, N, T, S\) = \(2, 8, 1, 16\)"):
        nn.cached_attention(rows(2, 1, 8, 8), cache(), bias=rows(2, 1, 1, 12))
    with pytest.raises(ValueError, match="residual_dtype is given without return_residual=True"):
        nn.cached_attention(rows(2, 1, 8, 8), cache(), residual_dtype=np.float32)


def test_pages_that_point_outside():
    good = cache(layout="paged", page_size=8).append(*[rows(2, 3, 4, 8)] * 2)
    bad = replace(good, pages=wa.asarray(np.array([[0, -1], [4, -1]], np.int32)))
    for use in (
        lambda: bad.append(rows(2, 1, 4, 8), rows(2, 1, 4, 8)),
        lambda: bad.reserve(1),
        lambda: nn.cached_attention(rows(2, 1, 8, 8), bad),
    ):
        with pytest.raises(
            ValueError, match=r"the page table points outside: entry \(1, 0\) is 4, and there are 4 pages"
        ):
            use()


@pytest.mark.device
def test_pages_under_jit():
    step = wa.jit(lambda cache, new: cache.append(new, new))
    empty = cache(layout="paged", page_size=8)
    with pytest.raises(ValueError, match=r"sequence 0 has no page for its new tokens: call cache.reserve\(3\) before"):
        step(empty, rows(2, 3, 4, 8))
    shared = empty.append(*[rows(2, 3, 4, 8)] * 2).fork([0, 0])
    with pytest.raises(ValueError, match=r"sequence 0 shares the page .*: call cache.reserve\(3\) before"):
        step(shared, rows(2, 3, 4, 8))
    assert step(shared.reserve(3), rows(2, 3, 4, 8)).batch == 2
    bad = replace(empty, pages=wa.asarray(np.full((2, 2), 9, np.int32)))
    with pytest.raises(ValueError, match="the page table points outside"):
        step(bad, rows(2, 3, 4, 8))
    with pytest.raises(TypeError, match=r"reserve deals pages out on the host, .*: call it before the jitted function"):
        wa.jit(lambda cache: cache.reserve(3))(empty)


@pytest.mark.parametrize(
    "use", [np.asarray, wa.asarray, lambda x: wa.asarray(np.ones(2)) + x, lambda x: nn.dot_product_attention(x, x, x)]
)
def test_a_cache_is_no_array(use: Any):
    with pytest.raises(TypeError, match=r"a KVCache is no array: np\.asarray\(cache\.lengths\)"):
        use(cache())


def test_a_cache_is_a_pytree():
    leaves, tree = jax.tree_util.tree_flatten(cache(dtype="int8"))
    assert len(leaves) == 4
    assert jax.tree_util.tree_unflatten(tree, leaves).dtype == np.int8
