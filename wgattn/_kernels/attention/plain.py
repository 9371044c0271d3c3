"""Plain: a workgroup a (head, query). It takes what nothing else takes; the other families must beat it."""

from collections.abc import Mapping

from wgattn._kernels.attention.boxes import Box
from wgattn._kernels.attention.inputs import bindings, constants, parameters
from wgattn._kernels.attention.launches import enough_buffers, plan_buffers
from wgattn._kernels.attention.naming import variant_name
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant
from wgattn._runtime.profile import DeviceProfile, Tuned

name = "plain"
WORKGROUP = 64
SLOWNESS = 32


def workgroup_bytes() -> int:
    """A weight and a scratch value a thread."""
    return 2 * WORKGROUP * 4


def supports(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    return enough_buffers(problem, profile)


def suits(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    return SUPPORTED


def candidates(problem: AttentionProblem, profile: DeviceProfile) -> Tuned:
    return ()


def variant(problem: AttentionProblem, profile: DeviceProfile, partial: bool = False) -> Variant:
    return Variant(
        family=name,
        name=variant_name(name, problem, partial),
        template="attention/plain.wgsl",
        constants=(
            *constants(problem, partial),
            ("WORKGROUP", WORKGROUP),
            ("CHUNKS", -(-problem.value_dim // 4 // WORKGROUP)),
        ),
        bindings=bindings(problem, partial),
        parameters=parameters(problem),
        workgroup_bytes=workgroup_bytes(),
        reason="nothing faster takes this problem on this device",
    )


def plan(problem: AttentionProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile) -> Plan:
    def workgroups(box: Box) -> int:
        return box.batch * box.size("t") * box.size("n")

    return plan_buffers(
        problem,
        call,
        operands,
        profile,
        lambda partial: variant(problem, profile, partial),
        workgroups,
        max_keys=_max_keys(problem, profile),
        slowness=SLOWNESS,
    )


def _max_keys(problem: AttentionProblem, profile: DeviceProfile) -> int | None:
    """How many keys fit in the loop turns an invocation has: a tile of WORKGROUP keys loops over H, over the tile, and
    reduces twice.
    """
    turns = profile.limits.loop_turns
    if turns is None:
        return None
    chunks = -(-problem.value_dim // 4 // WORKGROUP)
    a_tile = problem.head_dim // 4 + WORKGROUP * (1 + chunks) + 2 * 7 + chunks + 1
    left = turns - 1024
    return max(left // a_tile, 1) * WORKGROUP
