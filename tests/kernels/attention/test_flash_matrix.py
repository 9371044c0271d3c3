"""flash_matrix where the device has matrix units, and its emulation in plain WGSL on every device."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.attention.problems import CALLS, DISCRETE, MATRICES, problem_of
from tests.kernels.attention.run_attention import reference, run, slow
from tests.kernels.attention.test_families import OPTIONS, compare, inputs, options_of
from tests.tolerance import check
from wgattn._dtypes import bfloat16, float16, float32
from wgattn._kernels.attention import flash_matrix
from wgattn._kernels.attention.flash_matrix import Tile
from wgattn._runtime.profile import DeviceProfile

SMALL = Tile(2, 16)  # few products: what is emulated compiles slowly


@pytest.fixture(autouse=True)
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_matrix, "TILES", (getattr(request, "param", SMALL),))


@pytest.fixture
def here(here: DeviceProfile) -> DeviceProfile:
    """With one workgroup that fills it, so that keys are split where a test says so."""
    return replace(here, tuned=(("workgroups", 1),))


def half(**sizes: int) -> tuple[np.ndarray, ...]:
    return inputs(**({"B": 2, "T": 35, "S": 70, "H": 16, "dtype": float16} | sizes))


@pytest.mark.device
@pytest.mark.parametrize("option", OPTIONS)
def test_option(option: str, here: DeviceProfile) -> None:
    """Each option alone, with ragged last tiles; the float32 residual is held to its tolerance under RoPE too."""
    compare(flash_matrix, half(), profile=here, **options_of(2, 35, 70, 4)[option])


@pytest.mark.device
@pytest.mark.parametrize(
    "small",
    [Tile(1, 16, blocks=2), Tile(2, 32, slots=2), Tile(3, 16, steps=2)],
    indirect=True,
    ids=str,
)
@pytest.mark.parametrize("option", ["causal", "segments", "key_lengths"])
def test_tiles(option: str, here: DeviceProfile) -> None:
    """Several matrices exchanged at once, several steps staged at once, several blocks of rows."""
    compare(flash_matrix, half(T=97), profile=here, **options_of(2, 97, 70, 4)[option])


@pytest.mark.device
@pytest.mark.parametrize(("H", "Hv"), [(20, 33), (32, 16), (7, 8), (24, 40)])
def test_head_dims(H: int, Hv: int, here: DeviceProfile) -> None:
    """Padded rows, in words of eight elements and others, rows that start inside a word, and Hv that differs."""
    compare(flash_matrix, half(H=H, Hv=Hv), profile=here, is_causal=True)


@pytest.mark.device
@pytest.mark.parametrize("T", [2, 7, 16])
def test_few_rows(T: int, here: DeviceProfile) -> None:
    """Heads of a group share a tile."""
    compare(flash_matrix, half(T=T, N=6, K=2), profile=here, **options_of(2, T, 70, 6)["bias"])


@pytest.mark.device
@pytest.mark.parametrize("option", ["causal", "sinks_empty", "mask_none", "query_lengths"])
def test_parts(option: str, here: DeviceProfile) -> None:
    """Parts of the keys at once, then merged; and long calls that are cut."""
    options = options_of(2, 20, 1300, 4)[option]
    compare(flash_matrix, half(T=20, S=1300), profile=replace(here, tuned=()), **options)
    compare(flash_matrix, half(), profile=slow(here, 200_000), **options_of(2, 35, 70, 4)[option])


@pytest.mark.device
def test_maxima_that_grow(here: DeviceProfile) -> None:
    """Logits that rise with every key rescale the sums again and again; some pass what float16 holds."""
    query, key, value = half(B=1, S=200)
    query[..., 0], key[..., 0] = 40, (np.arange(200) * 3)[None, :, None]
    for options in ({"is_causal": True}, {"scale": 5.0}):
        out, residual = run(flash_matrix, query, key, value, profile=here, **options)
        right, right_residual = reference(query, key, value, **options)
        check(out, right)
        assert np.abs(residual / right_residual - 1).max() < 1e-5


@pytest.mark.device
def test_nan_stays_in_its_row(here: DeviceProfile) -> None:
    """A NaN in q spoils its own row and head; keys past the length nothing."""
    query, key, value = half(S=90)
    query[1, 17, 1, 3] = np.nan
    key[:, 64:] = value[:, 64:] = np.nan
    out, _ = run(flash_matrix, query, key, value, profile=here, key_value_lengths=np.array([64, 64], np.int32))
    spoiled = np.zeros(out.shape[:3], bool)
    spoiled[1, 17, 1] = True
    assert np.isnan(out[spoiled]).all()
    assert np.isfinite(out[~spoiled]).all()


def reason(profile: DeviceProfile = MATRICES, **sizes: Any) -> str:
    call, beside = CALLS["causal"]
    dtypes = {"query": float16, "cache": float16} | sizes
    return flash_matrix.supports(problem_of(call, beside, **dtypes), profile).reason


def test_reasons() -> None:
    """What is not served is told apart: the device, its matrices, its subgroups, the call."""
    assert reason() == ""
    assert "no matrix units" in reason(DISCRETE)
    assert "f16-f32-16x16x16" in reason(replace(MATRICES, matrix=("f16-f16-8x8x8",)))
    assert "32 to 64 lanes" in reason(replace(MATRICES, subgroup_most=64))
    assert "shader-f16" in reason(replace(MATRICES, f16=False))
    assert "not f32" in reason(query=float32, cache=float32)
    assert "not bf16" in reason(query=bfloat16, cache=bfloat16)
    widened = replace(problem_of(*CALLS["causal"], query=float16, cache=float16), out_dtype=float32)
    assert "a result of f32 would show" in flash_matrix.supports(widened, MATRICES).reason
    assert "T from 2 on" in reason(T=1)
    assert "head dims above 256" in reason(H=300, Hv=300)
