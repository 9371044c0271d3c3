"""Decode, head dims in lanes: one query row a head against all keys, one key a loop turn. For CPU adapters."""

from collections.abc import Mapping
from dataclasses import replace

from wgattn._dtypes import short_name
from wgattn._kernels.attention.boxes import Box, whole
from wgattn._kernels.attention.flash_rows import cached_part, lanes_support, max_keys, part_candidates, parts
from wgattn._kernels.attention.inputs import bindings, constants, parameters, texel_dtype
from wgattn._kernels.attention.launches import plan_buffers
from wgattn._kernels.attention.naming import variant_name
from wgattn._kernels.attention.problem import AttentionProblem, Call, key_count
from wgattn._kernels.attention.textures import Textures, row_elements, stored_names, texture_fields, unbuffered
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant, unsupported
from wgattn._kernels.texture import FOLD, TEXEL
from wgattn._runtime.profile import DeviceProfile, Tuned

name = "decode_lanes"
LONGEST_SUM = 16384  # keys that are added one by one: the rounding of longer sums shows in float32
MOST_HEADS = 8  # query heads that one read of a key serves: more would not stay in registers and cache
TURN = 2  # keys a loop turn: values that are carried round it, and the fading of sums, are paid once


def supports(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    if problem.queries != "one":
        return unsupported("it takes T = 1 alone")
    return lanes_support(problem, profile)


def suits(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    return SUPPORTED


def heads_at_once(group: int) -> int:
    """Query heads a workgroup serves: shares of a group that are as even as they can be."""
    return -(-group // -(-group // MOST_HEADS))


def lanes_a_key(problem: AttentionProblem, subgroup: int) -> int:
    """Lanes that share a key, a power of two: as many as its row has texels, or all."""
    most = 1
    for name, dim in (("key", problem.head_dim), ("value", problem.value_dim)):
        dtype = texel_dtype(problem, name)
        most = max(most, -(-row_elements(dtype, dim) * dtype.itemsize // TEXEL))
    return min(1 << (most - 1).bit_length(), subgroup)


def candidates(problem: AttentionProblem, profile: DeviceProfile) -> Tuned:
    return part_candidates()


def variant(problem: AttentionProblem, profile: DeviceProfile, partial: bool = False) -> Variant:
    subgroup = profile.subgroup_size or 0
    heads = heads_at_once(problem.group)
    lanes = lanes_a_key(problem, subgroup)
    return Variant(
        family=name,
        name=variant_name(name, problem, partial, f"n{heads}", f"sg{subgroup}"),
        template="attention/decode_lanes.wgsl",
        constants=(
            *constants(problem, partial, unbuffered(stored_names(problem))),
            *((f"{operand}_texel", short_name(texel_dtype(problem, operand))) for operand in ("key", "value")),
            ("stored_names", stored_names(problem)),
            ("FOLD", FOLD),
            ("HEADS", heads),
            ("TURN", TURN),
            ("LANES", lanes),
            ("BESIDE", subgroup // max(lanes, 1)),
            ("SUBGROUP", subgroup),
            ("row_steps", tuple(1 << i for i in range(lanes.bit_length() - 1))),
            ("join_steps", tuple(1 << i for i in range(lanes.bit_length() - 1, subgroup.bit_length() - 1))),
        ),
        bindings=bindings(problem, partial, unbuffered(stored_names(problem))),
        parameters=parameters(
            problem, unbuffered(stored_names(problem)), texture_fields(stored_names(problem), problem.paged)
        ),
        features=frozenset({"subgroup"}),
        reason=f"CPU adapter with subgroups of {subgroup}, one query row a head: lanes hold head dims",
    )


def plan(problem: AttentionProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile) -> Plan:
    group = operands["query"].shape[3] // operands["key"].shape[3]
    heads = heads_at_once(problem.group)

    def workgroups(box: Box) -> int:
        share = min(group, box.size("n"))
        return -(-share // heads) * (box.size("n") // share) * box.batch

    textures = Textures(stored_names(problem), problem, call, operands, profile.limits)
    all_of = whole(operands, key_count(call, operands))
    looped = max_keys(profile, TURN, loops=2 + problem.segments + problem.paged)

    def splits(box: Box) -> int:
        return max(parts(workgroups(box), box.size("s"), profile), -(-box.size("s") // LONGEST_SUM))

    entries, cached = cached_part(textures, workgroups(all_of), looped, splits(all_of))
    return plan_buffers(
        problem,
        call,
        operands,
        profile,
        lambda partial: variant(problem, profile, partial),
        workgroups,
        splits,
        max_keys=cached,
        textures=replace(textures, most_entries=entries),
    )
