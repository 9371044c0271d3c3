"""Families that read caches from buffers: storage types, pages, rings, ragged lengths, nothing of a poisoned tail."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.kernels.attention.run_attention import weak
from tests.kernels.attention.run_cached import DTYPES, Cache, cache_of, reference_cached, run_cached
from tests.tolerance import check, check_residual
from wgattn import _runtime
from wgattn._dtypes import bfloat16, float16
from wgattn._errors import UnsupportedError
from wgattn._kernels.attention import decode, decode_subgroups, flash_tiled, plain
from wgattn._kernels.rotation import Rope

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("poisoned")]
FAMILIES = (decode, decode_subgroups, flash_tiled, plain)
FAMILY = pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
DTYPE = pytest.mark.parametrize("dtype", DTYPES)


def rows_of(family: ModuleType, T: int) -> int:
    return 1 if family in (decode, decode_subgroups) else T


def queries(B: int, T: int, N: int, H: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(T).standard_normal((B, T, N, H), dtype=np.float32).astype(dtype)


def compare(family: ModuleType, query: np.ndarray, cache: Cache, **options: Any) -> None:
    out, residual = run_cached(family, query, cache, **options)
    right, right_residual = reference_cached(query, cache, **options)
    check(out, right)
    check_residual(residual, right_residual)


@FAMILY
@DTYPE
@pytest.mark.parametrize("layout", ["dense", "paged", "ring"])
def test_stored_types(family: ModuleType, dtype: str, layout: str) -> None:
    """float32 queries of every storage type; a sequence that has nothing, one that is full, and one between."""
    layouts: dict[str, dict[str, Any]] = {"dense": {}, "paged": {"page_size": 8}, "ring": {"ring": 3}}
    lengths = [0, 48, 21] if layout != "ring" else [0, 131, 21]
    cache = cache_of(dtype, lengths, 48, **layouts[layout])
    compare(family, queries(3, rows_of(family, 5), 4, 32), cache)


@pytest.mark.grid
@FAMILY
@DTYPE
@pytest.mark.parametrize(("H", "Hv"), [(33, 7), (64, 128), (100, 36), (256, 193)])
def test_head_dims(family: ModuleType, dtype: str, H: int, Hv: int) -> None:
    """Rows that end inside a quad, a block of int4 or a class of head dims, beside padding that holds NaN."""
    cache = cache_of(dtype, [29, 3], 32, H=H, Hv=Hv, page_size=16)
    compare(family, queries(2, rows_of(family, 3), 2, H), cache)


@pytest.mark.grid
@FAMILY
@pytest.mark.parametrize("dtype", ["f32", "f8e4m3", "i8", "i4"])
@pytest.mark.parametrize("G", [1, 2, 3, 4, 7, 8, 16, 48])
def test_groups(family: ModuleType, dtype: str, G: int) -> None:
    cache = cache_of(dtype, [70, 0, 65], 72, page_size=8)
    compare(family, queries(3, rows_of(family, 2), 2 * G, 32), cache)


@FAMILY
@pytest.mark.parametrize("T", [1, 2, 7, 16, 17])
@pytest.mark.parametrize("page_size", [None, 8, 64])
def test_rows(family: ModuleType, T: int, page_size: int | None) -> None:
    """More queries than a sequence has tokens: the first of them sit before its start and are 0."""
    cache = cache_of("f16", [1, 9, 63, 64, 65, 128], 128, K=1, page_size=page_size)
    compare(family, queries(6, rows_of(family, T), 2, 32), cache)


@FAMILY
@pytest.mark.parametrize("C", [256, 264, 1024, 1032])
@pytest.mark.parametrize("layout", ["dense", "paged", "ring"])
def test_capacities_at_the_edges_of_tiles_and_splits(family: ModuleType, C: int, layout: str) -> None:
    """In several parts, as on a GPU that has few heads to fill it."""
    layouts: dict[str, dict[str, Any]] = {"dense": {}, "paged": {"page_size": 8}, "ring": {"ring": 0}}
    profile = _runtime.current_profile()
    tuned = replace(profile, tuned=(("workgroups", 8),))
    lengths = [C, C - 1, 257] if layout != "ring" else [3 * C + 5, C - 1, 257]
    cache = cache_of("i8", lengths, C, K=1, H=16, **layouts[layout])
    compare(family, queries(3, rows_of(family, 2), 1, 16), cache, profile=tuned)


def options_of(B: int, T: int, N: int, S: int) -> dict[str, dict[str, Any]]:
    draw = np.random.default_rng(5)
    mask = draw.random((B, 1, T, S)) < 0.7
    return {
        "cross": {"is_causal": False},
        "window": {"window": 9},
        "rope": {"rope": Rope()},
        "rope_odd": {"rope": Rope(rotary_dim=6)},
        "rope_interleaved": {"rope": Rope(rotary_dim=10, style="interleaved")},
        "softcap_sinks": {"softcap": 2.0, "sinks": np.linspace(-1, 2, N).astype(np.float32)},
        "bias": {"bias": draw.standard_normal((B, N, T, S)).astype(np.float32)},
        "mask": {"mask": mask},
        "everything": {
            "bias": draw.standard_normal((1, N, 1, S)).astype(np.float32),
            "mask": mask,
            "rope": Rope(),
            "softcap": 3.0,
            "sinks": np.zeros(N, np.float32),
        },
    }


@pytest.mark.grid
@FAMILY
@pytest.mark.parametrize("dtype", ["f16", "f8e5m2", "i8", "i4"])
@pytest.mark.parametrize("option", options_of(1, 1, 1, 1))
def test_options(family: ModuleType, dtype: str, option: str) -> None:
    """Everything that attention takes, through pages: whole, and in parts of the keys that are merged."""
    T = rows_of(family, 4)
    cache = cache_of(dtype, [96, 0, 41], 96, page_size=16, H=40)
    options = options_of(3, T, 4, 96)[option]
    compare(family, queries(3, T, 4, 40), cache, **options)


@FAMILY
@pytest.mark.parametrize("pinned", [0, 4])
@pytest.mark.parametrize("option", ["cross", "window", "rope", "softcap_sinks"])
def test_rings(family: ModuleType, pinned: int, option: str) -> None:
    """Positions that have come round several times, once, not yet, or are none."""
    T = rows_of(family, 3)
    cache = cache_of("f16", [200, 33, 12, 0], 32, ring=pinned)
    compare(family, queries(4, T, 4, 32), cache, **options_of(4, T, 4, 32)[option])


@FAMILY
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=["f16", "bf16"])
def test_the_result_has_the_dtype_of_the_query(family: ModuleType, dtype: Any) -> None:
    cache = cache_of("f32", [20, 7], 24, H=33)
    compare(family, queries(2, rows_of(family, 3), 4, 33, dtype), cache)


@FAMILY
def test_shared_pages(family: ModuleType) -> None:
    cache = cache_of("f16", [40, 35, 32], 64, page_size=16, shared=2)
    assert cache.pages is not None
    assert (cache.pages[0, :2] == cache.pages[1, :2]).all()
    compare(family, queries(3, rows_of(family, 3), 4, 32), cache)


@FAMILY
@pytest.mark.parametrize("outside", [-1, -7, 1 << 30])
def test_pages_outside_the_pool_hold_no_keys(family: ModuleType, outside: int) -> None:
    """Lengths that pass what the table has: nothing else is read for the keys that are not there."""
    cache = cache_of("f32", [64, 64], 64, page_size=16)
    assert cache.pages is not None
    T = rows_of(family, 40)
    query = queries(2, T, 4, 32)
    mask = np.ones((1, 1, 1, 64), bool)
    mask[..., 16:32] = False
    right, right_residual = reference_cached(query, cache, mask=mask)
    cache.pages[:, 1] = outside
    out, residual = run_cached(family, query, cache)
    check(out, right)
    check_residual(residual, right_residual)


@FAMILY
def test_a_pool_is_bound_whole(family: ModuleType) -> None:
    cache = cache_of("f32", [64, 64], 64, page_size=16)
    profile = weak(_runtime.current_profile(), binding_bytes=cache.key.nbytes - 256)
    with pytest.raises(UnsupportedError, match=r"the pool of key pages has .* bytes, more than this device .* several"):
        run_cached(family, queries(2, 1, 4, 32), cache, profile=profile)


@FAMILY
@pytest.mark.parametrize("layout", ["dense", "ring"])
@pytest.mark.parametrize("dtype", ["f16", "i8", "i4"])
def test_storage_larger_than_a_binding(family: ModuleType, layout: str, dtype: str) -> None:
    """Ranges of slots, bound one after another and merged."""
    ring = None if layout == "dense" else 2
    cache = cache_of(dtype, [300, 0, 1234], 304, H=64, ring=ring)
    profile = weak(_runtime.current_profile(), binding_bytes=8 * 1024)
    compare(family, queries(3, rows_of(family, 2), 4, 64), cache, profile=profile)


@FAMILY
def test_few_storage_buffers(family: ModuleType) -> None:
    """With 8 a call that has all operands but scales is served in parts; with scales it says what is too much."""
    T = rows_of(family, 3)
    profile = weak(_runtime.current_profile(), storage_buffers=8)
    options = options_of(2, T, 4, 32)["everything"]
    compare(family, queries(2, T, 4, 32), cache_of("f16", [30, 7], 32, page_size=8), profile=profile, **options)
    with pytest.raises(AssertionError, match="its operands are 9 storage buffers, of 8 that a kernel has here"):
        run_cached(family, queries(2, T, 4, 32), cache_of("i8", [30, 7], 32), profile=profile, **options)


@FAMILY
@pytest.mark.parametrize("layout", ["paged", "ring"])
def test_few_loop_turns(family: ModuleType, layout: str) -> None:
    """Ranges of keys that are worked on one after another, each over the whole pool."""
    layouts: dict[str, dict[str, Any]] = {"paged": {"page_size": 8}, "ring": {"ring": 2}}
    cache = cache_of("f16", [800, 3, 411 if layout == "paged" else 2000], 800, H=16, **layouts[layout])
    profile = weak(_runtime.current_profile(), loop_turns=4600)
    T = rows_of(family, 2)
    options = {} if layout == "ring" else options_of(3, T, 4, 800)["mask"]
    compare(family, queries(3, T, 4, 16), cache, profile=profile, **options)
