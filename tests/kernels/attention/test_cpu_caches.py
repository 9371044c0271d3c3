"""Caches in the families of CPU adapters: what is stored, pages, rings, ragged lengths; copied, and gathered."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.kernels.attention.run_attention import weak
from tests.kernels.attention.run_cached import DTYPES, Cache, cache_of, reference_cached, run_cached
from tests.kernels.attention.test_families import refused_here
from tests.tolerance import check, check_residual
from wgattn import _runtime
from wgattn._dtypes import bfloat16, float16
from wgattn._kernels.attention import decode_lanes, flash_rows, lanes, textures
from wgattn._kernels.kernel import CopyToTexture, Plan
from wgattn._kernels.rotation import Rope

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("poisoned")]

LANES = (flash_rows, decode_lanes)
FAMILY = pytest.mark.parametrize("family", LANES, ids=[family.name for family in LANES])
DTYPE = pytest.mark.parametrize("dtype", DTYPES)


def queries(family: ModuleType, B: int, N: int = 4, H: int = 32, T: int = 3, dtype: Any = np.float32) -> np.ndarray:
    T = 1 if family is decode_lanes else T
    return np.random.default_rng(H).standard_normal((B, T, N, H), np.float32).astype(dtype)


def compare(
    family: ModuleType, cache: Cache, N: int = 4, T: int = 3, dtype: Any = np.float32, **options: Any
) -> tuple[np.ndarray, np.ndarray] | None:
    if refused_here(family):
        return None
    query = queries(family, len(cache.lengths), N, cache.head_dims[0], T, dtype)
    out, residual = run_cached(family, query, cache, **options)
    right, right_residual = reference_cached(query, cache, **options)
    check(out, right)
    check_residual(residual, right_residual)
    return out, residual


@FAMILY
@DTYPE
@pytest.mark.parametrize(("H", "Hv"), [(20, 33), (64, 16), (128, 96)])
@pytest.mark.parametrize("page_size", [None, 8])
def test_stored(family: ModuleType, dtype: str, H: int, Hv: int, page_size: int | None) -> None:
    """Every type, rows that are copied and rows that are gathered, ragged lengths, an empty sequence among them."""
    compare(family, cache_of(dtype, [40, 0, 7, 17], 40, H=H, Hv=Hv, page_size=page_size))


@FAMILY
@pytest.mark.parametrize("dtype", ["f32", "f8e4m3", "i4"])
def test_wide_rows(family: ModuleType, dtype: str) -> None:
    """Seven blocks of int4 in a class of eight: the value's scales stand behind the key's."""
    compare(family, cache_of(dtype, [9, 14], 16, H=220, Hv=256), N=2)


@FAMILY
@DTYPE
@pytest.mark.parametrize("query_dtype", [float16, bfloat16])
def test_query_dtypes(family: ModuleType, dtype: str, query_dtype: Any) -> None:
    """The result has the query's dtype, whatever is stored."""
    compare(family, cache_of(dtype, [31, 40], 40, H=16), dtype=query_dtype)


@FAMILY
@DTYPE
@pytest.mark.parametrize("layout", [{}, {"page_size": 8}, {"ring": 2}], ids=["dense", "paged", "ring"])
def test_rope_at_read(family: ModuleType, dtype: str, layout: dict[str, int]) -> None:
    """Keys are dequantised and rotated at their positions as they are gathered."""
    style = {"f16": Rope(rotary_dim=6), "i8": Rope(rotary_dim=6), "i4": Rope(style="interleaved")}
    compare(
        family,
        cache_of(dtype, [40, 0, 95 if "ring" in layout else 11], 40, H=20, **layout),
        rope=style.get(dtype, Rope()),
    )


@FAMILY
@pytest.mark.parametrize("dtype", ["f32", "f8e4m3", "i8", "i4"])
@pytest.mark.parametrize("page_size", [8, 16])
def test_edges_of_pages(family: ModuleType, dtype: str, page_size: int) -> None:
    """Lengths on, before and behind them; sequences share their first page."""
    compare(family, cache_of(dtype, [48, 0, 15, 16, 17, 1], 48, H=64, K=4, page_size=page_size, shared=1))


@FAMILY
@pytest.mark.parametrize("rope", [None, Rope()], ids=["", "rope"])
@pytest.mark.parametrize("dtype", ["f32", "i8"])
def test_pages_outside_the_pool_hold_no_keys(family: ModuleType, dtype: str, rope: Rope | None) -> None:
    cache = cache_of(dtype, [40, 40], 40, page_size=8)
    assert cache.pages is not None
    some = cache.pages.copy()
    some[0, 1], some[1, 3], some[1, 4] = -1, 1 << 30, -(1 << 31)
    query = queries(family, 2)
    if refused_here(family):
        return
    out, residual = run_cached(family, query, replace(cache, pages=some), rope=rope)
    right, right_residual = reference_cached(query, replace(cache, pages=np.where(some > 100, -1, some)), rope=rope)
    check(out, right)
    check_residual(residual, right_residual)
    out, residual = run_cached(family, query, replace(cache, pages=np.full_like(some, -1)), rope=rope)
    assert not out.any()
    assert (residual == -np.inf).all()


