"""Handles whose calls are ordered effects: where they run, what they give, and what a failure leaves behind."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import wgattn
from tests.faces.jax import programs
from tests.faces.jax.caches import B, C, H, K, fails, rows, step
from tests.faces.jax.compare import normal
from tests.tolerance import check
from wgattn.jax import CacheHandle, append, cached_attention, truncate
from wgattn.jax._callback import HostCallback

CALLS = ["told", "Append", "told", "Attend", "told"]


@pytest.fixture
def handle() -> Any:
    """An empty float32 cache."""
    made = CacheHandle.create(B, C, K, H, dtype="float32", ordered=True)
    yield made
    made.free()


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What ran, in order: wgattn's callbacks by name, and "told" for each ordered effect of `tell`."""
    names: list[str] = []
    called = HostCallback.run

    def listening(self: HostCallback, *given: Any) -> Any:
        names.append(type(self).__name__)
        return called(self, *given)

    monkeypatch.setattr(HostCallback, "run", listening)
    return names


def told_step(heard: list[str]) -> Any:
    """A step between ordered effects that neither give to it nor take of it."""

    def tell() -> None:
        io_callback(lambda: heard.append("told"), None, ordered=True)

    def run(cache: CacheHandle, new: Any) -> tuple[CacheHandle, jax.Array]:
        query, key, value = new
        tell()
        cache = append(cache, key, value)
        tell()
        out = cached_attention(query, cache)
        tell()
        return cache, out

    return run


@pytest.mark.device
@pytest.mark.parametrize("jitted", [False, True])
def test_calls_run_where_they_stand(handle: CacheHandle, heard: list[str], jitted: bool) -> None:
    run = told_step(heard)
    run = jax.jit(run) if jitted else run
    for i in range(3):
        handle, _ = run(handle, rows(i, 1))
    jax.effects_barrier()
    assert heard == CALLS * 3
    assert handle.ordered
    assert "ordered" in repr(handle)


@pytest.mark.device
def test_loops_run_in_order_and_give_what_others_give(handle: CacheHandle, heard: list[str]) -> None:
    run = told_step(heard)
    news = jax.tree.map(lambda *x: jnp.stack(x), *(rows(i, 1) for i in range(5)))
    plain = CacheHandle.create(B, C, K, H, dtype="float32")
    wanted = jax.jit(lambda cache: lax.scan(step, cache, news))(plain)
    plain.free()
    jax.block_until_ready(wanted)
    heard.clear()

    def looped(cache: CacheHandle) -> Any:
        def turn(at: Any) -> Any:
            i, cache, outs = at
            cache, out = run(cache, jax.tree.map(lambda x: x[i], news))
            return i + 1, cache, outs.at[i].set(out)

        return lax.while_loop(lambda at: at[0] < 5, turn, (0, cache, jnp.zeros_like(news[0])))[1:]

    for loop in (lambda cache: lax.scan(run, cache, news), looped):
        grown, outs = jax.jit(loop)(truncate(handle, 0))
        jax.effects_barrier()
        assert heard == CALLS * 5
        assert grown.lengths.tolist() == wanted[0].lengths.tolist()
        assert np.array_equal(np.asarray(outs), np.asarray(wanted[1]))
        heard.clear()
        handle = grown


@pytest.mark.device
def test_what_attention_gives_late_is_of_its_place() -> None:
    """A ring without a spare slot: the second append writes over what the first attention sees."""
    made = CacheHandle.create(B, 4, K, H, window=4, dtype="float32", ordered=True)

    @jax.jit
    def twice(cache: CacheHandle, first: Any, second: Any) -> Any:
        cache, one = step(cache, first)
        cache, other = step(cache, second)
        return cache, one + other

    for i in range(4):
        made, out = twice(made, rows(2 * i, 1), rows(2 * i + 1, 1))
    assert made.lengths.tolist() == [8, 8]
    own, outs = wgattn.KVCache.create(B, 4, K, H, window=4, dtype="float32"), []
    for i in range(8):
        query, key, value = rows(i, 1)
        own = own.append(key, value)
        outs.append(np.asarray(wgattn.nn.cached_attention(query, own)))
    check(np.asarray(out), outs[6] + outs[7], magnitude=2.0)
    made.free()


