"""The choice of a backward family: the first that serves the problem and suits the device; why others were passed."""

from collections.abc import Mapping
from types import ModuleType

from wgattn._errors import UnsupportedError
from wgattn._kernels.attention.backward import lanes, plain, tiled
from wgattn._kernels.attention.backward.problem import GradientProblem
from wgattn._kernels.attention.problem import Call
from wgattn._kernels.kernel import Operand, Plan, Variant
from wgattn._runtime.profile import DeviceProfile

# Fastest first. Each is a module with name, supports, suits, variant and plan; plain takes what nothing else takes.
FAMILIES: tuple[ModuleType, ...] = (lanes, tiled, plain)


def choose_backward(problem: GradientProblem, profile: DeviceProfile, implementation: str | None = None) -> Variant:
    """The variant that stands for the family that serves `problem`, and why. Pure: equal arguments, equal choice.

    `implementation` names a backward family; raises UnsupportedError where it cannot serve the problem.
    """
    if implementation is not None:
        family = _family(implementation)
        support = family.supports(problem, profile)
        if not support:
            raise UnsupportedError(
                f"implementation {implementation!r} cannot serve this gradient: {support.reason}; "
                f"use implementation=None"
            )
        return family.variant(problem, profile).because((), f"asked for by implementation={implementation!r}")
    passed = []
    for family in FAMILIES:
        support = family.supports(problem, profile) and family.suits(problem, profile)
        if support:
            return family.variant(problem, profile).because(tuple(passed))
        passed.append((family.name, support.reason))
    raise AssertionError("plain serves every problem")


def plan(
    problem: GradientProblem, variant: Variant, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile
) -> Plan:
    """The launches of a backward call with the chosen variant's family; `plan_gradient` says which operands."""
    return _family(variant.family).plan(problem, call, operands, profile)


def _family(name: str) -> ModuleType:
    for family in FAMILIES:
        if family.name == name:
            return family
    known = ", ".join(family.name for family in FAMILIES)
    raise UnsupportedError(f"there is no backward family {name!r}; the families are {known}")
