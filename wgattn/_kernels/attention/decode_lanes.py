"""Decode, head dims in lanes: one query row a head against all keys, one key a loop turn. For CPU adapters."""

from collections.abc import Mapping

from wgattn._dtypes import short_name
from wgattn._kernels.attention.boxes import Box
from wgattn._kernels.attention.flash_rows import lanes_support, max_keys, parts
from wgattn._kernels.attention.inputs import bindings, constants, parameters, texel_dtype
from wgattn._kernels.attention.launches import plan_buffers
from wgattn._kernels.attention.naming import variant_name
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.attention.textures import Textures, texture_fields
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant, unsupported
from wgattn._kernels.texture import FOLD
from wgattn._runtime.profile import DeviceProfile

name = "decode_lanes"
LONGEST_SUM = 16384  # keys that are added one by one: the rounding of longer sums shows in float32
NAMES = ("key", "value")  # what is read from textures
UNBUFFERED = (*NAMES, "segments")
MOST_HEADS = 8  # query heads that one read of a key serves: more would not stay in registers and cache


def supports(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    if problem.queries != "one":
        return unsupported("it takes T = 1 alone")
    return lanes_support(problem, profile)


def suits(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    return SUPPORTED


def heads_at_once(group: int) -> int:
    """Query heads a workgroup serves: shares of a group that are as even as they can be."""
    return -(-group // -(-group // MOST_HEADS))


def variant(problem: AttentionProblem, profile: DeviceProfile, partial: bool = False) -> Variant:
    subgroup = profile.subgroup_size or 0
    heads = heads_at_once(problem.group)
    return Variant(
        family=name,
        name=variant_name(name, problem, partial, f"n{heads}", f"sg{subgroup}"),
        template="attention/decode_lanes.wgsl",
        constants=(
            *constants(problem, partial, UNBUFFERED),
            *((f"{operand}_texel", short_name(texel_dtype(problem, operand))) for operand in NAMES),
            ("FOLD", FOLD),
            ("HEADS", heads),
            ("SUBGROUP", subgroup),
            ("xor_steps", tuple(1 << i for i in range(subgroup.bit_length() - 1))),
        ),
        bindings=bindings(problem, partial, UNBUFFERED),
        parameters=parameters(problem, UNBUFFERED, texture_fields(NAMES)),
        features=frozenset({"subgroup"}),
        reason=f"CPU adapter with subgroups of {subgroup}, one query row a head: lanes hold head dims",
    )


def plan(problem: AttentionProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile) -> Plan:
    group = operands["query"].shape[3] // operands["key"].shape[3]
    heads = heads_at_once(problem.group)

    def workgroups(box: Box) -> int:
        share = min(group, box.size("n"))
        return -(-share // heads) * (box.size("n") // share) * box.batch

    def splits(box: Box) -> int:
        return max(parts(workgroups(box), box.size("s"), profile), -(-box.size("s") // LONGEST_SUM))

    return plan_buffers(
        problem,
        call,
        operands,
        profile,
        lambda partial: variant(problem, profile, partial),
        workgroups,
        splits,
        max_keys=max_keys(profile, 1, loops=2 + problem.segments),
        textures=Textures(NAMES, problem, call, operands, profile.limits),
    )
