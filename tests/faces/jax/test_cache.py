"""KV caches in JAX programs: arrays and handles give what wgattn's own give, and arrays go through transforms."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import wgattn
from tests.calls.caches import DTYPES, right
from tests.faces.jax.caches import B, C, H, K, N, Rows, fails, rows, same, step
from tests.faces.jax.compare import normal
from tests.tolerance import check
from wgattn import KVCache, masks
from wgattn.jax import CacheHandle, append, cached_attention, new_cache, reserve, truncate

FORMS: dict[str, dict[str, Any]] = {
    **{dtype: {"dtype": dtype} for dtype in DTYPES},
    "paged": {"layout": "paged", "page_size": 8},
    "paged int8": {"layout": "paged", "page_size": 8, "dtype": "int8"},
    "ring": {"window": 12, "pinned": 2},
}


@pytest.mark.device
@pytest.mark.parametrize("form", FORMS)
def test_arrays_and_handles_give_what_the_cache_itself_does(form: str) -> None:
    """Ragged appends of several sizes in jitted functions, for every stored type and layout."""
    arrays, kept = new_cache(B, C, K, H, **FORMS[form]), CacheHandle.create(B, C, K, H, **FORMS[form])
    own = KVCache.create(B, C, K, H, **FORMS[form])
    arrays = reserve(arrays, 20)
    grow, attend = jax.jit(append), jax.jit(cached_attention)
    for T, counts in ((5, [5, 3]), (1, [1, 1]), (5, [0, 5])):
        query, key, value = rows(T, T)
        n = np.array(counts, np.int32)
        arrays, kept = grow(arrays, key, value, n), grow(kept, key, value, n)
        own = own.append(key, value, n)
        out = np.asarray(attend(query, kept))
        assert np.array_equal(out, np.asarray(attend(query, arrays)))
        assert np.array_equal(out, np.asarray(wgattn.nn.cached_attention(query, own)))
        check(out, right(own, np.asarray(query)).out)
    assert same(kept.cache(), own)
    assert arrays.lengths.tolist() == kept.lengths.tolist() == [6, 9]
    assert kept.positions(2).tolist() == [[6, 7], [9, 10]]
    kept.free()


@pytest.mark.device
@pytest.mark.parametrize("make", [new_cache, CacheHandle.create], ids=["arrays", "handle"])
def test_scan_and_while_loop(make: Callable[..., Any]) -> None:
    """A loop of JAX's decodes as separate calls do, and both as attention over all tokens at once."""
    prompt, steps = rows(0, 4), rows(3, 6)
    each = tuple(x.swapaxes(0, 1)[:, :, None] for x in steps)
    start, _ = jax.jit(step)(make(B, C, K, H, dtype="float32"), prompt)
    end, outs = jax.jit(lambda cache, each: lax.scan(step, cache, each))(start, each)

    def one(state: Any) -> Any:
        cache, i, found = state
        cache, out = step(cache, tuple(x[i] for x in each))
        return cache, i + 1, found.at[i].set(out)

    again, _, found = jax.jit(
        lambda cache: lax.while_loop(lambda s: s[1] < 6, one, (cache, 0, jnp.zeros((6, B, 1, N, H))))
    )(start)
    assert end.lengths.tolist() == again.lengths.tolist() == [10, 10]
    assert np.array_equal(np.asarray(outs), np.asarray(found))
    whole = (jnp.concatenate(pair, axis=1) for pair in zip(prompt, steps, strict=True))
    wanted = jax.nn.dot_product_attention(*whole, is_causal=True)[:, 4:]
    check(np.asarray(outs[:, :, 0]).swapaxes(0, 1), np.asarray(wanted))


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "not causal": {"is_causal": False},
    "window": {"local_window_size": (3, 0)},
    "bias": {"bias": normal(7, 1, N, 1, C)},
    "mask": {"mask": normal(8, B, 1, 1, C) > 0},
    "prefix": {"mask": masks.prefix(np.array([4, 2], np.int32)) | masks.causal(), "is_causal": False},
    "softcap, sinks, scale": {"softcap": 2.0, "sinks": normal(9, N), "scale": jnp.float32(0.3)},
    "scale": {"scale": 0.7, "implementation": "xla"},
    "offset": {"query_offset": jnp.array([1, 0]), "query_seq_lengths": np.array([3, 1], np.int32)},
    "int offset": {"query_offset": 2},
    "rope": {"rope": wgattn.nn.Rope(base=100.0)},
}


@pytest.mark.device
@pytest.mark.parametrize("name", OPTIONS)
def test_the_options_of_cached_attention(name: str) -> None:
    query, key, value = rows(0, 3)
    arrays = append(new_cache(B, C, K, H, dtype="float32"), key, value)
    kept = CacheHandle.of(arrays)
    options = OPTIONS[name] | {"return_residual": True}
    own = KVCache.create(B, C, K, H, dtype="float32").append(key, value)
    given = {n: x for n, x in options.items() if n != "implementation"}
    wanted = [np.asarray(x) for x in wgattn.nn.cached_attention(query, own, **given)]
    for cache in (arrays, kept):
        for transform in (jax.jit, lambda f: f):
            found = transform(lambda query, cache=cache: cached_attention(query, cache, **options))(query)
            assert all(np.array_equal(x, np.asarray(y)) for x, y in zip(wanted, found, strict=True))
    assert found[1].dtype == np.float32
    kept.free()


