"""Every shader of a grid of backward plans, without a device: composed, named apart, in least limits. The choice."""

from dataclasses import replace
from itertools import product
from types import ModuleType

import numpy as np
import pytest

from tests.kernels.attention.backward.run_gradient import plan_of
from tests.kernels.attention.backward.test_gradients import OF_EVERY_DTYPE as FAMILIES
from tests.kernels.attention.backward.test_gradients import drawn
from tests.kernels.attention.test_families import options_of
from wgattn._dtypes import bfloat16, float16, float32
from wgattn._errors import UnsupportedError
from wgattn._kernels.attention.backward import lanes
from wgattn._kernels.attention.backward.choose import choose_backward
from wgattn._kernels.attention.backward.problem import GradientProblem
from wgattn._kernels.compose import compose
from wgattn._kernels.kernel import Launch, Variant
from wgattn._kernels.rotation import Rope
from wgattn._runtime.profile import DeviceProfile, Limits

LEAST = DeviceProfile()
CPU = DeviceProfile(kind="cpu", subgroups=True, subgroup_size=8)
EVERY = ("bias", "mask", "key_lengths", "query_lengths", "offset", "softcap", "sinks", "scale", "rope")


def variants(family: ModuleType) -> list[Variant]:
    options = options_of(2, 19, 37, 4)
    together = {name: value for option in EVERY for name, value in options[option].items()}
    calls = [(drawn(B=2), each) for each in (*options.values(), together)]
    for dtype, H in product((float16, bfloat16, float32), (33, 40, 64)):
        calls.append((drawn(H=H, dtype=dtype), {"bias": np.zeros((1, 4, 19, 37), dtype), "is_causal": True}))
        calls.append((drawn(H=H, Hv=8, dtype=dtype), {"rope": Rope(rotary_dim=6), "softcap": 2.0}))
        calls.append((drawn(H=H, Hv=7, dtype=dtype), {"bias": np.zeros((1, 1, 19, 37), np.float32)}))
    profile = CPU if family is lanes else LEAST
    plans = [plan_of(family, *arrays, profile=profile, **each).plan for arrays, each in calls]
    return [step.variant for plan in plans for step in plan.steps if isinstance(step, Launch)]


@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_equal_names_mean_equal_shaders(family: ModuleType) -> None:
    known: dict[str, str] = {}
    for variant in variants(family):
        source = compose(variant)
        assert known.setdefault(variant.name, source) == source, variant.name
        assert len(variant.bindings) <= LEAST.limits.storage_buffers, variant.name
        assert variant.workgroup_bytes <= LEAST.limits.workgroup_bytes, variant.name
    assert len(known) > 40


def problem_of(**sizes: int) -> GradientProblem:
    return plan_of(FAMILIES[-1], *drawn(**sizes), profile=LEAST).problem


def test_the_choice() -> None:
    """Lanes on CPU adapters, tiles where workgroup memory is fast and large enough; plain takes the rest."""
    on_gpu = choose_backward(problem_of(), DeviceProfile(kind="discrete"))
    assert (on_gpu.family, [name for name, _ in on_gpu.passed]) == (
        "backward_tiled",
        ["backward_lanes", "backward_matrix"],
    )
    assert choose_backward(problem_of(), CPU).family == "backward_lanes"
    for bare in (replace(CPU, subgroup_size=None), replace(CPU, limits=Limits(storage_textures=3))):
        without = choose_backward(problem_of(), bare)
        passed = [name for name, _ in without.passed]
        assert (without.family, passed) == ("backward_plain", ["backward_lanes", "backward_matrix", "backward_tiled"])
    assert choose_backward(problem_of(H=300, S=5, T=5), DeviceProfile()).family == "backward_plain"
    assert (
        choose_backward(problem_of(H=256), DeviceProfile(limits=Limits(workgroup_bytes=4096))).family
        == "backward_plain"
    )
    assert choose_backward(problem_of(), DeviceProfile(), "backward_plain").family == "backward_plain"


def test_a_family_that_cannot_serve() -> None:
    with pytest.raises(UnsupportedError, match="head dims above 256"):
        choose_backward(problem_of(H=300, S=5, T=5), LEAST, "backward_tiled")
    with pytest.raises(UnsupportedError, match="head dims up to 256"):
        choose_backward(problem_of(H=300, S=5, T=5), CPU, "backward_lanes")
    with pytest.raises(UnsupportedError, match="for CPU adapters"):
        choose_backward(problem_of(), LEAST, "backward_lanes")
    with pytest.raises(UnsupportedError, match="backward_plain"):
        choose_backward(problem_of(), LEAST, "flash_tiled")


def test_causal_sweeps_of_few_keys_are_planned_once() -> None:
    """Sums that fit a binding need no range of keys or rows beside the whole."""
    made = plan_of(FAMILIES[-1], *drawn(T=64, S=64, H=64), profile=LEAST, is_causal=True)
    assert len([step for step in made.plan.steps if isinstance(step, Launch)]) == 6
