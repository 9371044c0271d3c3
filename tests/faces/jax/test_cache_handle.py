"""Handles of caches on wgattn's device: repeated, taken back, written over, dead; what they move; where they may go."""

import gc
import weakref
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import wgattn
from tests.calls.caches import held
from tests.faces.jax import programs
from tests.faces.jax.caches import B, C, H, K, N, fails, rows, same, step
from tests.faces.jax.compare import normal
from tests.tolerance import check
from wgattn import KVCache, _run, _runtime
from wgattn.jax import CacheHandle, append, cached_attention, truncate
from wgattn.jax._callback import HostCallback


@pytest.fixture
def handle() -> Any:
    """An empty float32 cache."""
    made = CacheHandle.create(B, C, K, H, dtype="float32")
    yield made
    made.free()


@pytest.mark.device
def test_a_step_that_is_repeated_gives_the_same(handle: CacheHandle) -> None:
    """Writes are at positions that the handle tells. What is written over is known, and refused."""
    news, run = [rows(10 * i, 2) for i in range(4)], jax.jit(step)
    handles, outs = [handle], []
    for new in news:
        after, out = run(handles[-1], new)
        handles, outs = [*handles, after], [*outs, np.asarray(out)]
    last, contents = handles[-1], handles[-1].cache()
    for at in (3, 2, 0):  # back so far, and on from there
        assert np.array_equal(np.asarray(run(handles[at], news[at])[1]), outs[at])
        again = handles[at]
        for new, out in zip(news[at:], outs[at:], strict=True):
            again, found = run(again, new)
            assert np.array_equal(np.asarray(found), out)
        assert same(again.cache(), contents)
        fails(lambda: cached_attention(news[0][0], last), RuntimeError, "older version")
        fails(lambda: append(last, *news[0][1:]).lengths, RuntimeError, "older version")
        assert same(again.cache(), contents), "nothing was written"


@pytest.mark.device
def test_one_sequence_takes_tokens_without_a_batch_axis() -> None:
    """TKH, with more tokens than heads and fewer."""
    cache = handle = CacheHandle.create(1, C, K, H, dtype="float32")
    wanted = KVCache.create(1, C, K, H, dtype="float32")
    for T in (5, 1):
        _, key, value = rows(T, T, 1)
        cache, wanted = append(cache, key[0], value[0]), wanted.append(np.asarray(key), np.asarray(value))
    assert cache.lengths.tolist() == [6]
    assert same(cache.cache(), wanted)
    handle.free()


@pytest.mark.device
def test_a_handle_names_what_was_there(handle: CacheHandle) -> None:
    """An older handle sees its own tokens, whatever came behind them; a shorter one is appended to as it is."""
    news = [rows(10 * i, 3) for i in range(3)]
    first, _ = step(handle, news[0])
    second, _ = step(first, news[1])
    query = normal(9, B, 1, N, H)
    wanted = np.asarray(cached_attention(query, first))
    kept = jax.jit(lambda handle: truncate(handle, jnp.array([4, 3])))(second)
    assert kept.lengths.tolist() == [4, 3]
    third, _ = step(kept, news[2])
    assert third.lengths.tolist() == [7, 6]
    assert np.array_equal(np.asarray(cached_attention(query, first)), wanted)
    rest = held(third.cache()).keys
    assert np.array_equal(rest[0, 3], np.asarray(news[1][1][0, 0]))
    assert np.array_equal(rest[0, 4:7], np.asarray(news[2][1][0]))
    assert np.array_equal(rest[1, 3:6], np.asarray(news[2][1][1]))
    fails(lambda: cached_attention(query, second), RuntimeError, "older version")
    assert np.array_equal(np.asarray(cached_attention(query, kept)), np.asarray(cached_attention(query, kept)))
    fails(lambda: cached_attention(query, truncate(third, -1)), ValueError, "at least 0")


