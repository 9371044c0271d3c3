"""A cache as arrays inside JAX programs: pure values through jit and scan, differentiable where it is dense floats."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import wgattn as wa
import wgattn.jax
from tests.calls.caches import DTYPES, normal, right
from tests.tolerance import check
from wgattn import KVCache, nn

pytestmark = pytest.mark.device


@wa.jit
def step(cache: KVCache, key: Any, value: Any, query: Any) -> tuple[KVCache, Any]:
    cache = cache.append(key, value)
    return cache, nn.cached_attention(query, cache)


def in_jax(cache: KVCache) -> KVCache:
    """The cache with JAX arrays for its leaves."""
    return jax.tree_util.tree_map(jnp.asarray, cache)


def tokens(seed: int, T: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r = np.random.default_rng(seed)
    return normal(r, 2, T, 2, 16), normal(r, 2, T, 2, 16), normal(r, 2, T, 4, 16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_under_jit(dtype: str):
    run = jax.jit(lambda cache, *given: wgattn.jax.call(step, cache, *given))
    cache = in_jax(KVCache.create(2, 16, 2, 16, dtype=dtype))
    for i in range(3):
        cache, out = run(cache, *tokens(i))
    assert isinstance(cache, KVCache)
    assert cache.lengths.tolist() == [6, 6]
    check(np.asarray(out), right(cache, tokens(2)[2]).out)


@pytest.mark.parametrize("layout", [{"layout": "paged", "page_size": 8}, {"window": 6, "pinned": 1}])
def test_decoding_in_a_scan(layout: dict[str, Any]):
    def body(cache: KVCache, given: tuple[Any, ...]) -> tuple[KVCache, Any]:
        return wgattn.jax.call(step, cache, *given)

    empty = KVCache.create(2, 16, 2, 16, dtype=np.float32, **layout).reserve(10)
    given = [tokens(i, 1) for i in range(10)]
    stacked = tuple(jnp.stack(parts) for parts in zip(*given, strict=True))
    cache, outs = jax.jit(lambda c, xs: jax.lax.scan(body, c, xs))(in_jax(empty), stacked)
    right_cache = empty
    for i, parts in enumerate(given):
        right_cache, out = step(right_cache, *parts)
        check(np.asarray(outs[i]), np.asarray(out).astype(np.float64))
    assert np.array_equal(np.asarray(cache.key), np.asarray(right_cache.key))


def test_gradients_by_what_is_appended_and_stored():
    cache = in_jax(KVCache.create(2, 8, 2, 16, dtype=np.float32))
    cache, _ = wgattn.jax.call(step, cache, *tokens(0, 3))
    key, value, query = (jnp.asarray(x) for x in tokens(1))

    def cached(stored: Any, key: Any, value: Any, query: Any) -> Any:
        return (wgattn.jax.call(step, replace(cache, key=stored), key, value, query)[1] ** 2).sum()

    def whole(stored: Any, key: Any, value: Any, query: Any) -> Any:
        keys = jnp.concatenate([stored[:, :3], key], axis=1)
        values = jnp.concatenate([cache.value[:, :3], value], axis=1)
        mask = (jnp.arange(5) <= jnp.arange(2)[:, None] + 3)[None, None]
        return (jax.nn.dot_product_attention(query, keys, values, mask=mask) ** 2).sum()

    args = cache.key, key, value, query
    for mine, other in zip(*(jax.grad(f, (0, 1, 2, 3))(*args) for f in (cached, whole)), strict=True):
        np.testing.assert_allclose(mine, other, atol=5e-5)


def test_an_append_beyond_the_capacity():
    run = jax.jit(lambda cache, *given: wgattn.jax.call(step, cache, *given))
    cache = in_jax(KVCache.create(2, 5, 2, 16))
    for i in range(2):
        cache, out = run(cache, *tokens(i))
    jax.block_until_ready(out)
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="sequence 0 holds 4 tokens, 2 more are given"):
        jax.block_until_ready(run(cache, *tokens(3)))
    assert isinstance(wgattn.jax.last_error(), ValueError)
