"""Flash, rows in lanes: keys are read from textures and handed to all query rows by shuffles. For CPU adapters."""

from collections.abc import Mapping

from wgattn._dtypes import short_name
from wgattn._kernels.attention.boxes import Box
from wgattn._kernels.attention.inputs import bindings, constants, parameters, texel_dtype
from wgattn._kernels.attention.launches import plan_buffers
from wgattn._kernels.attention.naming import variant_name
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.attention.textures import Textures, stored_names, texture_fields, unbuffered
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant, unsupported
from wgattn._kernels.texture import FOLD
from wgattn._runtime.profile import DeviceProfile

name = "flash_rows"
SUBGROUPS = (4, 8, 16)
BUSY = 8  # workgroups that keep the threads of a CPU busy; every further part of the keys costs sums to merge
LEAST_KEYS = 512  # keys that are worth a part


def supports(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    return lanes_support(problem, profile)


def lanes_support(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    """What both families of CPU adapters ask for."""
    if not profile.is_cpu:
        return unsupported(f"it is for CPU adapters, and {profile.name} is none")
    if not profile.subgroups or profile.subgroup_size not in SUBGROUPS:
        return unsupported(
            f"it needs subgroups of 4, 8 or 16 lanes; {profile.name} has {profile.subgroup_size or 'none'}"
        )
    if max(problem.head_dim, problem.value_dim) > 256:
        return unsupported(f"it takes head dims up to 256, this is {max(problem.head_dim, problem.value_dim)}")
    textures = 1 + len(stored_names(problem))
    if profile.limits.storage_textures < textures:
        return unsupported(f"it reads {textures} textures; the device binds {profile.limits.storage_textures}")
    return SUPPORTED


def suits(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    return SUPPORTED


def rows_a_lane(problem: AttentionProblem, subgroup: int) -> int:
    """More rows a lane share a key's read and shuffles; each adds to the time that the first call compiles."""
    most = {"one": 1, "few": 16, "short": 256, "many": 1 << 20}[problem.queries] * problem.group
    width = problem.head_dim + problem.value_dim
    most_rows = 4 if width <= 128 and problem.queries == "many" else 2 if width <= 256 else 1
    if problem.dense:
        most_rows = min(most_rows, 2)
    while most_rows > 1 and most < 2 * most_rows * subgroup:
        most_rows //= 2
    return most_rows


def variant(problem: AttentionProblem, profile: DeviceProfile, partial: bool = False) -> Variant:
    subgroup = profile.subgroup_size or 0
    rows = rows_a_lane(problem, subgroup)
    names = ("query", *stored_names(problem))
    return Variant(
        family=name,
        name=variant_name(name, problem, partial, f"r{rows}", f"sg{subgroup}"),
        template="attention/flash_rows.wgsl",
        constants=(
            *constants(problem, partial, unbuffered(names)),
            *((f"{operand}_texel", short_name(texel_dtype(problem, operand))) for operand in ("query", "key", "value")),
            ("stored_names", stored_names(problem)),
            ("FOLD", FOLD),
            ("ROWS", rows),
            ("SUBGROUP", subgroup),
            ("xor_steps", tuple(1 << i for i in range(subgroup.bit_length() - 1))),
        ),
        bindings=bindings(problem, partial, unbuffered(names)),
        parameters=parameters(problem, unbuffered(names), texture_fields(names, problem.paged)),
        features=frozenset({"subgroup"}),
        reason=f"CPU adapter with subgroups of {subgroup}: rows stay in a lane's registers, keys come from textures",
    )


def plan(problem: AttentionProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile) -> Plan:
    subgroup = profile.subgroup_size or 1
    group = operands["query"].shape[3] // operands["key"].shape[3]
    block = rows_a_lane(problem, subgroup) * subgroup

    def workgroups(box: Box) -> int:
        share = min(group, box.size("n"))
        return -(-box.size("t") * share // block) * (box.size("n") // share) * box.batch

    return plan_buffers(
        problem,
        call,
        operands,
        profile,
        lambda partial: variant(problem, profile, partial),
        workgroups,
        lambda box: parts(workgroups(box), box.size("s"), profile),
        max_keys=max_keys(profile, subgroup, loops=2 + problem.segments),
        textures=Textures(("query", *stored_names(problem)), problem, call, operands, profile.limits),
    )


def parts(workgroups: int, keys: int, profile: DeviceProfile) -> int:
    """Into how many parts keys are split. A device may be tuned: `workgroups`."""
    busy = dict(profile.tuned).get("workgroups", BUSY)
    return max(1, min(-(-busy // max(workgroups, 1)), keys // LEAST_KEYS))


def max_keys(profile: DeviceProfile, each: int, loops: int) -> int | None:
    """How many keys an invocation may pass: `each` a turn, in as many loops as the shader has."""
    turns = profile.limits.loop_turns
    return None if turns is None else max((turns - 1024) // loops, 1) * each