@pytest.mark.device
def test_reorder_and_fork_stay_in_order(handle: CacheHandle, heard: list[str]) -> None:
    handle = append(handle, *rows(0, 2)[1:], jnp.array([2, 1], jnp.int32))
    handle = jax.jit(CacheHandle.reorder)(handle, jnp.array([1, 0]))
    assert handle.lengths.tolist() == [1, 2]
    other = handle.fork([1])
    assert other.ordered
    assert other.lengths.tolist() == [2]
    assert heard == ["Append", "Reorder"]
    assert "ordered=True" in str(jax.make_jaxpr(lambda cache: cache.reorder(jnp.array([0, 0])))(handle))
    other.free()


@pytest.mark.device
def test_a_failure_is_told(handle: CacheHandle) -> None:
    """With arguments that are there JAX raises at the call, and what is ordered behind it runs."""
    _, key, value = rows(0, C)
    grow = jax.jit(append)
    full = jax.block_until_ready(grow(handle, key, value))
    fails(lambda: grow(full, key, value), ValueError, "the capacity is 32")
    assert truncate(full, 3).lengths.tolist() == [3, 3]
    assert grow(truncate(full, 3), key[:, :2], value[:, :2]).lengths.tolist() == [5, 5]
    jax.effects_barrier()


def test_transforms_are_refused(handle: CacheHandle) -> None:
    query, key, value = rows(0, 3)
    refused = pytest.raises(wgattn.UnsupportedError, match=r"a cache handle does not go through .*grad, vmap or checkp")
    for function, x in (
        (lambda x: cached_attention(query, append(handle, x, value)).sum(), key),
        (lambda x: cached_attention(x, handle).sum(), query),
    ):
        with refused:
            jax.jit(jax.grad(function))(x)
        with refused:
            jax.vmap(function)(x[None])
    with pytest.raises(NotImplementedError, match="checkpoint"):
        jax.grad(lambda w: jax.checkpoint(lambda w: (w * cached_attention(query, handle)).sum())(w))(1.0)


@pytest.mark.device
def test_large_arrays_in_many_threads() -> None:
    """2.4 MB each in eight threads, which ordered callbacks that carry them do not get through."""
    T = 1200
    run = jax.jit(lambda cache, x: step(cache, (x, x, x)))
    x = normal(0, 1, T, 8, 64)

    def one(i: int) -> np.ndarray:
        cache = CacheHandle.create(1, T, 8, 64, dtype="float32", ordered=True)
        _, out = run(cache, x)
        found = np.asarray(out)
        cache.free()
        return found

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(8)))
    wanted = np.asarray(jax.nn.dot_product_attention(x, x, x, is_causal=True))
    for out in found:
        check(out, wanted)


@pytest.mark.device
def test_what_a_late_failure_leaves_and_the_way_on() -> None:
    """It fails all that is ordered behind it in its thread; other threads, and what is not ordered, go on."""
    said = programs.check(LATE)
    assert said.split("\n")[:4] == ["late: capacity", "again: capacity", "not ordered: [5]", "in a thread: [5]"]


LATE = """
from concurrent.futures import ThreadPoolExecutor
from wgattn.jax import CacheHandle, append
grow = jax.jit(append)
x = jnp.ones((1, 5, 2, 16))

def made(ordered=True):
    return CacheHandle.create(1, 8, 2, 16, dtype="float32", ordered=ordered)

def told(name, call):
    try:
        print(name + ":", call().lengths.tolist(), flush=True)
    except Exception as error:
        print(name + ":", "capacity" if "the capacity is 8" in str(error) else error, flush=True)

full = jax.block_until_ready(grow(made(), x, x))
jax.block_until_ready(grow(made(False), x, x))
m = jnp.full((1500, 1500), 1 / 1500)
slow = jax.jit(lambda x, m: x + jnp.linalg.matrix_power(m, 64)[0, 0] * 0).lower(x, m).compile()
late = slow(x, m)  # not there yet
told("late", lambda: grow(full, late, x))
told("again", lambda: grow(made(), x, x))
told("not ordered", lambda: grow(made(False), x, x))
with ThreadPoolExecutor(1) as pool:
    pool.submit(told, "in a thread", lambda: grow(made(), x, x)).result()
import os
os._exit(0)  # at its end JAX would say so once more
"""
