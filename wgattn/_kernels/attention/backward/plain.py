"""Plain, backward: a workgroup a row or a key. It takes every problem, and asks nothing of the device."""

from collections.abc import Mapping

from wgattn._kernels.attention.backward import launches
from wgattn._kernels.attention.backward.launches import Sweep, Sweeps, plan_gradient
from wgattn._kernels.attention.backward.problem import GradientProblem
from wgattn._kernels.attention.backward.work import (
    ADDING,
    GRAD_OUT,
    WORKGROUP,
    blocks_of_keys,
    blocks_of_rows,
    shader,
    sums_binding,
    sweep_bindings,
    sweep_name,
)
from wgattn._kernels.attention.problem import Call
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant
from wgattn._runtime.profile import DeviceProfile, Tuned

name = "backward_plain"
SLOWNESS = 32 * launches.SLOWNESS  # no row is shared, as in forward's plain


def supports(problem: GradientProblem, profile: DeviceProfile) -> Support:
    return SUPPORTED


def suits(problem: GradientProblem, profile: DeviceProfile) -> Support:
    return SUPPORTED


def candidates(problem: GradientProblem, profile: DeviceProfile) -> Tuned:
    return ()


def variant(problem: GradientProblem, profile: DeviceProfile) -> Variant:
    """The sweep by key and value, which stands for the family."""
    return _sweep(problem, "key_value")


def plan(problem: GradientProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile) -> Plan:
    max_keys, max_rows = _most(problem, profile)
    sweeps = Sweeps(
        Sweep(_sweep(problem, "query"), blocks_of_rows(1)),
        Sweep(_sweep(problem, "key_value"), blocks_of_keys(1, problem.sweep.group)),
        max_keys,
        max_rows,
        slowness=SLOWNESS,
    )
    return plan_gradient(problem, call, operands, profile, sweeps)


def _columns(dim: int) -> int:
    """vec4 of a row that a thread owns."""
    return -(-dim // 4 // WORKGROUP)


def _sweep(problem: GradientProblem, by: str) -> Variant:
    sweep = problem.sweep
    arrays = 1 if by == "query" else 2
    return shader(
        name,
        sweep_name(f"{name}_{by}", sweep),
        f"plain_{by}",
        sweep,
        sweep_bindings(sweep, sums_binding()),
        (*GRAD_OUT, *ADDING),
        (
            ("BY", by),
            ("OWN", 1),
            ("HEAD_COLUMNS", _columns(sweep.head_dim)),
            ("VALUE_COLUMNS", _columns(sweep.value_dim)),
        ),
        workgroup_bytes=arrays * WORKGROUP * 4,
    ).because((), "nothing faster takes this problem on this device")


def _most(problem: GradientProblem, profile: DeviceProfile) -> tuple[int | None, int | None]:
    """How many keys, and rows, fit in the loop turns an invocation has: a tile loops over dims, then its items."""
    turns = profile.limits.loop_turns
    if turns is None:
        return None, None
    sweep = problem.sweep
    columns = _columns(sweep.head_dim) + _columns(sweep.value_dim)
    a_tile = (sweep.head_dim + sweep.value_dim) // 4 + WORKGROUP * (1 + columns) + columns + 1
    items = max((turns - 1024) // a_tile, 1) * WORKGROUP
    return items, max(items // sweep.group, 1)
