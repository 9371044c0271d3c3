"""Every attention family against the float64 reference, option by option, at sizes that cross its tile edges."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.kernels.attention.problems import problem_of
from tests.kernels.attention.run_attention import reference, run, weak
from tests.tolerance import check, check_residual
from wgattn import _runtime
from wgattn._dtypes import bfloat16, float16, float32
from wgattn._kernels.attention.choose import FAMILIES
from wgattn._kernels.attention.problem import Call
from wgattn._kernels.rotation import Rope

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("poisoned")]


def serves(family: ModuleType, T: int) -> bool:
    """The single-query families take one query row."""
    return T == 1 or not family.name.startswith("decode")


def inputs(B=1, T=19, S=37, N=4, K=2, H=32, Hv=None, dtype=float32, seed=0) -> tuple[np.ndarray, ...]:
    draw = np.random.default_rng(seed)
    shapes = ((B, T, N, H), (B, S, K, H), (B, S, K, Hv or H))
    return tuple(draw.standard_normal(shape, dtype=np.float32).astype(dtype) for shape in shapes)


def refused_here(family: ModuleType) -> bool:
    """Whether the device is a GPU and the family for CPU adapters; it has to say so, whatever the call is."""
    profile = _runtime.current_profile()
    if family.name not in ("flash_rows", "decode_lanes") or profile.is_cpu:
        return False
    assert "is for CPU adapters" in family.supports(problem_of(Call(), T=1), profile).reason
    return True


def compare(family: ModuleType, arrays: tuple[np.ndarray, ...], **options: Any) -> None:
    if refused_here(family):
        return
    out, residual = run(family, *arrays, **options)
    right, right_residual = reference(*arrays, **options)
    check(out, right, S=arrays[1].shape[1])
    check_residual(residual, right_residual)


def options_of(B: int, T: int, S: int, N: int) -> dict[str, dict[str, Any]]:
    draw = np.random.default_rng(7)
    mask = draw.random((B, 1, T, S)) < 0.6
    mask[:, :, -1] = False
    bias = draw.standard_normal((1, N, T, S)).astype(np.float32)
    infinite = bias.copy()
    infinite[..., ::3] = -np.inf
    low = np.full((1, 1, T, S), np.finfo(np.float32).min, np.float32)
    lengths = np.linspace(0, S + 2, B).astype(np.int32) if B > 1 else np.array([S - 2], np.int32)
    return {
        "full": {},
        "causal": {"is_causal": True},
        "window": {"window": (5, 3)},
        "causal_window": {"is_causal": True, "window": (6, 0)},
        "window_past": {"window": (4, -2)},
        "bias": {"bias": bias},
        "bias_infinite": {"bias": infinite},
        "bias_low": {"bias": low},
        "bias_f16": {"bias": bias.astype(np.float16)},
        "mask": {"mask": mask},
        "mask_none": {"mask": np.zeros((1, 1, 1, S), bool)},
        "key_lengths": {"key_value_lengths": lengths},
        "query_lengths": {"query_lengths": np.minimum(lengths, T).astype(np.int32), "is_causal": True},
        "offset": {"query_offset": np.arange(B, dtype=np.int32) * 3 - 1, "is_causal": True},
        "softcap": {"softcap": 1.5},
        "softcap_bias": {"softcap": 2.0, "bias": bias},
        "sinks": {"sinks": np.linspace(-1, 2, N).astype(np.float32), "is_causal": True},
        "sinks_empty": {"sinks": np.linspace(-1, 2, N).astype(np.float32), "key_value_lengths": np.zeros(B, np.int32)},
        "scale": {"scale": 0.3},
        "rope": {"rope": Rope(), "is_causal": True},
        "rope_offset": {"rope": Rope(rotary_dim=8), "query_offset": np.full(B, 70_000, np.int32)},
        "rope_interleaved": {"rope": Rope(style="interleaved", rotary_dim=6)},
        "rope_odd": {"rope": Rope(rotary_dim=6)},
        "segments": {
            "query_segments": np.sort(draw.integers(0, 3, (B, T)).astype(np.int32), -1),
            "key_segments": np.sort(draw.integers(0, 4, (B, S)).astype(np.int32), -1),
            "is_causal": True,
        },
    }


OPTIONS = tuple(options_of(1, 1, 4, 1))
# What multiplies float16 alone, on devices that few have, has tests of its own.
EVERYWHERE = tuple(family for family in FAMILIES if not family.name.endswith("_matrix"))
FAMILY = pytest.mark.parametrize("family", EVERYWHERE, ids=[family.name for family in EVERYWHERE])


@FAMILY
@pytest.mark.parametrize("option", OPTIONS)
def test_option(family: ModuleType, option: str) -> None:
    """Each option alone, two batch entries, a ragged last tile."""
    T = 19 if serves(family, 19) else 1
    compare(family, inputs(B=2, T=T), **options_of(2, T, 37, 4)[option])


@FAMILY
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("H", [32, 33])
def test_half_precision(family: ModuleType, dtype: np.dtype, H: int) -> None:
    """16-bit rows, vectorised and not; an odd row is padded to whole words."""
    T = 19 if serves(family, 19) else 1
    compare(family, inputs(T=T, H=H, dtype=dtype), is_causal=True)


@FAMILY
@pytest.mark.parametrize(("T", "S"), [(1, 1), (8, 9), (33, 64), (65, 130)])
@pytest.mark.parametrize(("N", "K"), [(1, 1), (6, 2), (8, 1)])
def test_sizes(family: ModuleType, T: int, S: int, N: int, K: int) -> None:
    T = T if serves(family, T) else 1
    compare(family, inputs(T=T, S=S, N=N, K=K, H=16), is_causal=True)


@FAMILY
@pytest.mark.parametrize(("H", "Hv"), [(1, 1), (5, 3), (40, 64), (128, 20), (256, 256), (8, 200)])
def test_head_dims(family: ModuleType, H: int, Hv: int) -> None:
    T = 9 if serves(family, 9) else 1
    compare(family, inputs(T=T, S=21, H=H, Hv=Hv))


@FAMILY
@pytest.mark.parametrize(
    "option", ["full", "causal", "mask", "mask_none", "key_lengths", "bias", "sinks_empty", "segments", "rope"]
)
def test_split_by_binding_limit(family: ModuleType, option: str) -> None:
    """K and V larger than a binding are bound as ranges of keys and merged; Q, out and bias as ranges of rows."""
    T = 70 if serves(family, 70) else 1
    B, S = 2, 300
    profile = weak(_runtime.current_profile(), binding_bytes=48 * 1024)
    compare(family, inputs(B=B, T=T, S=S, H=64), profile=profile, **options_of(B, T, S, 4)[option])


@pytest.mark.parametrize(
    ("family", "option"),
    [(family, option) for option in ("window", "segments") for family in EVERYWHERE[:-1]],
    ids=lambda given: given if isinstance(given, str) else given.name,
)
def test_tiles_outside_the_kept_keys_are_not_loaded(family: ModuleType, option: str) -> None:
    """Loaded, a NaN of V would reach the sums: 0 · NaN. Plain is left out: it reads no value of weight 0."""
    if refused_here(family):
        return
    T, S = (16 if serves(family, 16) else 1), 1000
    query, key, value = inputs(T=T, S=S, H=16)
    key[:, :250] = value[:, :250] = np.nan
    options: dict[str, Any] = {
        "query_segments": np.full((1, T), 2, np.int32),
        "key_segments": np.repeat(np.arange(4, dtype=np.int32), 250)[None],
    }
    if option == "window":
        key[:, 900:] = value[:, 900:] = np.nan
        options = {"window": (250, 0), "query_offset": np.array([880], np.int32)}
    out, residual = run(family, query, key, value, **options)
    assert np.isfinite(out).all()
    assert np.isfinite(residual).all()


@FAMILY
@pytest.mark.parametrize("option", ["full", "query_lengths", "bias", "key_lengths"])
def test_sinks_of_each_batch_entry(family: ModuleType, option: str) -> None:
    """(B, N), alone in their binding or behind others; whole, and in parts that are merged."""
    T = 35 if serves(family, 35) else 1
    sinks = np.linspace(-2, 4, 12, dtype=np.float32).reshape(3, 4)
    compare(family, inputs(B=3, T=T), sinks=sinks, **options_of(3, T, 37, 4)[option])
    profile = weak(_runtime.current_profile(), binding_bytes=48 * 1024)
    arrays = inputs(B=3, T=T, S=300, H=64)
    compare(family, arrays, sinks=sinks, profile=profile, **options_of(3, T, 300, 4)[option])


@FAMILY
def test_many_workgroups(family: ModuleType) -> None:
    """A grid that must be folded."""
    profile = weak(_runtime.current_profile(), workgroups_per_dimension=37)
    T = 70 if serves(family, 70) else 1
    compare(family, inputs(B=5, T=T, S=20, H=16), profile=profile)


@FAMILY
def test_float32_query_of_a_float16_cache(family: ModuleType) -> None:
    query, key, value = inputs(T=1, S=50)
    compare(family, (query, key.astype(np.float16), value.astype(np.float16)))
