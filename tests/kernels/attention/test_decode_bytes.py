"""decode_subgroups over caches of one byte: int8 digits of a query, widened values, reads ahead, and what is NaN."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.kernels.attention.run_cached import cache_of, reference_cached, run_cached
from tests.tolerance import check, check_residual
from wgattn import _runtime
from wgattn._dtypes import bfloat16, float16
from wgattn._kernels.attention import decode_subgroups
from wgattn._runtime.profile import DeviceProfile

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("poisoned")]
BYTES = ("i8", "f8e4m3", "f8e5m2")
DTYPE = pytest.mark.parametrize("dtype", BYTES)


def gpu(**fields: Any) -> DeviceProfile:
    """This device's profile as a GPU's, whose lanes hold more and whose rows are split."""
    return replace(_runtime.current_profile(), kind="discrete", **fields)


def queries(B: int, N: int, H: int, dtype: Any = np.float32, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((B, 1, N, H), dtype=np.float32).astype(dtype)


def compare(query: np.ndarray, cache: Any, profile: DeviceProfile | None = None, **options: Any) -> None:
    out, residual = run_cached(decode_subgroups, query, cache, profile=profile or gpu(), **options)
    right, right_residual = reference_cached(query, cache, **options)
    check(out, right)
    check_residual(residual, right_residual)


@DTYPE
@pytest.mark.parametrize("query_dtype", [np.float32, float16, bfloat16], ids=["f32", "f16", "bf16"])
def test_query_dtypes(dtype: str, query_dtype: Any) -> None:
    """Ends of sequences before, at and after the end of a turn, in rows of 64 elements a lane."""
    query, cache = queries(6, 4, 128, query_dtype), cache_of(dtype, [0, 1, 63, 64, 65, 700], 704, K=1, H=128)
    compare(query, cache)
    out, _ = run_cached(decode_subgroups, query, cache, profile=gpu(), kept=False)
    check(out, reference_cached(query, cache)[0])


@pytest.mark.grid
@DTYPE
@pytest.mark.parametrize("group", [1, 3, 8])
@pytest.mark.parametrize(("H", "Hv"), [(32, 32), (128, 64), (64, 256)])
def test_shares(dtype: str, group: int, H: int, Hv: int) -> None:
    cache = cache_of(dtype, [130, 67], 136, K=2, H=H, Hv=Hv, page_size=8)
    compare(queries(2, 2 * group, H), cache)


@pytest.mark.parametrize("dtype", [*BYTES, "f16"])
@pytest.mark.parametrize(("H", "Hv"), [(112, 112), (20, 40)])
def test_padded_rows(dtype: str, H: int, Hv: int) -> None:
    """Rows that are shorter than the team's share of them, read in words as they lie."""
    compare(queries(2, 4, H), cache_of(dtype, [130, 67], 136, K=2, H=H, Hv=Hv))


@pytest.mark.grid
@DTYPE
@pytest.mark.parametrize("option", ["window", "bias", "softcap_sinks", "mask"])
def test_options(dtype: str, option: str) -> None:
    draw = np.random.default_rng(2)
    options: dict[str, Any] = {
        "window": {"window": 19},
        "bias": {"bias": draw.standard_normal((2, 4, 1, 136)).astype(np.float32)},
        "softcap_sinks": {"softcap": 2.0, "sinks": np.linspace(-1, 2, 4).astype(np.float32)},
        "mask": {"mask": draw.random((2, 1, 1, 136)) < 0.5},
    }[option]
    compare(queries(2, 4, 64), cache_of(dtype, [130, 67], 136, K=2, H=64), **options)


@pytest.mark.parametrize("dtype", [np.float32, float16], ids=["f32", "f16"])
@pytest.mark.parametrize("factor", [0.0, 1e-30, 1e-3, 10.0])
def test_digits_of_rows_of_any_size(dtype: Any, factor: float) -> None:
    """Digits count a part of the row's largest number, whatever that is; other heads have rows of their own."""
    query = queries(2, 4, 128).astype(np.float64)
    query[:, :, 1] *= factor
    query[:, :, 2, 7] *= 10
    query, cache = query.astype(dtype), cache_of("i8", [200, 77], 200, K=1, H=128)
    compare(query, cache)
    out, _ = run_cached(decode_subgroups, query, cache, profile=gpu(), kept=False)
    check(out, reference_cached(query, cache)[0])


@DTYPE
@pytest.mark.parametrize("what", [np.nan, -np.inf])
def test_no_number_in_a_query(dtype: str, what: float) -> None:
    """It makes its own row NaN, and no other."""
    query = queries(2, 4, 128)
    query[1, 0, 2, 100] = what
    out, _ = run_cached(decode_subgroups, query, cache_of(dtype, [200, 77], 200, K=1, H=128), profile=gpu())
    spoiled = np.zeros(out.shape[:3], bool)
    spoiled[1, 0, 2] = True
    assert np.isnan(out[spoiled]).all()
    assert np.isfinite(out[~spoiled]).all()


@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_nan_in_a_cache(dtype: str, sign: float) -> None:
    """In a kept key it makes the rows NaN that use it, in a kept value the column; in a masked key nothing."""
    query, cache = queries(3, 4, 128), cache_of(dtype, [200, 77, 77], 200, K=2, H=128)
    cache.key[0, 5, 1, 3] = np.copysign(np.nan, sign)
    cache.value[1, 70, 0, 9] = np.copysign(np.nan, sign)
    cache.value[1, 70, 0, 10] = 448  # beside it in the word, and all ones but for the last
    cache.key[2, 40, 0, 8] = np.copysign(np.nan, sign)
    mask = np.ones((3, 1, 1, 200), bool)
    mask[2, ..., 40] = False
    out, residual = run_cached(decode_subgroups, query, cache, profile=gpu(), mask=mask)
    spoiled = np.zeros(out.shape, bool)
    spoiled[0, 0, 2:] = True
    spoiled[1, 0, :2, 9] = True
    assert (np.isnan(out) == spoiled).all()
    assert np.isnan(residual[0, 0]).tolist() == [False, False, True, True]
    assert np.isfinite(residual[1:]).all()


def test_every_number_of_a_byte() -> None:
    """All that float8_e4m3fn can say, subnormal or large, as keys and as values."""
    cache = cache_of("f8e4m3", [256], 256, K=1, H=128)
    every = np.arange(256, dtype=np.uint8)
    every[(every & 0x7F) == 0x7F] = 0
    cache.value[0, :, 0] = np.resize(every, (128, 256)).T.view(ml_dtypes.float8_e4m3fn)
    cache.key[0, :, 0, ::7] = every[:, None].view(ml_dtypes.float8_e4m3fn)
    compare(queries(1, 2, 128) * np.float32(1e-3), cache)
