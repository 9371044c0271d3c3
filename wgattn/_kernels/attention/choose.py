"""The choice of a shader: the first family that serves the problem and suits the device, and why not those before."""

from collections.abc import Mapping

from wgattn._kernels.attention import (
    decode,
    decode_lanes,
    decode_matrix,
    decode_subgroups,
    flash_matrix,
    flash_rows,
    flash_tiled,
    plain,
)
from wgattn._kernels.attention.families import Family, named, pick
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.kernel import Operand, Plan, Variant
from wgattn._runtime.profile import DeviceProfile

# Fastest first; plain takes what nothing else takes.
FAMILIES: tuple[Family, ...] = (
    decode_matrix,
    decode_subgroups,
    decode,
    decode_lanes,
    flash_rows,
    flash_matrix,
    flash_tiled,
    plain,
)
IMPLEMENTATIONS = tuple(family.name for family in FAMILIES)


def choose(problem: AttentionProblem, profile: DeviceProfile, implementation: str | None = None) -> Variant:
    """The variant that serves `problem` on a device, and why. Pure: equal arguments, equal choice.

    Raises UnsupportedError where `implementation` names a family that cannot serve it.
    """
    return pick(FAMILIES, problem, profile, implementation)


def plan(
    problem: AttentionProblem, variant: Variant, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile
) -> Plan:
    """The launches of a call with the chosen variant's family. Operands: query key value out, and what the call has."""
    return named(FAMILIES, variant.family).plan(problem, call, operands, profile)
