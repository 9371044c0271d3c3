"""Attention over a cache is float64 attention over what it holds, for every type, layout, chunking and option."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import wgattn as wa
from tests.calls.caches import DTYPES, held, normal, poisoned, right
from tests.cases import DTYPES as FLOATS
from tests.tolerance import check, check_residual
from wgattn import KVCache, _runtime, masks, nn

pytestmark = pytest.mark.device
LAYOUTS: dict[str, dict[str, Any]] = {
    "dense": {},
    "paged": {"layout": "paged", "page_size": 8},
    "ring": {"window": 9, "pinned": 2},
}


def filled(lengths: list[int], capacity: int = 32, K: int = 2, H: int = 16, seed: int = 0, **options: Any) -> KVCache:
    """A cache with so many random tokens a sequence, appended in two chunks of different sizes."""
    r = np.random.default_rng(seed)
    cache = KVCache.create(len(lengths), capacity, K, H, **options)
    counts = np.array(lengths, np.int32)
    first = counts // 2
    for n in (first, counts - first):
        T = int(n.max())
        rows = normal(r, len(lengths), T, K, H), normal(r, len(lengths), T, K, cache.v_head_dim)
        cache = cache.append(*rows, lengths=n)
    return cache


def queries(T: int, N: int, H: int = 16, B: int = 3, dtype: Any = np.float32) -> np.ndarray:
    return normal(np.random.default_rng(T * 100 + N), B, T, N, H, dtype=dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_in_every_layout(dtype: str, layout: str):
    """Ragged lengths, zero among them; decode and a chunk of a prompt."""
    cache = filled([17, 0, 10], dtype=dtype, **LAYOUTS[layout])
    for T in (1, 4):
        query = queries(T, 4)
        out, residual = nn.cached_attention(query, cache, return_residual=True)
        own = right(cache, query)
        check(np.asarray(out), own.out)
        check_residual(np.asarray(residual), own.residual)
        assert not np.asarray(out)[1].any(), "a row without keys is 0"


@pytest.mark.parametrize("query", FLOATS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "int4"])
def test_the_query_has_a_type_of_its_own(dtype: str, query: str):
    cache = filled([17, 0, 10], dtype=dtype)
    for T in (1, 5):
        q = queries(T, 4, dtype=FLOATS[query])
        out = nn.cached_attention(q, cache)
        assert out.dtype == FLOATS[query]
        check(np.asarray(out), right(cache, q).out)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_no_token_wrote_reaches_nothing(dtype: str, layout: str, poisoned_memory: None):
    """https://github.com/deepbeepmeep/Wan2GP/pull/1628"""
    cache = filled([17, 0, 10], dtype=dtype, **LAYOUTS[layout])
    if layout == "ring":
        cache = filled([5, 0, 4], dtype=dtype, **LAYOUTS[layout])
    for T in (1, 4):
        query = queries(T, 4)
        clean, spoilt = (nn.cached_attention(query, x, return_residual=True) for x in (cache, poisoned(cache)))
        for mine, other in zip(clean, spoilt, strict=True):
            assert np.array_equal(np.asarray(mine), np.asarray(other))


@pytest.fixture
def poisoned_memory(poisoned: None) -> None:
    """`poisoned` of tests/conftest.py, whose name is taken here."""


@pytest.mark.grid
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("G", [1, 2, 3, 4, 7, 8, 16, 48])
@pytest.mark.parametrize("T", range(1, 18))
def test_groups_and_numbers_of_queries(T: int, G: int, dtype: str):
    cache = (
        filled([33, 0, 21], 40, dtype=dtype, layout="paged", page_size=8)
        if T % 2
        else filled([33, 0, 21], 40, dtype=dtype)
    )
    query = queries(T, 2 * G)
    check(np.asarray(nn.cached_attention(query, cache)), right(cache, query).out)


