"""Every variant of the grid, composed and compiled by the shader compiler, without a launch."""

from functools import cache

import pytest

from tests.kernels.attention.problems import PROFILES, grid
from wgattn import _runtime
from wgattn._kernels.attention.choose import FAMILIES
from wgattn._kernels.compose import compose
from wgattn._kernels.kernel import Variant

pytestmark = pytest.mark.device


@cache
def variants() -> dict[str, Variant]:
    found = {}
    for _, problem in grid():
        for profile in PROFILES.values():
            for family in FAMILIES:
                if family.supports(problem, profile):
                    for partial in (False, True):
                        variant = family.variant(problem, profile, partial)
                        found[variant.name] = variant
    return found


@pytest.mark.grid
@pytest.mark.parametrize("name", sorted(variants()))
def test_compiles(name: str) -> None:
    variant = variants()[name]
    device = _runtime.device()
    provider = device.provider
    source = compose(variant, provider.name)
    assert provider.shader_module(device.native, source, name) is not None
