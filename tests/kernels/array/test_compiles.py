"""Every variant of the array kernels is WGSL that the device's compiler takes."""

import pytest

from wgattn import _runtime
from wgattn._kernels.compose import compose
from wgattn._kernels.kernel import Launch

from .grid import every_plan

pytestmark = pytest.mark.device


def test_every_variant_compiles():
    made = _runtime.device()
    plans = every_plan(made.profile)
    variants = {step.variant.name: step.variant for plan in plans for step in plan.steps if isinstance(step, Launch)}
    for name, variant in variants.items():
        made.provider.shader_module(made.native, compose(variant, made.profile.provider), name)
