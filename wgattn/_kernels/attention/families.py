"""How one of several families of kernels is picked, forward and backward alike: the first that serves and suits."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from wgattn._errors import UnsupportedError
from wgattn._kernels.attention.problem import Call
from wgattn._kernels.kernel import Operand, Plan, Support, Variant
from wgattn._runtime.profile import DeviceProfile, Tuned


class Family(Protocol):
    """What a family's module holds; a problem is an AttentionProblem or a GradientProblem.

    `supports` is about ability, and binds a call that names the family; `suits` is about speed, and guides the choice.
    `candidates` are the constants that may be tuned for a problem, by name, each with every value worth a trial.
    """

    name: str

    def supports(self, problem: Any, profile: DeviceProfile) -> Support: ...
    def suits(self, problem: Any, profile: DeviceProfile) -> Support: ...
    def candidates(self, problem: Any, profile: DeviceProfile) -> Tuned: ...
    def variant(self, problem: Any, profile: DeviceProfile) -> Variant: ...
    def plan(self, problem: Any, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile) -> Plan: ...


def pick(families: Sequence[Family], problem: Any, profile: DeviceProfile, implementation: str | None) -> Variant:
    """The variant of the first family that serves `problem` and suits the device, or of the one that is named.

    Raises UnsupportedError where a named family cannot serve the problem, or none can.
    """
    if implementation is not None:
        family = named(families, implementation)
        support = family.supports(problem, profile)
        if not support:
            raise UnsupportedError(
                f"implementation {implementation!r} cannot serve this call: {support.reason}; use implementation=None"
            )
        told = f"asked for by implementation={implementation!r}" + tuned_words(family, problem, profile)
        return family.variant(problem, profile).because((), told)
    passed = []
    for family in families:
        support = family.supports(problem, profile) and family.suits(problem, profile)
        if support:
            variant = family.variant(problem, profile)
            return variant.because(tuple(passed), variant.reason + tuned_words(family, problem, profile))
        passed.append((family.name, support.reason))
    reasons = "; ".join(f"{name}: {reason}" for name, reason in passed)
    raise UnsupportedError(f"no attention family can serve this call on this device: {reasons}")


def tuned_words(family: Family, problem: Any, profile: DeviceProfile) -> str:
    """What a reason says of the tuned constants that the family takes for the problem; empty where it takes none."""
    if not profile.tuned:
        return ""
    taken = [constant for constant in family.candidates(problem, profile) if constant in profile.tuned]
    return "; tuned on this device: " + ", ".join(f"{name} {value}" for name, value in taken) if taken else ""


def named(families: Sequence[Family], name: str) -> Family:
    """The family of that name. Raises UnsupportedError, with the names there are, where there is none."""
    for family in families:
        if family.name == name:
            return family
    known = ", ".join(family.name for family in families)
    raise UnsupportedError(f"there is no attention family {name!r}; the families are {known}")
