"""Beams by handles: sequences that move inside JAX programs, and forks outside of them."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import wgattn
from tests.calls.caches import held
from tests.faces.jax.caches import B, C, H, K, fails, rows, same, step
from wgattn import KVCache, _runtime
from wgattn.jax import CacheHandle, append, cached_attention, truncate
from wgattn.jax._cache_held import _held

LAYOUTS: dict[str, dict[str, Any]] = {
    "dense": {"dtype": "float32"},
    "int8": {"dtype": "int8"},
    "paged": {"layout": "paged", "page_size": 8},
    "ring": {"window": 8, "pinned": 2},
}


@pytest.mark.device
@pytest.mark.parametrize("layout", LAYOUTS)
def test_beams_in_a_scan(layout: str) -> None:
    """Append, attend, and go on where the best are: as with a KVCache, turn by turn."""
    handle, own = CacheHandle.create(B, C, K, H, **LAYOUTS[layout]), KVCache.create(B, C, K, H, **LAYOUTS[layout])
    order = np.array([[1, 1], [1, 0], [0, 1], [0, 0], [1, 0]], np.int32)
    counts = np.array([[3, 1], [2, 3], [1, 3], [3, 0], [2, 2]], np.int32)
    news = [rows(10 * i, 3) for i in range(len(order))]

    def turn(handle: CacheHandle, given: Any) -> tuple[CacheHandle, jax.Array]:
        (query, key, value), count, indices = given
        handle = handle.append(key, value, count).reorder(indices)
        return handle, cached_attention(query, handle)

    after, outs = jax.jit(lambda handle, given: lax.scan(turn, handle, given))(
        handle, (jax.tree.map(lambda *x: jnp.stack(x), *news), counts, order)
    )
    for i, (query, key, value) in enumerate(news):
        own = own.append(key, value, counts[i]).reorder(order[i])
        assert np.array_equal(np.asarray(outs[i]), np.asarray(wgattn.nn.cached_attention(query, own)))
    assert after.lengths.tolist() == np.asarray(own.lengths).tolist()
    assert same(after.cache(), own)
    for dead in (handle, replace(after, array=after.array.at[1].add(-1))):
        fails(lambda dead=dead: cached_attention(news[0][0], dead), RuntimeError, "older version")
    after.free()


@pytest.mark.device
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_fork_is_a_cache_of_its_own(layout: str) -> None:
    prompt = append(CacheHandle.create(B, C, K, H, **LAYOUTS[layout]), *rows(0, 5)[1:])
    samples = prompt.fork([1, 0, 1])
    query, key, value = rows(3, 3, 3)
    grown, out = jax.jit(step)(samples, (query, key, value))
    wanted = prompt.cache().fork([1, 0, 1]).append(key, value)
    assert np.array_equal(np.asarray(out), np.asarray(wgattn.nn.cached_attention(query, wanted)))
    prompt = append(truncate(prompt, 4), *rows(6, 2)[1:])
    assert np.array_equal(np.asarray(cached_attention(query, grown)), np.asarray(out))
    samples.free()
    assert prompt.lengths.tolist() == [6, 6]
    assert cached_attention(rows(9, 1)[0], prompt).shape[0] == B
    prompt.free()


@pytest.mark.device
def test_what_reorder_and_fork_do_not_take() -> None:
    handle = append(CacheHandle.create(B, C, K, H), *rows(0, 3)[1:])
    contents = handle.cache()
    fails(lambda: handle.reorder(jnp.array([0, 2])).lengths, ValueError, r"indices name sequences 0 to 1; got \[0, 2\]")
    assert same(handle.cache(), contents)
    with pytest.raises(
        ValueError, match=r"reorder takes int32 indices of shape \(B,\) = \(2,\); got int32 \(3,\): fork"
    ):
        handle.reorder(jnp.array([0, 1, 1]))
    with pytest.raises(ValueError, match=r"got float32 \(2,\)"):
        handle.reorder(jnp.zeros(2))
    with pytest.raises(ValueError, match="indices name sequences 0 to 1"):
        handle.fork([0, 2])
    with pytest.raises(TypeError, match="outside of what JAX traces"):
        jax.jit(lambda handle: handle.fork([0, 0]))(handle)
    with pytest.raises(wgattn.UnsupportedError, match="does not go through vmap"):
        jax.vmap(handle.reorder)(jnp.zeros((3, 2), jnp.int32))
    handle.free()
    fails(lambda: handle.reorder(jnp.array([0, 1])).lengths, RuntimeError, "is not there: it was freed")


@pytest.mark.device
@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_beams_leave_memory_flat(layout: str) -> None:
    handle, new = CacheHandle.create(B, 64, K, H, **LAYOUTS[layout]), rows(0, 1)

    @jax.jit
    def run(handle: CacheHandle) -> CacheHandle:
        def turn(i: jax.Array, handle: CacheHandle) -> CacheHandle:
            return truncate(append(handle, *new[1:]).reorder(jnp.stack([i % 2, 1 - i % 3 % 2])), 40)

        return lax.fori_loop(0, 50, turn, handle)

    handle = jax.block_until_ready(run(handle))
    reserved = _runtime.device().memory.reserved
    handle = jax.block_until_ready(run(handle))
    assert handle.lengths.tolist() == [40, 40]
    assert _runtime.device().memory.reserved == reserved
    handle.free()


@pytest.mark.device
@pytest.mark.parametrize("layout", ["dense", "paged"])
def test_storage_is_written_in_place_while_nobody_else_has_it(layout: str) -> None:
    """Pages that beams share are copied one by one; a snapshot's storage, as long as it is there, stays as it is."""
    handle, (_, key, value) = CacheHandle.create(B, C, K, H, **LAYOUTS[layout]), rows(0, 3)

    def lies(handle: CacheHandle) -> int:
        (stored,) = _held[int(handle.array[0])].cache.key._step.values
        return id(stored.buffer.native)

    handle = append(handle, key, value)
    place = lies(handle)
    if layout == "paged":
        handle = append(handle.reorder(jnp.array([1, 1])), key, value)
        assert np.asarray(handle.cache().pages)[:, 0].tolist() == [0, 1]
        assert lies(handle) == place
    kept = handle.cache()
    wanted = held(kept).keys
    handle = append(handle, key, value)
    assert lies(handle) != place
    assert np.array_equal(held(kept).keys, wanted)
    del kept
    place = lies(handle)
    handle = append(handle, key, value)
    assert lies(handle) == place
    if layout == "paged":
        other = handle.fork([0, 1])
        assert lies(other) == place, "of the prompt"
        handle.free()
        handle = append(other, key, value)
        assert lies(handle) == place
    handle.free()