@pytest.mark.device
def test_keys_rotated_as_they_are_appended() -> None:
    rope = wgattn.nn.Rope(base=100.0)
    _, key, value = rows(0, 3)
    own = KVCache.create(B, C, K, H).append(key, value, rope=rope).append(key, value, rope=rope)
    kept, arrays = CacheHandle.create(B, C, K, H), new_cache(B, C, K, H)
    for _ in range(2):
        kept, arrays = append(kept, key, value, rope=rope), append(arrays, key, value, rope=rope)
    assert same(kept.cache(), own)
    assert np.array_equal(np.asarray(arrays.key), np.asarray(own.key))
    kept.free()


@pytest.mark.device
def test_gradients_of_a_cache_of_arrays() -> None:
    """By queries, what is appended, and what is stored; as those of jax.nn over the same keys."""
    first, second = rows(0, 3), rows(3, 2)
    weight = normal(9, B, 2, N, H)

    def loss(attend: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        return jax.jit(lambda *tensors: (attend(*tensors) * weight).sum())

    def ours(query: Any, key: Any, value: Any, old_key: Any, old_value: Any) -> jax.Array:
        cache = append(new_cache(B, C, K, H, dtype="float32"), old_key, old_value)
        return cached_attention(query, append(cache, key, value))

    def theirs(query: Any, key: Any, value: Any, old_key: Any, old_value: Any) -> jax.Array:
        keys, values = jnp.concatenate([old_key, key], 1), jnp.concatenate([old_value, value], 1)
        seen = jnp.arange(5)[None] <= jnp.arange(3, 5)[:, None]
        return jax.nn.dot_product_attention(query, keys, values, mask=seen)

    given = (*second, *first[1:])
    found, wanted = (jax.grad(loss(f), argnums=range(5))(*given) for f in (ours, theirs))
    for mine, other in zip(found, wanted, strict=True):
        check(np.asarray(mine), np.asarray(other), gradient=True, magnitude=max(1.0, float(np.abs(other).max())))
    stored = append(new_cache(B, C, K, H, dtype="float32"), *first[1:])
    by_storage = jax.grad(lambda key: loss(lambda q: cached_attention(q, replace(stored, key=key)))(second[0]))(
        stored.key
    )
    assert np.abs(by_storage[:, :3]).max() > 0 == np.abs(by_storage[:, 3:]).max()


@pytest.mark.device
def test_small_types_have_no_gradient() -> None:
    query, key, value = rows(0, 3)
    cache = append(new_cache(B, C, K, H, dtype="int8"), key, value)
    with pytest.raises(wgattn.UnsupportedError, match="no gradient"):
        jax.grad(lambda query: cached_attention(query, cache).sum())(query)


@pytest.mark.device
def test_a_recorded_function_takes_and_gives_a_cache() -> None:
    """`call` of a function of wgattn.jit: the cache is a tree of JAX arrays on both sides."""

    @wgattn.jit
    def both(cache: KVCache, query: Any, key: Any, value: Any) -> tuple[KVCache, Any]:
        cache = cache.append(key, value).truncate(2)
        return cache, wgattn.nn.cached_attention(query, cache, is_causal=False)

    new = rows(0, 3)
    found, out = jax.jit(lambda cache: wgattn.jax.call(both, cache, *new))(new_cache(B, C, K, H, dtype="float32"))
    assert isinstance(found, KVCache)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(found))
    assert found.lengths.tolist() == [2, 2]
    wanted = jax.nn.dot_product_attention(new[0], new[1][:, :2], new[2][:, :2])
    check(np.asarray(out), np.asarray(wanted))
    for use in (
        lambda: found.append(*new[1:]),
        lambda: found.truncate(1),
        lambda: wgattn.nn.cached_attention(new[0], found),
    ):
        with pytest.raises(TypeError, match="in JAX programs"):
            use()
    assert wgattn.nn.cached_attention(new[0], jax.tree.map(wgattn.asarray, found)).shape == new[0].shape


@pytest.mark.device
def test_vmap_over_caches_of_arrays() -> None:
    many = [rows(10 * i, 3) for i in range(3)]
    stacked = tuple(jnp.stack(x) for x in zip(*many, strict=True))
    caches = jax.tree.map(lambda x: jnp.stack([x] * 3), new_cache(B, C, K, H))
    grown, outs = jax.jit(jax.vmap(step))(caches, stacked)
    assert grown.lengths.tolist() == [[3, 3]] * 3
    for i, one in enumerate(many):
        _, out = step(new_cache(B, C, K, H), one)
        assert np.array_equal(np.asarray(outs[i]), np.asarray(out))


