"""KV caches in JAX programs: of arrays under every transform, and handles of what stays on wgattn's device."""

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import wgattn
from tests.calls.caches import DTYPES, held, right
from tests.faces.jax import programs
from tests.faces.jax.compare import normal
from tests.tolerance import check
from wgattn import KVCache, _run, _runtime, masks
from wgattn.jax import CacheHandle, append, cached_attention, last_error, new_cache, reserve, truncate
from wgattn.jax._callback import HostCallback

B, C, K, N, H = 2, 32, 2, 4, 16
FORMS: dict[str, dict[str, Any]] = {
    **{dtype: {"dtype": dtype} for dtype in DTYPES},
    "paged": {"layout": "paged", "page_size": 8},
    "paged int8": {"layout": "paged", "page_size": 8, "dtype": "int8"},
    "ring": {"window": 12, "pinned": 2},
}
Rows = tuple[jax.Array, jax.Array, jax.Array]  # query, key, value


def rows(seed: int, T: int, B: int = B) -> Rows:
    return normal(seed, B, T, N, H), normal(seed + 1, B, T, K, H), normal(seed + 2, B, T, K, H)


def step(cache: Any, new: Rows) -> tuple[Any, jax.Array]:
    """The tokens appended, and attended with their queries."""
    query, key, value = new
    cache = append(cache, key, value)
    return cache, cached_attention(query, cache)


def fails(call: Callable[[], Any], error: type[BaseException], text: str) -> None:
    """Fail unless the call ends with JAX's error of that type and text, and last_error() gives the original."""
    with pytest.raises(Exception, match=f"{error.__name__}: .*{text}"):
        jax.block_until_ready(call())
    assert type(last_error()) is error


def same(a: KVCache, b: KVCache) -> bool:
    """Whether two caches hold the same."""
    one, other = held(a), held(b)
    return all(
        np.array_equal(np.asarray(getattr(one, name)), np.asarray(getattr(other, name)), equal_nan=True)
        for name in ("keys", "values", "lengths")
    )


@pytest.fixture
def handle() -> Any:
    """An empty float32 cache."""
    made = CacheHandle.create(B, C, K, H, dtype="float32")
    yield made
    made.free()


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
    with pytest.raises(ValueError, match="the capacity is 32"):
        reserve(cache, C + 1)
    cache = append(reserve(cache, 5), key, value)
    shared = replace(cache, pages=jnp.stack([cache.pages[0]] * 2))  # both go on where the first is
    fails(lambda: append(shared, key[:, :2], value[:, :2]).lengths, ValueError, "shares the page")
    forked, out = step(reserve(shared, 5), (query, key, value))
    dense = append(new_cache(B, C, K, H), *(x[jnp.array([0, 0])] for x in (key, value)))
    assert np.array_equal(np.asarray(out), np.asarray(step(dense, (query, key, value))[1]))
    assert len(np.unique(np.asarray(forked.pages)[:, 0])) == 2


def test_pytrees_and_shapes(handle: CacheHandle) -> None:
    """Errors in shapes are raised while JAX traces, without a device."""
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
    assert np.array_equal(np.asarray(out), np.asarray(run(handle, news)[1]))
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
    fails(lambda: append(handles[-2], key[:, :0], value[:, :0]).append(key, value).append(key, value).truncate(58)
          .append(key, value).truncate(55).append(key, value).lengths, RuntimeError, "older version")  # fmt: skip
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
def test_threads_with_caches_of_their_own() -> None:
    """Arrays large enough for JAX to move with threads of the pool that callbacks wait in."""
    T = 300
    shape = (1, T, 8, 64)
    run = jax.jit(lambda cache, x: step(cache, (x, x, x)))
    x = normal(0, *shape)

    def one(i: int) -> np.ndarray:
        cache = CacheHandle.create(1, T, 8, 64, dtype="float32")
        _, out = run(cache, x * (1 + i % 3))
        found = np.asarray(out)
        cache.free()
        return found

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(16)))
    for i in range(3):
        wanted = np.asarray(jax.nn.dot_product_attention(*[x * (1 + i)] * 3, is_causal=True))
        for out in found[i::3]:
            check(out, wanted, magnitude=float(1 + i))


@pytest.mark.device
def test_values_are_checked_where_asked(handle: CacheHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    monkeypatch.setattr(_run, "_hooks", [*_run._hooks, lambda *given: heard.append(given)])
    monkeypatch.setenv("WGATTN_VALIDATE", "1")
    for _ in range(2):
        handle, _ = step(handle, rows(0, 3))
    assert len(heard) == 2
