"""Flash, rows in lanes: keys are read from textures and handed to all query rows by shuffles. For CPU adapters."""

from collections.abc import Mapping

from wgattn._kernels.attention import lanes
from wgattn._kernels.attention.boxes import Box
from wgattn._kernels.attention.naming import tuned_name
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.attention.textures import dense_names, stored_names
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant
from wgattn._runtime.profile import DeviceProfile, Tuned

name = "flash_rows"


def supports(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    return lanes.supports(problem, profile)


def suits(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    return SUPPORTED


def rows_a_lane(problem: AttentionProblem, subgroup: int, tuned: int = -1) -> int:
    """More rows a lane share a key's read and shuffles; each adds to the time that the first call compiles."""
    if tuned in _rows(problem):
        return tuned
    there = {"one": 1, "few": 16, "short": 256, "many": 1 << 20}[problem.queries] * problem.group
    most = 3 if problem.queries == "many" else 2
    return max(rows for rows in _rows(problem) if rows == 1 or (rows <= most and there >= 2 * rows * subgroup))


def _rows(problem: AttentionProblem) -> tuple[int, ...]:
    """Rows a lane that compile in a few seconds. A fourth outgrows registers and the CPU's instruction cache."""
    width = problem.head_dim + problem.value_dim
    return (1, 2, 3)[: 1 if width > 256 else 2 if width > 128 else 3]


def keys_a_turn(problem: AttentionProblem, subgroup: int) -> int:
    """Four keys are half of the text that is compiled, and faster, since it stays in the CPU's instruction cache. Keys
    that are looked up, each lane its own, want as many as there are lanes."""
    return subgroup if problem.paged or problem.ring or problem.segments else min(4, subgroup)


def _rows_of(problem: AttentionProblem, profile: DeviceProfile) -> int:
    return rows_a_lane(problem, profile.subgroup_size or 0, profile.constant(tuned_name(name, problem)))


def candidates(problem: AttentionProblem, profile: DeviceProfile) -> Tuned:
    return *((tuned_name(name, problem), rows) for rows in _rows(problem)), *lanes.part_candidates()


def variant(problem: AttentionProblem, profile: DeviceProfile, partial: bool = False) -> Variant:
    rows, subgroup = _rows_of(problem, profile), profile.subgroup_size or 0
    keys = keys_a_turn(problem, subgroup)
    own = (("ROWS", rows), ("KEYS", keys), ("xor_steps", lanes.steps(1, subgroup)))
    reason = ": rows stay in a lane's registers, keys come from textures"
    return lanes.variant(name, problem, profile, partial, _read(problem, profile), f"r{rows}k{keys}", own, reason)


def plan(problem: AttentionProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile) -> Plan:
    subgroup = profile.subgroup_size or 1
    group = operands["query"].shape[3] // operands["key"].shape[3]
    block = _rows_of(problem, profile) * subgroup

    def workgroups(box: Box) -> int:
        share = min(group, box.size("n"))
        return -(-box.size("t") * share // block) * (box.size("n") // share) * box.batch

    return lanes.plan(
        problem,
        call,
        operands,
        profile,
        _read(problem, profile),
        lambda partial: variant(problem, profile, partial),
        workgroups,
        lambda box: lanes.parts(workgroups(box), box.size("s"), profile),
        lanes.max_keys(profile, keys_a_turn(problem, subgroup), loops=2 + problem.segments),
        near=problem.queries in ("one", "few"),  # more rows take longer than the copies
    )


def _read(problem: AttentionProblem, profile: DeviceProfile) -> tuple[str, ...]:
    return "query", *stored_names(problem), *dense_names(problem, profile.limits)