def copied(family: ModuleType, cache: Cache, monkeypatch: pytest.MonkeyPatch, **options: Any) -> set[str]:
    """The operands that the queue copies to textures in a call that gives what it should."""
    plans: list[Plan] = []
    plan = family.plan
    monkeypatch.setattr(family, "plan", lambda *given: plans.append(plan(*given)) or plans[-1])
    compare(family, cache, **options)
    (made,) = plans
    names = [step.source.name for step in made.steps if isinstance(step, CopyToTexture)]
    return {name for name in names if name != "query"}


@FAMILY
def test_what_is_copied(family: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool is copied whole where rows need no padding and a call reads much of it; else what is read is gathered."""
    if refused_here(family):
        return
    cache = cache_of("i8", [40, 33], 40, H=64, page_size=8)
    assert copied(family, cache, monkeypatch) == {"key", "value", "scales"}
    assert copied(family, cache, monkeypatch, rope=Rope()) == {"value", "scales"}
    assert copied(family, cache_of("i8", [40, 33], 40, H=20, page_size=8), monkeypatch) == {"scales"}
    wide = cache_of("f32", [8] * 40, 8, H=64, page_size=8)
    assert wide.pages is not None
    few = replace(wide, pages=wide.pages[:1], lengths=wide.lengths[:1])
    assert copied(family, few, monkeypatch) == set()


@FAMILY
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f8e5m2", "i8", "i4"])
@pytest.mark.parametrize("pinned", [0, 3])
@pytest.mark.parametrize("rope", [None, Rope()], ids=["", "rope"])
def test_rings(family: ModuleType, dtype: str, pinned: int, rope: Rope | None) -> None:
    """Rings that are not full, just full, and went round more than once."""
    compare(family, cache_of(dtype, [0, 5, 24, 25, 67, 1000], 24, H=16, ring=pinned), window=9, rope=rope)


@FAMILY
def test_rings_without_a_window(family: ModuleType) -> None:
    compare(family, cache_of("f32", [11, 24, 40], 24, ring=2))
    compare(family, cache_of("f16", [11, 24, 40], 24, ring=0), is_causal=False)


@FAMILY
@pytest.mark.parametrize("G", [1, 2, 3, 5, 6, 7, 8, 16])
def test_groups(family: ModuleType, G: int) -> None:
    for dtype in ("f16", "i4"):
        compare(family, cache_of(dtype, [21, 9], 24, K=2, H=16), N=2 * G)


@FAMILY
@pytest.mark.parametrize("T", [2, 16, 17])
def test_more_queries_than_tokens(family: ModuleType, T: int) -> None:
    """The first of them sit before the sequence's start, and keep nothing."""
    compare(family, cache_of("f8e4m3", [1, 9, 64, 65], 72, K=1, page_size=8), T=T, N=2)


@FAMILY
@pytest.mark.parametrize(
    ("layout", "rope"),
    [({}, None), ({"page_size": 16}, None), ({"ring": 5}, None), ({"page_size": 16}, Rope())],
    ids=["dense", "paged", "ring", "paged-rope"],
)
@pytest.mark.parametrize("dtype", ["f16", "i4"])
def test_parts(family: ModuleType, dtype: str, layout: dict[str, int], rope: Rope | None) -> None:
    """Ranges of keys where loops end early, parts of a pool where bindings are small; sinks join once."""
    profile = weak(_runtime.current_profile(), loop_turns=1024 + 40)
    sinks = np.linspace(-1, 2, 4).astype(np.float32)
    cache = cache_of(dtype, [300, 0, 33], 320, **layout)
    compare(family, cache, profile=profile, sinks=sinks, rope=rope)
    compare(family, cache, profile=weak(profile, binding_bytes=16384), rope=rope)


@FAMILY
@pytest.mark.parametrize("dtype", ["i8", "f16"])
def test_parts_that_fit_the_cache_of_a_cpu(family: ModuleType, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a call has few rows, as many keys are copied at once as stay in it, and the parts are merged."""
    monkeypatch.setattr(lanes, "CACHED", 1 << 16)
    compare(family, cache_of(dtype, [1300, 700, 3], 1400, H=64), T=2)
    compare(family, cache_of(dtype, [1300, 700, 3], 1400, H=64), T=2, window=300)


@FAMILY
@pytest.mark.parametrize("dtype", ["i8", "i4"])
@pytest.mark.parametrize("page_size", [None, 8])
def test_scales_of_heads_apart(
    family: ModuleType, dtype: str, page_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the heads' scales of a token do not lie side by side, each head's are a row of texels."""
    monkeypatch.setattr(textures, "rows_of", lambda name, part: part)
    compare(family, cache_of(dtype, [24, 19], 24, H=64, page_size=page_size))


@FAMILY
def test_masks_of_pages(family: ModuleType) -> None:
    """Bias and mask stand in the order of keys, not of the pool."""
    draw = np.random.default_rng(5)
    T = queries(family, 1).shape[1]
    bias = draw.standard_normal((3, 4, T, 96)).astype(np.float32)
    compare(family, cache_of("i8", [96, 0, 41], 96, page_size=16), bias=bias, mask=draw.random((3, 1, T, 96)) < 0.7)
