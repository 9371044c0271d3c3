"""Edges of decode and flash_tiled: every tile and share that a device may get, splits, groups, groups of workgroups."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.kernels.attention.run_attention import run, slow, weak
from tests.kernels.attention.test_families import compare, inputs, options_of
from wgattn import _runtime
from wgattn._dtypes import float16
from wgattn._kernels.attention import decode, flash_tiled, plain
from wgattn._kernels.rotation import Rope
from wgattn._runtime.profile import DeviceProfile

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("poisoned")]


def gpu(**limits: int) -> DeviceProfile:
    """This device's profile as a GPU's: few rows are split over many workgroups."""
    return weak(replace(_runtime.current_profile(), kind="discrete"), **limits)


def tuned(**values: int) -> DeviceProfile:
    return replace(gpu(), tuned=tuple(values.items()))


@pytest.mark.parametrize("place", range(len(flash_tiled.TILES)))
def test_every_tile(place: int) -> None:
    """Each tile alone: rows and keys that end inside it, on its edge and one past it."""
    tile = flash_tiled.TILES[place]
    T, S = 2 * tile.q + 1, max(4 * tile.k - 1, 17)
    arrays = inputs(T=max(T, 17), S=S, N=2, K=1, H=20, Hv=52)
    compare(flash_tiled, arrays, profile=tuned(flash_tiled_h32=place, workgroups=1), is_causal=True)


@pytest.mark.parametrize(("T", "S"), [(64, 32), (64, 33), (65, 31), (128, 64), (127, 97)])
def test_tile_edges(T: int, S: int) -> None:
    compare(flash_tiled, inputs(T=T, S=S, N=2, K=1, H=64), is_causal=True)


@pytest.mark.parametrize("H", [64, 128, 192, 256])
def test_least_device(H: int) -> None:
    """16 KiB of workgroup memory and 256 invocations serve every head dim."""
    least = gpu(workgroup_bytes=16384, invocations=256)
    compare(flash_tiled, inputs(T=37, S=41, N=2, K=1, H=H), profile=least, is_causal=True)
    compare(decode, inputs(T=1, S=300, N=16, K=2, H=H), profile=least)


@pytest.mark.parametrize("option", ["window", "bias", "mask_none", "segments", "key_lengths", "sinks_empty", "rope"])
@pytest.mark.parametrize("T", [2, 7, 16])
def test_few_rows(T: int, option: str) -> None:
    """Few query rows: heads of a group share a tile."""
    options = options_of(2, T, 41, 6)[option]
    compare(flash_tiled, inputs(B=2, T=T, S=41, N=6, K=2, H=16), **options)


@pytest.mark.parametrize(
    "option", ["full", "causal", "mask", "key_lengths", "sinks_empty", "segments", "query_lengths"]
)
@pytest.mark.parametrize(
    ("family", "T"), [(flash_tiled, 33), (flash_tiled, 3), (decode, 1)], ids=["many", "few", "one"]
)
def test_split_over_workgroups(family: ModuleType, T: int, option: str) -> None:
    """Few rows and many keys: parts of the keys are worked on at once, then merged."""
    B, S = 2, 1300
    options = options_of(B, T, S, 4)[option]
    compare(family, inputs(B=B, T=T, S=S, H=16), profile=gpu(), **options)


@pytest.mark.parametrize(
    ("family", "T"), [(flash_tiled, 70), (flash_tiled, 3), (decode, 1), (plain, 5)], ids=["many", "few", "one", "plain"]
)
@pytest.mark.parametrize("option", ["causal", "sinks_empty", "query_lengths"])
def test_long_calls_are_cut(family: ModuleType, T: int, option: str) -> None:
    """What would hold a device for long is several dispatches, of which each has its own rows and heads."""
    arrays, options = inputs(B=3, T=T, S=90, N=6, K=2, H=16), options_of(3, T, 90, 6)[option]
    for most in (200_000, 1):
        compare(family, arrays, profile=slow(gpu(), most), **options)


@pytest.mark.parametrize(("family", "T"), [(flash_tiled, 3), (decode, 1)], ids=["few", "one"])
def test_sinks_of_each_batch_entry_in_parts(family: ModuleType, T: int) -> None:
    """Parts of the keys at once, then merged; and cut into launches that begin at other heads and entries."""
    sinks = np.linspace(-2, 4, 18, dtype=np.float32).reshape(3, 6)
    compare(family, inputs(B=3, T=T, S=1300, N=6, K=2, H=16), profile=gpu(), sinks=sinks)
    compare(family, inputs(B=3, T=T, S=90, N=6, K=2, H=16), profile=slow(gpu(), 1), sinks=sinks)


@pytest.mark.parametrize(("N", "K"), [(3, 1), (8, 1), (9, 1), (24, 2), (40, 1)])
def test_decode_groups(N: int, K: int) -> None:
    """Groups of any size: blocks of at most eight heads."""
    compare(decode, inputs(T=1, S=150, N=N, K=K, H=16, Hv=48), sinks=np.linspace(-1, 1, N).astype(np.float32))


@pytest.mark.parametrize("S", [1, 127, 128, 129, 255, 256, 257, 600])
@pytest.mark.parametrize("H", [16, 80, 128])
def test_decode_tile_edges(S: int, H: int) -> None:
    compare(decode, inputs(T=1, S=S, H=H, dtype=float16), profile=tuned(workgroups=1))


@pytest.mark.parametrize("Hv", [16, 48, 80, 160, 192, 256])
def test_decode_value_dims(Hv: int) -> None:
    """Value rows that do not divide a workgroup leave threads idle."""
    compare(decode, inputs(T=1, S=140, N=2, K=1, H=16, Hv=Hv))


def test_decode_rope_at_the_end_of_a_cache() -> None:
    S = 300
    options: dict[str, Any] = {"rope": Rope(), "query_offset": np.array([S - 1], np.int32), "is_causal": True}
    compare(decode, inputs(T=1, S=S), profile=gpu(), **options)


def test_decode_of_a_large_batch() -> None:
    """More rows than a side of a grid may have; each is one workgroup."""
    B = 70_000
    draw = np.random.default_rng(0)
    query = draw.standard_normal((B, 1, 1, 4), dtype=np.float32)
    key, value = (draw.standard_normal((B, 2, 1, 4), dtype=np.float32) for _ in range(2))
    out, _ = run(decode, query, key, value, profile=gpu())
    logits = np.einsum("bnh,bsnh->bns", query[:, 0], key) / 2
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    right = np.einsum("bns,bsnh->bnh", weights / weights.sum(-1, keepdims=True), value)
    assert np.abs(out[:, 0] - right).max() < 2e-5


@pytest.mark.parametrize(("family", "T"), [(flash_tiled, 70), (decode, 1)], ids=["flash_tiled", "decode"])
def test_nan_past_the_length(family: ModuleType, T: int) -> None:
    """What lies past the length of a cache reaches nothing."""
    query, key, value = inputs(B=2, T=T, S=90)
    lengths = np.array([5, 64], np.int32)
    for b, length in enumerate(lengths):
        key[b, length:] = value[b, length:] = np.nan
    out, residual = run(family, query, key, value, key_value_lengths=lengths)
    assert np.isfinite(out).all()
    assert np.isfinite(residual).all()


@pytest.mark.parametrize(("family", "T"), [(flash_tiled, 70), (decode, 1)], ids=["flash_tiled", "decode"])
def test_nan_stays_in_its_row(family: ModuleType, T: int) -> None:
    """A NaN in q spoils its own row and head; one in a masked key nothing."""
    query, key, value = inputs(B=2, T=T, S=90)
    query[1, T // 2, 1, 3] = np.nan
    mask = np.ones((1, 1, 1, 90), bool)
    mask[..., 40] = False
    key[:, 40] = np.nan
    out, _ = run(family, query, key, value, mask=mask)
    spoiled = np.zeros(out.shape[:3], bool)
    spoiled[1, T // 2, 1] = True
    assert np.isnan(out[spoiled]).all()
    assert np.isfinite(out[~spoiled]).all()