@pytest.mark.device
def test_versions_from_long_ago(handle: CacheHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    from wgattn.jax import _cache_held

    monkeypatch.setattr(_cache_held, "VERSIONS", 4)
    handles, new = [handle], rows(0, 1)
    for _ in range(6):
        handles.append(step(handles[-1], new)[0])
    fails(lambda: cached_attention(new[0], handles[2]), RuntimeError, "more than 4 appends ago")
    assert cached_attention(new[0], handles[3]).shape == (B, 1, N, H)


@pytest.mark.device
def test_pages_of_a_handle_come_and_go(handle: CacheHandle) -> None:
    """Dealt out inside the callback, freed where tokens were taken back; an error where there is none."""
    paged = CacheHandle.create(B, C, K, H, dtype="float32", layout="paged", page_size=8, pages=4)
    run, news = jax.jit(step), rows(0, 9)
    paged, out = run(paged, news)
    check(np.asarray(out), np.asarray(run(handle, news)[1]))
    more = rows(3, 8)
    fails(lambda: run(paged, more), ValueError, "none of the 4 is free")
    assert sorted(np.asarray(paged.cache().pages).ravel().tolist()) == [-1] * 4 + [0, 1, 2, 3]
    shorter = truncate(paged, np.array([9, 0], np.int32))
    key, value = more[1:]
    longer = append(shorter, key, value, np.array([8, 0], np.int32))
    assert longer.lengths.tolist() == [17, 0]
    assert (np.asarray(longer.cache().pages)[1] == -1).all()
    paged.free()


@pytest.mark.device
def test_a_ring_knows_what_it_lost() -> None:
    """A stream without an end; a handle whose window was written over is refused."""
    kept, own = CacheHandle.create(B, 16, K, H, window=12, pinned=2), KVCache.create(B, 16, K, H, window=12, pinned=2)
    run, handles = jax.jit(step), [kept]
    for i in range(20):
        new = rows(i, 3)
        own = own.append(*new[1:])
        after, out = run(handles[-1], new)
        handles.append(after)
        assert np.array_equal(np.asarray(out), np.asarray(wgattn.nn.cached_attention(new[0], own)))
    query, key, value = rows(0, 1)
    fails(lambda: cached_attention(query, handles[-2]), RuntimeError, "the last 2 can be taken back")
    shorter = truncate(handles[-1], 58)
    wanted = wgattn.nn.cached_attention(query, own.truncate(58))
    assert np.array_equal(np.asarray(cached_attention(query, shorter)), np.asarray(wanted))
    longer = append(shorter, key, value)
    fails(lambda: cached_attention(query, truncate(longer, 57)), RuntimeError, "older version of cache")
    kept.free()


@pytest.mark.device
def test_handles_that_are_dead(handle: CacheHandle) -> None:
    query, key, value = rows(0, 3)
    gone = append(CacheHandle.create(B, C, K, H), key, value)
    gone.free()
    gone.free()
    fails(lambda: cached_attention(query, gone), RuntimeError, "is not there: it was freed")
    fails(lambda: jax.jit(append)(gone, key, value).lengths, RuntimeError, "is not there: it was freed")
    with pytest.raises(RuntimeError, match="is not there"):
        gone.cache()
    other = CacheHandle.create(B, C, 1, H)
    fails(lambda: cached_attention(query, replace(handle, array=other.array)), ValueError, "of another cache")
    other.free()


@pytest.mark.device
def test_memory_is_given_back() -> None:
    from wgattn.jax import _cache_held

    made = CacheHandle.create(B, C, K, H)
    made = append(made, *rows(0, 3)[1:])
    there = weakref.ref(_cache_held._held[int(made.array[0])].cache.key._step)
    assert there() is not None
    made.free()
    gc.collect()
    assert there() is None


@pytest.mark.device
def test_a_lost_device(handle: CacheHandle) -> None:
    query, key, value = rows(0, 3)
    grown = append(handle, key, value)
    _runtime.device().lose()
    for _ in range(2):
        fails(lambda: cached_attention(query, grown), wgattn.DeviceLostError, "on a device that is lost")
        fails(lambda: append(grown, key, value).lengths, wgattn.DeviceLostError, "on a device that is lost")
    fresh = CacheHandle.create(B, C, K, H)
    assert append(fresh, key, value).lengths.tolist() == [3, 3]
    fresh.free()


def test_transforms_that_a_handle_does_not_go_through(handle: CacheHandle) -> None:
    query, key, value = rows(0, 3)
    refused = pytest.raises(wgattn.UnsupportedError, match=r"a cache handle does not go through .*grad, vmap or checkp")
    for function, x in (
        (lambda x: cached_attention(query, append(handle, x, value)).sum(), key),
        (lambda x: cached_attention(x, handle).sum(), query),
    ):
        for transform in (
            jax.grad(function),
            jax.jit(jax.grad(function)),
            jax.grad(jax.checkpoint(function)),
            lambda x, f=function: jax.jvp(f, (x,), (x,)),
            lambda x, f=function: jax.vmap(f)(x[None]),
            jax.grad(lambda x, f=function: lax.scan(lambda s, _: (s + f(x), None), 0.0, None, length=2)[0]),
        ):
            with refused:
                transform(x)
    with refused:
        jax.vmap(lambda array: append(replace(handle, array=array), key, value))(handle.array[None])
    # what is kept for a backward pass would be computed again: jax itself refuses that of an effect
    with pytest.raises(NotImplementedError, match="checkpoint"):
        jax.grad(lambda w: jax.checkpoint(lambda w: (w * cached_attention(query, handle)).sum())(w))(1.0)


@pytest.mark.device
def test_gradients_beside_a_handle(handle: CacheHandle) -> None:
    """What is read from a handle is constant to a gradient where jax asks for none."""
    query, key, value = rows(0, 3)
    grown = append(handle, key, value)
    out = cached_attention(query, grown)
    found = jax.jit(jax.grad(lambda w: (w * cached_attention(query, grown)).sum()))(2.0)
    assert found == pytest.approx(float(out.sum()), rel=1e-5)


def test_what_belongs_outside_of_jitted_functions(handle: CacheHandle) -> None:
    with pytest.raises(TypeError, match="Give the handle to the function"):
        jax.jit(lambda: CacheHandle.create(B, C, K, H))()
    with pytest.raises(TypeError, match=r"handle\.lengths"):
        np.asarray(handle)
    for use in (CacheHandle.free, CacheHandle.cache):
        with pytest.raises(TypeError, match="outside of what JAX traces"):
            jax.jit(use)(handle)


@pytest.mark.device
def test_decoding_moves_new_tokens_alone_and_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 200 tokens: no program is made, no more memory taken, and the cache never crosses the bridge."""
    run = jax.jit(step)
    kept, _ = run(CacheHandle.create(1, 256, K, H, dtype="float32"), rows(0, 1, 1))
    for i in range(3):
        kept, out = run(kept, rows(i, 1, 1))
    jax.block_until_ready(out)
    made: list[Any] = []
    moved: list[int] = []
    loaded, called = _run._kept, HostCallback.run

    def counted(cache: Any, key: Any, make: Any) -> Any:
        return loaded(cache, key, lambda: (made.append(key), make())[1])

    def measured(self: HostCallback, arrays: Any, places: Any = ()) -> Any:
        moved.append(sum(x.nbytes for x in (*arrays, *places)))
        return called(self, arrays, places)

    monkeypatch.setattr(_run, "_kept", counted)
    monkeypatch.setattr(HostCallback, "run", measured)
    reserved, traces = _runtime.device().memory.reserved, run._cache_size()
    for i in range(200):
        kept, out = run(kept, rows(i % 7, 1, 1))
    jax.block_until_ready(out)
    assert kept.lengths.tolist() == [204]
    assert not made
    assert run._cache_size() == traces
    assert _runtime.device().memory.reserved == reserved
    assert len(moved) == 400
    assert max(moved) <= 4 * (2 * N * H + 2 * K * H + 2 * (2 + 1))
    kept.free()


@pytest.mark.device
def test_a_handle_goes_through_cond(handle: CacheHandle) -> None:
    _, key, value = rows(0, 3)

    @jax.jit
    def maybe(handle: CacheHandle, wanted: bool) -> CacheHandle:
        return lax.cond(wanted, lambda handle: append(handle, key, value), lambda handle: handle, handle)

    for wanted, length in ((True, 3), (False, 3), (True, 6)):
        handle = maybe(handle, wanted)
        assert handle.lengths.tolist() == [length, length]


@pytest.mark.device
def test_a_process_may_end_right_after_an_append_and_a_forked_child_is_told() -> None:
    code = """
import os, warnings
warnings.simplefilter("ignore")
handle, x = wgattn.jax.CacheHandle.create(1, 600, 4, 64), normal(1, 512, 4, 64)
grow = jax.jit(wgattn.jax.append)
jax.block_until_ready(grow(handle, x, x))
child = os.fork()
if child == 0:
    try:
        jax.block_until_ready(grow(handle, x, x))
    except Exception as error:
        print("told:", "spawn" in str(error), flush=True)
    os._exit(0)
os.waitpid(child, 0)
grow(handle, x, x)
print("called")
"""
    said = programs.check(code)
    assert "told: True" in said
    assert "called" in said


@pytest.mark.device
def test_where_jax_has_another_device_than_the_cpu(handle: CacheHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the callback is `io_callback`, whose arrays come through the host: it is called though nobody asks."""
    monkeypatch.setattr(lax, "platform_dependent", lambda *arrays, cpu, default: default(*arrays))
    new = rows(0, 3)

    @jax.jit
    def both(handle: CacheHandle) -> tuple[CacheHandle, jax.Array]:
        append(handle, *(jnp.zeros_like(x) for x in new[1:]))  # its result is not used
        return step(handle, new)

    text = str(jax.make_jaxpr(both)(handle))
    assert text.count("io_callback[") == 3
    assert "buffer_callback" not in text
    grown, out = step(handle, new)
    assert grown.lengths.tolist() == [3, 3]
    check(np.asarray(out), np.asarray(jax.nn.dot_product_attention(*new, is_causal=True)))


@pytest.mark.device
def test_values_are_checked_where_asked(handle: CacheHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    monkeypatch.setattr(_run, "_hooks", [*_run._hooks, lambda *given: heard.append(given)])
    monkeypatch.setenv("WGATTN_VALIDATE", "1")
    for _ in range(2):
        handle, _ = step(handle, rows(0, 3))
    assert len(heard) == 2
