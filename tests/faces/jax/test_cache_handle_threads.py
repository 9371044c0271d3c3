"""Handles in many threads, in long loops, on several devices of JAX's, and after calls that failed unawaited."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.faces.jax import programs
from tests.faces.jax.caches import H, K, fails, rows, step
from tests.faces.jax.compare import normal
from tests.tolerance import check
from wgattn.jax import CacheHandle, append

pytestmark = pytest.mark.device


def test_threads_with_caches_of_their_own() -> None:
    """Eight at once, each with arrays of 2.4 MB: JAX moves such with threads of the pool that callbacks wait in."""
    T = 1200
    run = jax.jit(lambda cache, x: step(cache, (x, x, x)))
    x = normal(0, 1, T, 8, 64)

    def one(i: int) -> np.ndarray:
        cache = CacheHandle.create(1, T, 8, 64, dtype="float32")
        _, out = run(cache, x * (1 + i % 3))
        found = np.asarray(out)
        cache.free()
        return found

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(12)))
    for i in range(3):
        wanted = np.asarray(jax.nn.dot_product_attention(*[x * (1 + i)] * 3, is_causal=True))
        for out in found[i::3]:
            check(out, wanted, magnitude=float(1 + i))


LOOPS = """
from concurrent.futures import ThreadPoolExecutor
from wgattn.jax import CacheHandle, append, cached_attention
count, threads, shape = {count}, 8, (1, 1, 2, 16)
rows = jnp.asarray(r.standard_normal((count, *shape), np.float32))

def step(cache, x):
    cache = append(cache, x, 2 * x)
    return cache, cached_attention(x, cache)

@jax.jit
def scanned(cache, rows):
    return jax.lax.scan(step, cache, rows)

@jax.jit
def looped(cache, rows):
    def turn(at):
        i, cache, outs = at
        cache, out = step(cache, rows[i])
        return i + 1, cache, outs.at[i].set(out)
    return jax.lax.while_loop(lambda at: at[0] < count, turn, (0, cache, jnp.zeros_like(rows)))[1:]

def one(i):
    device = jax.devices()[i % len(jax.devices())]
    with jax.default_device(device):
        cache, outs = (scanned, looped)[i // 2 % 2](
            CacheHandle.create(1, count, 2, 16, dtype="float32"), jax.device_put(rows * (1 + i), device)
        )
        assert outs.devices() == {{device}}
        assert cache.lengths.tolist() == [count]
        cache.free()
        return np.asarray(outs)

with ThreadPoolExecutor(threads) as pool:
    found = list(pool.map(one, range(threads)))
for i, outs in enumerate(found):
    x = (rows * (1 + i)).reshape(1, count, 2, 16)
    close(outs.reshape(x.shape), theirs(x, x, 2 * x, is_causal=True))
print("done")
"""


@pytest.mark.parametrize("count", [pytest.param(50, id="50"), pytest.param(1000, id="1000", marks=pytest.mark.grid)])
def test_loops_in_threads_on_two_devices(count: int) -> None:
    """Scans and while loops of as many tokens, in eight threads: each sees its own."""
    assert "done" in programs.check(LOOPS.format(count=count), devices=2)


def test_a_failure_that_nobody_waited_for_is_no_other_calls() -> None:
    """JAX learns of it after it has called: what a thread calls next is as if nothing had been."""
    slow = jax.jit(lambda x: jnp.linalg.matrix_power(x, 64)[0, 0] * 0)
    grow = jax.jit(append)
    _, key, value = rows(0, 5, 1)
    full, fresh = (CacheHandle.create(1, 8, K, H, dtype="float32") for _ in range(2))
    full = grow(full, key, value)
    for _ in range(2):
        late = key + slow(jnp.full((600, 600), 1 / 600))  # not there yet, so that the call returns before it fails
        fails(lambda late=late: grow(full, late, value).lengths, ValueError, "the capacity is 8")
        assert grow(fresh, key, value).lengths.tolist() == [5]
        assert grow(full, key[:, :3], value[:, :3]).lengths.tolist() == [8]
    jax.effects_barrier()
    full.free()
    fresh.free()
