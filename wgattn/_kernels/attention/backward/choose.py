"""The choice of a backward family: the first that serves the problem and suits the device; why others were passed."""

from collections.abc import Mapping

from wgattn._kernels.attention.backward import lanes, matrix, plain, tiled
from wgattn._kernels.attention.backward.problem import GradientProblem
from wgattn._kernels.attention.families import Family, named, pick
from wgattn._kernels.attention.problem import Call
from wgattn._kernels.kernel import Operand, Plan, Variant
from wgattn._runtime.profile import DeviceProfile

# Fastest first; plain takes what nothing else takes.
FAMILIES: tuple[Family, ...] = (lanes, matrix, tiled, plain)


def choose_backward(problem: GradientProblem, profile: DeviceProfile, implementation: str | None = None) -> Variant:
    """The variant that stands for the family that serves `problem`, and why. Pure: equal arguments, equal choice.

    `implementation` names a backward family; raises UnsupportedError where it cannot serve the problem.
    """
    return pick(FAMILIES, problem, profile, implementation)


def plan(
    problem: GradientProblem, variant: Variant, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile
) -> Plan:
    """The launches of a backward call with the chosen variant's family; `plan_gradient` says which operands."""
    return named(FAMILIES, variant.family).plan(problem, call, operands, profile)