@pytest.mark.device
@pytest.mark.parametrize("make", [new_cache, CacheHandle.create], ids=["arrays", "handle"])
def test_beyond_the_capacity(make: Callable[..., Any]) -> None:
    cache = make(B, 8, K, H)
    _, key, value = rows(0, 5)
    cache = append(cache, key, value)
    fails(lambda: jax.jit(append)(cache, key, value).lengths, ValueError, "the capacity is 8: create the cache with")
    counts = np.array([3, 6], np.int32)
    fails(lambda: append(cache, key, value, counts).lengths, ValueError, r"0 to 5; got \[3, 6\]")
    assert append(cache, key[:, :3], value[:, :3]).lengths.tolist() == [8, 8]


@pytest.mark.device
def test_what_is_taken_back_of_arrays() -> None:
    _, key, value = rows(0, 5)
    cache = append(new_cache(B, C, K, H), key, value)
    assert truncate(cache, 3).lengths.tolist() == [3, 3]
    assert jax.jit(truncate)(cache, np.array([9, 2], np.int32)).lengths.tolist() == [5, 2]
    ring = append(new_cache(B, 16, K, H, window=12), *(jnp.tile(x, (1, 4, 1, 1)) for x in (key, value)))
    assert truncate(ring, 16).lengths.tolist() == [16, 16]
    fails(lambda: truncate(ring, 15).lengths, ValueError, "can lose 4")


@pytest.mark.device
def test_pages_of_arrays_are_dealt_out_before() -> None:
    query, key, value = rows(0, 5)
    cache = new_cache(B, C, K, H, layout="paged", page_size=8)
    fails(lambda: append(cache, key, value).lengths, ValueError, "no page for its new tokens")
    with pytest.raises(TypeError, match="use a CacheHandle"):
        jax.jit(lambda cache: reserve(cache, 5))(cache)
    with pytest.raises(ValueError, match=r"reserve: .* the capacity is 32"):
        reserve(cache, C + 1)
    with pytest.raises(ValueError, match="at least 0"):
        reserve(cache, -1)
    cache = append(reserve(cache, 5), key, value)
    shared = replace(cache, pages=jnp.stack([cache.pages[0]] * 2))  # both go on where the first is
    fails(lambda: append(shared, key[:, :2], value[:, :2]).lengths, ValueError, "shares the page")
    forked, out = step(reserve(shared, 5), (query, key, value))
    dense = append(new_cache(B, C, K, H), *(x[jnp.array([0, 0])] for x in (key, value)))
    check(np.asarray(out), np.asarray(step(dense, (query, key, value))[1]))  # kernels of pages sum in another order
    assert len(np.unique(np.asarray(forked.pages)[:, 0])) == 2


def test_pytrees_and_shapes() -> None:
    """Errors in shapes are raised while JAX traces, without a device."""
    handle = CacheHandle.create(B, C, K, H, dtype="float32")
    assert jax.tree.leaves(handle)[0].dtype == np.int32
    assert handle.array.shape == (2 + B,)
    assert repr(handle) == "CacheHandle(float32, B=2 C=32 K=2 H=16)"
    cache = new_cache(B, C, K, H, dtype="int4", layout="paged")
    assert [x.dtype.name for x in jax.tree.leaves(cache)] == ["uint8", "uint8", "float32", "int32", "int32"]
    query, key, value = rows(0, 3)
    for made in (handle, cache):
        with pytest.raises(ValueError, match="K=1"):
            jax.eval_shape(append, made, key[:, :, :1], value[:, :, :1])
        with pytest.raises(ValueError, match="N=3 must be a multiple of K"):
            jax.eval_shape(cached_attention, query[:, :, :3], made)
        with pytest.raises(TypeError, match="int32"):
            jax.eval_shape(append, made, key.astype(jnp.int32), value)
        assert jax.eval_shape(cached_attention, query[:, :0], made).shape == (B, 0, N, H)
    with pytest.raises(TypeError, match=r"new_cache or CacheHandle\.create"):
        cached_attention(query, (key, value))  # type: ignore[arg-type]
    assert append(handle, key[:, :0], value[:, :0]) is handle
    assert cached_attention(query[:, :0], handle).shape == (B, 0, N, H)
    handle.free()


@pytest.mark.device
def test_several_layers_in_one_program() -> None:
    """Caches of several layers, and dicts of them, in one carry."""
    caches = {i: CacheHandle.create(B, C, K, H, dtype="float32") for i in range(3)}
    arrays = {i: new_cache(B, C, K, H, dtype="float32") for i in range(3)}

    @jax.jit
    def layers(caches: Any, new: Rows) -> Any:
        query, key, value = new
        found = {}
        for i, cache in caches.items():
            found[i], query = step(cache, (query, key, value))
        return found, query

    for i in range(3):
        caches, out = layers(caches, rows(i, 2))
        arrays, wanted = layers(arrays, rows(i, 2))
        assert np.array_equal(np.asarray(out), np.asarray(wanted))
    for cache in caches.values():
        cache.free()
