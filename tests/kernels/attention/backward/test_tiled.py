"""The tiled backward family: the tiles that GPUs get, their edges, and which device gets which."""

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.attention.backward.run_gradient import plan_of
from tests.kernels.attention.backward.test_gradients import compare, drawn
from tests.kernels.attention.problems import DISCRETE, MINIMUM
from tests.kernels.attention.run_attention import weak
from tests.kernels.attention.test_families import options_of
from wgattn import _runtime
from wgattn._kernels.attention.backward import launches, tiled
from wgattn._kernels.attention.backward.tiled import TILES, tile_of
from wgattn._kernels.kernel import Launch, Plan, Scratch
from wgattn._runtime.profile import DeviceProfile, Limits

SWEEPS = ("query", "key_value")


@pytest.mark.device
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("place", [*range(2), *(pytest.param(n, marks=pytest.mark.grid) for n in range(2, len(TILES)))])
def test_every_tile(place: int) -> None:
    """Each tile alone, as either sweep's: rows and keys that end inside it, on its edge and one past it."""
    tile = TILES[place]
    profile = weak(replace(_runtime.current_profile(), kind="discrete"))
    profile = replace(profile, tuned=tuple((f"backward_tiled_{by}_h16", place) for by in SWEEPS))
    T, S = 2 * tile.own + 1, 2 * tile.stream - 1
    compare(tiled, drawn(T=T, S=S, N=4, K=2, H=5, Hv=12), profile=profile, is_causal=True)


@pytest.mark.parametrize("H", [16, 64, 80, 128, 256])
@pytest.mark.parametrize("by", SWEEPS)
@pytest.mark.parametrize("profile", [MINIMUM, DISCRETE], ids=["minimum", "discrete"])
def test_every_device_has_a_tile(profile: DeviceProfile, by: str, H: int) -> None:
    """16 KiB of workgroup memory and 256 invocations serve every head dim; no thread sums more than registers hold."""
    problem = plan_of(tiled, *drawn(T=3, S=3, H=H), profile=profile).problem
    tile = tile_of(problem, profile, by)
    assert tile is not None
    assert tile.threads <= profile.limits.invocations
    assert tile.workgroup_bytes(problem.sweep) <= profile.limits.workgroup_bytes
    assert tile.registers(problem.sweep, by) <= tiled.MOST_REGISTERS


def test_weaker_devices_get_smaller_tiles() -> None:
    problem = plan_of(tiled, *drawn(T=3, S=3, H=64), profile=MINIMUM).problem
    sizes = []
    for kib in (32, 16, 12, 8, 6):
        tile = tile_of(problem, replace(DISCRETE, limits=Limits(workgroup_bytes=kib * 1024)), "key_value")
        assert tile is not None
        sizes.append(tile.workgroup_bytes(problem.sweep))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] <= 6 * 1024
    assert tile_of(problem, replace(DISCRETE, limits=Limits(workgroup_bytes=1024)), "key_value") is None


@pytest.mark.grid
@pytest.mark.device
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("option", ["causal", "segments", "bias", "key_lengths"])
def test_stages_that_are_read_at_once(option: str) -> None:
    """Where a thread sums so much that few fit a multiprocessor; rows past the last are copies there too."""
    profile = weak(replace(_runtime.current_profile(), kind="discrete"))
    arrays = drawn(B=2, T=70, S=75, H=128)
    problem = plan_of(tiled, *arrays, profile=profile).problem
    tile = tile_of(problem, profile, "key_value")
    assert tile is not None
    assert tile.at_once(problem.sweep, "key_value")
    compare(tiled, arrays, profile=profile, **options_of(2, 70, 75, 4)[option])


@pytest.mark.device
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("option", ["causal", "window", "bias", pytest.param("query_lengths", marks=pytest.mark.grid)])
def test_kept_scores(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query's gradient from gradients by scores, two heads kept at a time: of those that were written alone."""
    monkeypatch.setattr(launches, "KEPT_WORKGROUPS", 1)
    monkeypatch.setattr(tiled, "KEPT_SHARE", 1)
    monkeypatch.setattr(tiled, "MOST_KEPT", 2 * 2 * 128 * 75 * 4)
    profile = weak(replace(_runtime.current_profile(), kind="discrete"))
    arrays, options = drawn(B=2, T=70, S=75, N=4, K=2), options_of(2, 70, 75, 4)[option]
    names = _names(plan_of(tiled, *arrays, profile=profile, **options).plan)
    assert sum("from_scores" in name for name in names) == 2
    compare(tiled, arrays, profile=profile, **options)


@pytest.mark.parametrize(
    ("B", "T", "N", "K", "H", "kept"),
    [(4, 4096, 16, 16, 64, True), (4, 4096, 16, 16, 128, True), (2, 4096, 8, 2, 64, False), (1, 2048, 8, 8, 64, False)],
)
def test_when_scores_are_kept(B: int, T: int, N: int, K: int, H: int, kept: bool) -> None:
    """A quarter of all scores at most, which are enough workgroups; long launches' heads are fewer, not their rows."""
    shapes = [(B, T, heads, H) for heads in (N, N, K, K)]
    arrays = tuple(np.broadcast_to(np.zeros((), np.float32), shape) for shape in shapes)
    saved = arrays[0], np.broadcast_to(np.zeros((), np.float32), (B, T, N))
    plan = plan_of(tiled, *arrays, profile=DISCRETE, is_causal=True, saved=saved).plan
    assert any("from_scores" in name for name in _names(plan)) == kept
    scores = plan.scratch.get("kept_scores", Scratch(0))
    assert isinstance(scores, Scratch)
    assert scores.nbytes <= B * N * T * T


def _names(plan: Plan) -> list[str]:
    return [step.variant.name for step in plan.steps if isinstance(step, Launch)]
