"""Every value that a family names for tuning gives right results."""

from dataclasses import replace
from types import ModuleType

import pytest

from tests.kernels.attention.problems import problem_of
from tests.kernels.attention.test_families import compare, inputs
from wgattn import _runtime
from wgattn._kernels.attention import decode, decode_lanes, decode_subgroups, flash_rows, flash_tiled
from wgattn._kernels.attention.problem import Call

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("poisoned")]
LANES = flash_rows, decode_lanes
CALLS = [(flash_tiled, 3), (decode, 1), (decode_subgroups, 1), (flash_rows, 3), (decode_lanes, 1)]


@pytest.mark.parametrize(("family", "T"), CALLS, ids=[f"{family.name}-{T}" for family, T in CALLS])
def test_every_candidate(family: ModuleType, T: int) -> None:
    profile = replace(_runtime.current_profile(), tuned=())
    if family not in LANES:
        profile = replace(profile, kind="discrete")
    problem = problem_of(Call(), T=T, G=3, H=32, Hv=32)
    found = family.candidates(problem, profile)
    assert len(found) > 1
    arrays = inputs(B=2, T=T, S=1300, N=6, K=2, H=32)
    for constant in found:
        compare(family, arrays, profile=replace(profile, tuned=(constant,)), is_causal=T > 3)
