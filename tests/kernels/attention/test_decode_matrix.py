"""decode_matrix with its matrix units emulated: types, pages, rings, groups, head dims, and how exact it is."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.attention.run_attention import reference, run
from tests.kernels.attention.run_cached import Cache, cache_of, reference_cached, run_cached
from tests.tolerance import check, check_residual
from wgattn import _runtime
from wgattn._dtypes import bfloat16, float16
from wgattn._kernels.attention import decode_matrix
from wgattn._kernels.matrices import EMULATED
from wgattn._runtime.profile import DeviceProfile

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("poisoned")]
DTYPE = pytest.mark.parametrize("dtype", ["f16", "f8e4m3", "f8e5m2", "i8"])


def emulated(**changes: Any) -> DeviceProfile:
    return replace(_runtime.current_profile(), matrix=(EMULATED,), **changes)


def queries(B: int, N: int, H: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(N).standard_normal((B, 1, N, H), dtype=np.float32).astype(dtype)


def compare(query: np.ndarray, cache: Cache, **options: Any) -> None:
    out, residual = run_cached(decode_matrix, query, cache, profile=emulated(), **options)
    right, right_residual = reference_cached(query, cache, **options)
    check(out, right)
    check_residual(residual, right_residual)


@DTYPE
@pytest.mark.parametrize("layout", ["dense", "paged", "ring"])
def test_stored_types(dtype: str, layout: str) -> None:
    """float32 queries; a sequence that has nothing, one that is full, and one that ends inside a tile."""
    layouts: dict[str, dict[str, Any]] = {"dense": {}, "paged": {"page_size": 8}, "ring": {"ring": 3}}
    lengths = [0, 136, 70] if layout != "ring" else [0, 391, 70]
    compare(queries(3, 8, 32), cache_of(dtype, lengths, 136, H=32, **layouts[layout]))


@pytest.mark.grid
@DTYPE
@pytest.mark.parametrize(("H", "Hv", "G"), [(64, 128, 1), (128, 64, 3), (160, 128, 8), (96, 64, 12), (16, 256, 5)])
def test_head_dims_and_groups(dtype: str, H: int, Hv: int, G: int) -> None:
    compare(queries(2, 2 * G, H), cache_of(dtype, [150, 29], 152, H=H, Hv=Hv))


@DTYPE
def test_options(dtype: str) -> None:
    """A window, a bias, a mask, a cap and sinks beside a cache."""
    draw = np.random.default_rng(1)
    cache = cache_of(dtype, [130, 75], 136)
    compare(queries(2, 4, 32), cache, window=33, softcap=5.0, sinks=draw.standard_normal(4, dtype=np.float32))
    dense = (2, 4, 1, 136)
    bias = draw.standard_normal(dense, dtype=np.float32)
    compare(queries(2, 4, 32), cache, bias=bias, mask=draw.random(dense) > 0.5)


@pytest.mark.parametrize("query_dtype", [float16, bfloat16])
def test_queries_of_two_bytes(query_dtype: Any) -> None:
    compare(queries(2, 4, 64, query_dtype), cache_of("i8", [130, 75], 136, H=64))
    compare(queries(2, 4, 64, query_dtype), cache_of("f8e4m3", [130, 75], 136, H=64))


def test_a_growing_maximum_rescales() -> None:
    """Later keys outweigh all before them by more than the slack, again and again."""
    cache = cache_of("f16", [512], 512, H=32)
    key = cache.key * np.linspace(0.1, 30.0, 512, dtype=np.float32)[:, None, None].astype(np.float16)
    for size in (1.0, 100.0):
        query = queries(1, 4, 32) * np.float32(size)
        out, _ = run_cached(decode_matrix, query, replace(cache, key=key), profile=emulated())
        check(out, reference_cached(query, replace(cache, key=key))[0])


@pytest.mark.parametrize("growth", [np.logspace(-12, 12, 256), np.logspace(12, -12, 256), np.tile([1e-9, 1e9], 128)])
def test_scales_of_any_size(growth: np.ndarray) -> None:
    """Weights times the scales of int8 values fit float16 whatever the scales are."""
    cache = cache_of("i8", [256], 256, H=32)
    assert cache.scales is not None
    scales = cache.scales.copy()
    scales[..., 1] *= growth[:, None].astype(np.float32)
    out, _ = run_cached(decode_matrix, queries(1, 4, 32), replace(cache, scales=scales), profile=emulated())
    right, _ = reference_cached(queries(1, 4, 32), replace(cache, scales=scales))
    assert np.linalg.norm(out - right) <= 2e-6 * np.linalg.norm(right)


@pytest.mark.parametrize("size", [1e-20, 1e-6, 1e6, 1e20])
def test_queries_of_any_size(size: float) -> None:
    query = queries(1, 4, 32) * np.float32(size)
    key, value = (np.random.default_rng(s).standard_normal((1, 80, 2, 32)).astype(np.float16) for s in (1, 2))
    out, _ = run(decode_matrix, query, key, value, scale=1 / size, profile=emulated())
    right, _ = reference(query, key, value, scale=1 / size)
    check(out, right)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_not_a_number_stays_in_its_row(poison: float) -> None:
    """In a query: its own row. In a key or a value: the heads that read it, of a value its column."""
    query = queries(2, 4, 32)
    key, value = (np.random.default_rng(s).standard_normal((2, 80, 2, 32)).astype(np.float16) for s in (1, 2))
    query[0, 0, 1, 5] = poison
    key[1, 70, 0, 3] = np.nan
    value[1, 3, 1, 7] = np.nan
    out, _ = run(decode_matrix, query, key, value, profile=emulated())
    right, _ = reference(query, key, value)
    check(out, right)


def test_all_keys_in_one_part() -> None:
    """Without splits the kernel ends its rows itself, with the mean of V where no key is kept."""
    key, value = (np.random.default_rng(s).standard_normal((3, 300, 1, 64)).astype(np.float16) for s in (1, 2))
    lengths = np.array([300, 0, 65], np.int32)
    profile = emulated(tuned=(("workgroups", 1),))
    out, residual = run(decode_matrix, queries(3, 8, 64), key, value, key_value_lengths=lengths, profile=profile)
    right, right_residual = reference(queries(3, 8, 64), key, value, key_value_lengths=lengths)
    check(out, right)
    check_residual(residual, right_residual)