@pytest.mark.grid
@pytest.mark.parametrize("layout", ["dense", "paged"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize(
    "S", [1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1023, 1025]
)
def test_lengths_at_every_edge(S: int, dtype: str, layout: str):
    """One compiled program serves all: a length is known at run time."""
    cache = filled([S, S // 2, max(S - 1, 0)], 1088, dtype=dtype, **LAYOUTS[layout])
    for T in (1, 3):
        query = queries(T, 4)
        check(np.asarray(nn.cached_attention(query, cache)), right(cache, query).out)


@pytest.mark.parametrize(
    ("H", "Hv", "dtype"),
    [
        (1, 1, "float32"), (1, 1, "int4"), (3, 5, "float16"), (3, 5, "int8"), (64, 32, "int4"), (66, 128, "float16"),
        (66, 128, "int4"), (80, 80, "float8_e5m2"), (128, 128, "bfloat16"), (128, 128, "int8"),
    ],
)  # fmt: skip
def test_head_dims(H: int, Hv: int, dtype: str):
    cache = filled([17, 0, 10], H=H, v_head_dim=Hv, dtype=dtype)
    for T in (1, 4):
        query = queries(T, 4, H)
        check(np.asarray(nn.cached_attention(query, cache)), right(cache, query).out)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_decode_gives_the_rows_of_a_full_prefill(layout: str):
    r = np.random.default_rng(1)
    key, value, query = (normal(r, 1, 14, heads, 16) for heads in (2, 2, 6))
    empty = KVCache.create(1, 32, 2, 16, dtype=np.float32, **LAYOUTS[layout])
    whole = empty.append(key, value)
    full = right(whole, query).out if layout != "ring" else None
    cache = empty
    for t in range(14):
        cache = cache.append(key[:, t : t + 1], value[:, t : t + 1])
        out = np.asarray(nn.cached_attention(query[:, t : t + 1], cache))
        if full is not None:
            check(out, full[:, t : t + 1])
        check(out, right(cache, query[:, t : t + 1]).out)
    assert np.array_equal(held(cache).keys, held(whole).keys)


@pytest.mark.parametrize("dtype", ["float16", "int8", "int4"])
@pytest.mark.parametrize("layout", ["dense", "paged"])
def test_a_prompt_in_chunks_is_the_prompt(layout: str, dtype: str):
    """The same bits are stored, and rows are the same within the type's tolerance."""
    r = np.random.default_rng(2)
    key, value, query = (normal(r, 2, 24, heads, 16) for heads in (2, 2, 4))
    empty = KVCache.create(2, 24, 2, 16, dtype=dtype, **LAYOUTS[layout])
    whole = empty.append(key, value)
    at_once = np.asarray(nn.cached_attention(query, whole))
    check(at_once, right(whole, query).out)
    cache, start = empty, 0
    for size in (1, 7, 8, 3, 5):
        part = slice(start, start + size)
        cache = cache.append(key[:, part], value[:, part])
        check(np.asarray(nn.cached_attention(query[:, part], cache)), right(whole, query).out[:, part])
        start += size
    for mine, other in ((held(cache).keys, held(whole).keys), (held(cache).values, held(whole).values)):
        assert np.array_equal(mine, other)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_speculative_decode(layout: str):
    """Tokens that are refused leave no trace."""
    r = np.random.default_rng(3)
    cache = filled([9, 6], dtype=np.float32, **LAYOUTS[layout])
    drafts = [normal(r, 2, 5, 2, 16) for _ in range(2)]
    tried = cache.append(*drafts)
    query = queries(5, 4, B=2)
    check(np.asarray(nn.cached_attention(query, tried)), right(tried, query).out)
    kept = tried.truncate(np.array([11, 7], np.int32))
    right_tokens = cache.append(*drafts, lengths=np.array([2, 1], np.int32))
    last = queries(1, 4, B=2)
    more = normal(r, 2, 1, 2, 16)
    for accepted, expected in ((kept, right_tokens), (kept.append(more, more), right_tokens.append(more, more))):
        own = right(expected, last).out
        check(np.asarray(nn.cached_attention(last, expected)), own)
        check(np.asarray(nn.cached_attention(last, accepted)), own)


OPTIONS: dict[str, dict[str, Any]] = {
    "cross": {"is_causal": False},
    "window": {"local_window_size": (6, 0)},
    "softcap and scale": {"softcap": 3.0, "scale": 0.7},
    "offset": {"query_offset": np.array([4, 2, 30], np.int32)},
    "one offset": {"query_offset": 3, "is_causal": True},
}


@pytest.mark.parametrize(("layout", "T"), [("dense", 1), ("paged", 4), ("ring", 1), ("ring", 4)])
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str, layout: str, T: int):
    cache = filled([17, 0, 10], dtype=np.float32, **LAYOUTS[layout])
    if layout == "ring" and "offset" in name:
        cache = filled([8, 0, 5], dtype=np.float32, **LAYOUTS[layout])
    query = queries(T, 4)
    out, residual = nn.cached_attention(query, cache, return_residual=True, **OPTIONS[name])
    own = right(cache, query, **OPTIONS[name])
    check(np.asarray(out), own.out)
    check_residual(np.asarray(residual), own.residual)


def test_pinned_tokens_are_seen_from_before_them():
    """Unless attention is causal: a query sees the window up to itself, and all that is pinned."""
    cache = filled([5, 3, 2], dtype=np.float32, window=2, pinned=3)
    query = queries(4, 4)
    for options in ({"is_causal": False}, {"is_causal": True}, {"is_causal": False, "query_offset": 0}):
        check(np.asarray(nn.cached_attention(query, cache, **options)), right(cache, query, **options).out)


@pytest.mark.parametrize(("layout", "T"), [("dense", 4), ("paged", 1)])
def test_bias_mask_segments_and_mask_values(layout: str, T: int):
    r = np.random.default_rng(4)
    cache = filled([17, 0, 10], dtype=np.float16, **LAYOUTS[layout])
    query = queries(T, 4)
    S = cache.capacity
    bias, mask = normal(r, 3, 4, T, S), r.random((3, 1, T, S)) < 0.7
    own = held(cache)
    at = np.maximum(own.positions, 0)
    for b in range(3):  # what the cache holds lies in the order of its tokens, so slots are positions
        assert np.array_equal(at[b, : own.lengths[b]], np.arange(own.lengths[b]))
    check(np.asarray(nn.cached_attention(query, cache, bias)), right(cache, query, bias=bias).out)
    check(np.asarray(nn.cached_attention(query, cache, mask=mask)), right(cache, query, mask=mask).out)
    ids = r.integers(0, 2, (3, T)).astype(np.int32), r.integers(0, 2, (3, S)).astype(np.int32)
    same = (ids[0][:, :, None] == ids[1][:, None])[:, None]
    check(np.asarray(nn.cached_attention(query, cache, mask=masks.segments(*ids))), right(cache, query, mask=same).out)
    prefix = np.broadcast_to(np.arange(S) < 5, (T, S))
    check(np.asarray(nn.cached_attention(query, cache, mask=masks.prefix(5))), right(cache, query, mask=prefix).out)
    offset = own.lengths - T
    chunk = (np.arange(S) // 4)[None, None] == ((np.arange(T) + offset[:, None]) // 4)[:, :, None]
    out = nn.cached_attention(query, cache, mask=masks.chunked(4))
    check(np.asarray(out), right(cache, query, mask=chunk[:, None]).out)


@pytest.mark.parametrize(("layout", "T"), [("dense", 1), ("paged", 4), ("ring", 4)])
def test_sinks(layout: str, T: int):
    """A row without keys is 0, and its residual the sink."""
    cache = filled([17, 0, 10], dtype=np.float32, **LAYOUTS[layout])
    query, sinks = queries(T, 4), normal(np.random.default_rng(5), 4)
    out, residual = nn.cached_attention(query, cache, sinks=sinks, return_residual=True)
    own = right(cache, query, sinks=sinks)
    check(np.asarray(out), own.out)
    check_residual(np.asarray(residual), own.residual)
    assert np.allclose(np.asarray(residual)[1], sinks)


def test_residuals_are_float32_unless_told():
    cache, query = filled([17, 0, 10]), queries(1, 4, dtype=np.float16)
    assert nn.cached_attention(query, cache, return_residual=True)[1].dtype == np.float32
    assert nn.cached_attention(query, cache, return_residual=True, residual_dtype=np.float16)[1].dtype == np.float16


def test_rows_past_query_lengths_are_zero():
    """And the others stay where they are: the last of the T rows sits at the last token."""
    cache, query = filled([17, 9, 10], dtype=np.float32), queries(4, 4)
    out = np.asarray(nn.cached_attention(query, cache, query_seq_lengths=np.array([4, 2, 0], np.int32)))
    own = right(cache, query).out
    for b, n in enumerate((4, 2, 0)):
        check(out[b, :n], own[b, :n])
        assert not out[b, n:].any()


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rope_on_append_and_on_read(layout: str, style: Any):
    """Keys rotated as they are appended, by hand or by append, or as they are read."""
    r = np.random.default_rng(6)
    rope = nn.Rope(1000.0, 8, style)
    raw = rotated = by_hand = KVCache.create(2, 24, 2, 16, dtype=np.float32, **LAYOUTS[layout])
    for counts in ([5, 3], [6, 0], [4, 5]):
        n = np.array(counts, np.int32)
        key, value = (normal(r, 2, max(counts), 2, 16) for _ in range(2))
        turned = nn.rope(key, by_hand.positions(max(counts)), base=1000.0, rotary_dim=8, style=style)
        by_hand = by_hand.append(turned, value, lengths=n)
        rotated = rotated.append(key, value, lengths=n, rope=rope)
        raw = raw.append(key, value, lengths=n)
    query = queries(4, 4, B=2)
    own = right(raw, query, rope=rope).out
    check(np.asarray(nn.cached_attention(query, raw, rope=rope)), own)
    positions = np.asarray(raw.lengths)[:, None] - 4 + np.arange(4, dtype=np.int32)
    asked = nn.rope(query, positions, base=1000.0, rotary_dim=8, style=style)
    check(np.asarray(nn.cached_attention(asked, rotated)), own)
    check(np.asarray(nn.cached_attention(asked, by_hand)), own)


def test_strided_views_of_queries_and_of_results():
    """Queries cut out of a projection, and heads first."""
    cache = filled([17, 0, 10], dtype=np.float16)
    both = wa.asarray(normal(np.random.default_rng(7), 3, 4, 12, 16))
    check(np.asarray(nn.cached_attention(both[:, :, 4:8], cache)), right(cache, np.asarray(both)[:, :, 4:8]).out)
    heads_first = wa.asarray(np.ascontiguousarray(np.asarray(both)[:, :, :4].swapaxes(1, 2)))
    out = nn.cached_attention(heads_first.swapaxes(1, 2), cache).swapaxes(1, 2)
    check(np.asarray(out).swapaxes(1, 2), right(cache, np.asarray(both)[:, :, :4]).out)


def test_one_sequence_without_a_batch_axis():
    r = np.random.default_rng(8)
    key, query = normal(r, 5, 2, 16), normal(r, 5, 4, 16)
    cache = KVCache.create(1, 16, 2, 16, dtype=np.float32).append(key, key)
    out = nn.cached_attention(query, cache)
    assert out.shape == (5, 4, 16)
    check(np.asarray(out)[None], right(cache, query[None]).out)
    assert nn.cached_attention(query[:0], cache).shape == (0, 4, 16)


def test_no_causal_clause_where_one_query_comes_last():
    cache, query = filled([17, 0, 10]), queries(1, 4)

    def recorded(**options: Any) -> str:
        return str(wa.make_graph(lambda q, c: nn.cached_attention(q, c, **options))(query, cache))

    assert "keys" not in recorded()
    assert "subtract" not in recorded()
    assert "keys j ≤ i+" in recorded(query_offset=3)
    assert "keys" not in recorded(is_causal=False)


def test_gradients_of_a_dense_cache():
    """By query, by what was appended and by what is stored, as of attention over the same tokens."""
    r = np.random.default_rng(9)
    old, new, query, weights = (normal(r, 2, T, heads, 16) for T, heads in ((6, 2), (3, 2), (3, 4), (3, 4)))
    empty = KVCache.create(2, 12, 2, 16, dtype=np.float32)
    rope = nn.Rope()

    def cached(q: Any, k: Any, v: Any) -> Any:
        cache = empty.append(old, old).append(k, v)
        return (nn.cached_attention(q, cache, rope=rope) * weights).sum()

    def whole(q: Any, k: Any, v: Any) -> Any:
        key, value = (wa.concatenate([wa.asarray(old), x], axis=1) for x in (k, v))
        return (nn.dot_product_attention(q, key, value, is_causal=True, query_offset=6, rope=rope) * weights).sum()

    args = query, new, new * 2
    for mine, other in zip(*(wa.grad(f, (0, 1, 2))(*args) for f in (cached, whole)), strict=True):
        check(np.asarray(mine), np.asarray(other).astype(np.float64), gradient=True, magnitude=4.0)

    def stored(key: Any, value: Any) -> Any:
        cache = replace(empty, key=key, value=value, lengths=wa.asarray(np.array([9, 9], np.int32)))
        return (nn.cached_attention(query, cache) * weights).sum()

    def plain(key: Any, value: Any) -> Any:
        out = nn.dot_product_attention(query, key[:, :9], value[:, :9], is_causal=True, query_offset=6)
        return (out * weights).sum()

    args = normal(r, 2, 12, 2, 16), normal(r, 2, 12, 2, 16)
    for mine, other in zip(*(wa.grad(f, (0, 1))(*args) for f in (stored, plain)), strict=True):
        check(np.asarray(mine), np.asarray(other).astype(np.float64), gradient=True, magnitude=4.0)


@pytest.mark.parametrize("options", [{"dtype": "int8"}, {"layout": "paged"}, {"window": 8}])
def test_other_caches_have_no_gradient(options: dict[str, Any]):
    cache = filled([9, 6], **options)
    with pytest.raises(wa.UnsupportedError, match="gradient"):
        wa.grad(lambda q: nn.cached_attention(q, cache).sum())(queries(2, 4, B=2))


@pytest.mark.parametrize("family", ["plain", "flash_tiled", "flash_rows"])
def test_rows_behind_the_last_key_reach_no_key_past_it(family: str, poisoned_memory: None):
    """A block of rows whose last ones keep no key: the empty range of these lies behind what was written."""
    if family == "flash_rows" and not _runtime.current_profile().is_cpu:
        pytest.skip("flash_rows is for CPU adapters")
    for length in (5, 7):
        cache = filled([length], 10, v_head_dim=3, dtype=np.float32)
        query = queries(17, 4, B=1)
        mask = masks.chunked(6) & masks.causal()
        out = nn.cached_attention(query, cache, mask=mask, query_offset=0, is_causal=False, implementation=family)
        rows, keys = np.arange(17)[:, None], np.arange(length)
        kept = (keys // 6 == rows // 6) & (keys <= rows)
        own = right(cache, query, mask=np.pad(kept, ((0, 0), (0, 10 - length))), query_offset=0, is_causal=False)
        check(np.asarray(out), own.out)
