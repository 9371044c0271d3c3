"""decode_matrix where the device has matrix units, and its emulation in plain WGSL on every device."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.kernels.attention.problems import CALLS, DISCRETE, MATRICES, problem_of
from tests.kernels.attention.run_cached import DTYPES, cache_of, reference_cached, run_cached
from tests.tolerance import check, check_residual
from wgattn._dtypes import bfloat16, float16, float32
from wgattn._kernels.attention import decode_matrix
from wgattn._kernels.attention.choose import choose
from wgattn._kernels.attention.problem import Call
from wgattn._runtime.profile import DeviceProfile

FULL = CALLS["full"][0]
DTYPE = pytest.mark.parametrize("dtype", ["i8", "f8e4m3", "f8e5m2"])


def queries(B: int, N: int, H: int = 64, dtype: Any = float16) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((B, 1, N, H), dtype=np.float32).astype(dtype)


def compare(query: np.ndarray, cache: Any, profile: DeviceProfile, *, magnitude: float = 1.0, **options: Any) -> None:
    out, residual = run_cached(decode_matrix, query, cache, profile=profile, **options)
    right, right_residual = reference_cached(query, cache, **options)
    check(out, right, magnitude=magnitude)
    check_residual(residual, right_residual)


@pytest.mark.device
def test_lengths_and_scales(here: DeviceProfile) -> None:
    """Sequences that end before, at and after the end of a tile and of a part; scales of values far apart."""
    cache = cache_of("i8", [0, 1, 31, 32, 33, 300, 520], 520, K=2, H=64)
    assert cache.scales is not None
    cache.scales[:, ::3, :, 1] *= np.float32(1e-6)
    cache.scales[5, 100:110, :, 1] *= np.float32(1e5)
    compare(queries(7, 6, dtype=float32), cache, here, magnitude=1e5)


@pytest.mark.device
def test_nan_in_a_cache(here: DeviceProfile) -> None:
    """In a kept key it makes the rows NaN that use it, in a kept value the column; in a masked key nothing."""
    query, cache = queries(3, 6), cache_of("f8e4m3", [200, 77, 77], 200, K=2, H=64)
    cache.key[0, 5, 1, 3] = np.nan
    cache.value[1, 70, 0, 9] = -np.float32(np.nan)
    cache.key[2, 40, 0, 8] = np.nan
    query[2, 0, 4, 7] = np.inf
    mask = np.ones((3, 1, 1, 200), bool)
    mask[2, ..., 40] = False
    out, residual = run_cached(decode_matrix, query, cache, profile=here, mask=mask)
    spoiled = np.zeros(out.shape, bool)
    spoiled[0, 0, 3:] = True
    spoiled[1, 0, :3, 9] = True
    spoiled[2, 0, 4] = True
    assert (np.isnan(out) == spoiled).all()
    assert (np.isnan(residual) == spoiled.all(-1)).all()
    right, _ = reference_cached(query, cache, mask=mask)
    check(out[~spoiled], right[~spoiled])


@pytest.mark.grid
@pytest.mark.device
def test_every_number_of_a_byte(here: DeviceProfile) -> None:
    """All that float8_e5m2 can say but infinities and NaN, subnormal or large, as keys and as values, in pages."""
    cache = cache_of("f8e5m2", [256], 256, K=1, H=64, page_size=16)
    every = np.arange(256, dtype=np.uint8)
    every[(every & 0x7C) == 0x7C] = 0
    assert cache.pages is not None
    rows = np.resize(every, (64, 256)).T.reshape(16, 16, 64).view(ml_dtypes.float8_e5m2)
    cache.value[cache.pages[0], :, 0] = rows
    cache.key[cache.pages[0], :, 0, ::7] = rows[..., ::7]
    compare(queries(1, 3, dtype=float32) * np.float32(1e-5), cache, here, magnitude=57344.0)


@pytest.mark.grid
@pytest.mark.device
@DTYPE
@pytest.mark.parametrize("query_dtype", [float32, float16, bfloat16], ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize(("group", "H", "Hv"), [(4, 128, 128), (8, 64, 128), (12, 128, 64)])
def test_shares(dtype: str, query_dtype: Any, group: int, H: int, Hv: int, here: DeviceProfile) -> None:
    cache = cache_of(dtype, [600, 67], 600, K=2, H=H, Hv=Hv, page_size=8)
    compare(queries(2, 2 * group, H, query_dtype), cache, here)
    out, _ = run_cached(decode_matrix, queries(2, 2 * group, H, query_dtype), cache, profile=here, kept=False)
    check(out, reference_cached(queries(2, 2 * group, H, query_dtype), cache)[0])


@pytest.mark.grid
@pytest.mark.device
@DTYPE
@pytest.mark.parametrize("option", ["window", "bias", "softcap_sinks", "mask"])
def test_options(dtype: str, option: str, here: DeviceProfile) -> None:
    draw = np.random.default_rng(2)
    options: dict[str, Any] = {
        "window": {"window": 19},
        "bias": {"bias": 9 * draw.standard_normal((2, 6, 1, 136)).astype(np.float32)},
        "softcap_sinks": {"softcap": 2.0, "sinks": np.linspace(-1, 2, 6).astype(np.float32)},
        "mask": {"mask": draw.random((2, 1, 1, 136)) < 0.5},
    }[option]
    compare(queries(2, 6), cache_of(dtype, [130, 67], 136, K=2, H=64), here, **options)


@pytest.mark.device
def test_a_bias_beside_scales(here: DeviceProfile) -> None:
    """Logits are natural logarithms then, and so is what the unit of the sums follows."""
    bias = np.random.default_rng(3).standard_normal((1, 3, 1, 72)).astype(np.float32)
    compare(queries(1, 3), cache_of("i8", [72], 72, K=1, H=64), here, bias=bias)


@pytest.mark.parametrize("beside", [(), ("bias",)], ids=["base 2", "base e"])
def test_the_largest_weight_is_a_float16(beside: tuple[str, ...]) -> None:
    """A logit may lie SLACK above the maximum before that follows, to base 2, or to base e beside a bias."""
    problem = problem_of(Call(), beside, T=1, query=float16, cache=DTYPES["f8e4m3"])
    given = dict(decode_matrix.variant(problem, MATRICES).constants)
    base = np.e if given["NATURAL"] else 2.0
    assert given["NATURAL"] == bool(beside)
    assert 2.0**14 < given["LARGE"] * base ** given["SLACK"] < np.finfo(np.float16).max


@pytest.mark.grid
@pytest.mark.device
@pytest.mark.parametrize("factor", [0.0, 1e-30, 1e-3, 30.0])
def test_rows_of_any_size(factor: float, here: DeviceProfile) -> None:
    """A row is brought to a size of its own, whatever that of the others is."""
    query = queries(2, 4, dtype=float32)
    query[:, :, 1] *= np.float32(factor)
    query[:, :, 2, 7] *= np.float32(10)
    compare(query, cache_of("f8e4m3", [200, 77], 200, K=1, H=64), here)


@pytest.mark.grid
@pytest.mark.device
@DTYPE
@pytest.mark.parametrize("query_dtype", [float32, float16], ids=["f32", "f16"])
def test_many_keys(dtype: str, query_dtype: Any, here: DeviceProfile) -> None:
    """Values of one sign in one part: matrix units add without rounding."""
    query, cache = queries(1, 4, dtype=query_dtype), cache_of(dtype, [4096], 4096, K=1, H=64)
    cache.value[...] = np.abs(cache.value.astype(np.float32)).astype(cache.value.dtype)
    compare(query, cache, replace(here, tuned=(("workgroups", 1),)))


@DTYPE
def test_is_chosen(dtype: str) -> None:
    def chosen(profile: DeviceProfile, G: int = 4, T: int = 1, H: int = 128, **dtypes: Any) -> str:
        made = problem_of(FULL, T=T, G=G, H=H, Hv=H, **{"cache": DTYPES[dtype], "query": float16, **dtypes})
        return choose(made, profile).family

    assert chosen(MATRICES) == "decode_matrix"
    assert (
        chosen(MATRICES, G=2) == chosen(MATRICES, G=8, H=64) == chosen(MATRICES, H=64, query=float32) == "decode_matrix"
    )
    assert chosen(MATRICES, H=64) == ("decode_subgroups" if dtype == "i8" else "decode_matrix")
    assert chosen(MATRICES, query=float32) == "decode_matrix"
    assert chosen(MATRICES, G=1) == chosen(MATRICES, H=32) == "decode_subgroups"
    assert chosen(DISCRETE) == chosen(MATRICES, cache=float16) == chosen(MATRICES, cache=float32) == "decode_subgroups"
    assert chosen(replace(MATRICES, matrix=MATRICES.matrix[:1])) == "decode_subgroups"
    assert chosen(MATRICES, T=2) not in ("decode_matrix", "decode_subgroups")
