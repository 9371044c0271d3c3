"""The choice of a shader: the first family that serves the problem and suits the device, and why not those before."""

from collections.abc import Mapping
from typing import Protocol

from wgattn._errors import UnsupportedError
from wgattn._kernels.attention import decode, decode_lanes, flash_rows, flash_tiled, plain
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.kernel import Operand, Plan, Support, Variant
from wgattn._runtime.profile import DeviceProfile


class Family(Protocol):
    """What a family's module holds. `supports` is about ability, and binds a call that names the family; `suits` is
    about speed, and guides choice alone. A `partial` variant leaves its rows to the merge.
    """

    name: str

    def supports(self, problem: AttentionProblem, profile: DeviceProfile) -> Support: ...
    def suits(self, problem: AttentionProblem, profile: DeviceProfile) -> Support: ...
    def variant(self, problem: AttentionProblem, profile: DeviceProfile, partial: bool = False) -> Variant: ...
    def plan(
        self, problem: AttentionProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile
    ) -> Plan: ...


# Fastest first; plain takes what nothing else takes.
FAMILIES: tuple[Family, ...] = (decode, decode_lanes, flash_rows, flash_tiled, plain)
IMPLEMENTATIONS = tuple(family.name for family in FAMILIES)


def choose(problem: AttentionProblem, profile: DeviceProfile, implementation: str | None = None) -> Variant:
    """The variant that serves `problem` on a device, and why. Pure: equal arguments, equal choice.

    Raises UnsupportedError where `implementation` names a family that cannot serve it.
    """
    if implementation is not None:
        family = _family(implementation)
        support = family.supports(problem, profile)
        if not support:
            raise UnsupportedError(
                f"implementation {implementation!r} cannot serve this call: {support.reason}; use implementation=None"
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
    problem: AttentionProblem, variant: Variant, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile
) -> Plan:
    """The launches of a call with the chosen variant's family. Operands: query key value out, and what the call has."""
    return _family(variant.family).plan(problem, call, operands, profile)


def _family(name: str) -> Family:
    for family in FAMILIES:
        if family.name == name:
            return family
    raise UnsupportedError(f"there is no attention family {name!r}; the families are {', '.join(IMPLEMENTATIONS)}")
