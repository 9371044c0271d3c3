"""Decode, head dims in lanes: one query row a head against all keys, one key a loop turn. For CPU adapters."""

from collections.abc import Mapping
from dataclasses import dataclass

from wgattn._kernels.attention import lanes
from wgattn._kernels.attention.boxes import Box
from wgattn._kernels.attention.inputs import texel_dtype
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.attention.textures import stored_names
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant, unsupported
from wgattn._kernels.stored import row_elements
from wgattn._kernels.texture import TEXEL
from wgattn._runtime.profile import DeviceProfile, Tuned

name = "decode_lanes"
LONGEST_SUM = 16384  # keys that are added one by one: the rounding of longer sums shows in float32
MOST_HEADS = 8  # query heads that one read of a key serves: more would not stay in registers and cache
TURN = 2  # keys a loop turn: values that are carried round it, and the fading of sums, are paid once


def supports(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    if problem.queries != "one":
        return unsupported("it takes T = 1 alone")
    return lanes.supports(problem, profile)


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


@dataclass(frozen=True, slots=True)
class Owned:
    """How the logits of query heads are dealt to the lanes that share a key: while products are summed by exchanges of
    lanes, each of `scatter` halves what a lane holds; the sums of `plain` are whole in both lanes.

    A lane is left with `count` heads. Of a head, `places` has which of those it is, and in which lane.
    """

    padded: int  # heads, to a power of two
    scatter: tuple[int, ...]
    plain: tuple[int, ...]

    @property
    def count(self) -> int:
        return self.padded >> len(self.scatter)

    @property
    def halves(self) -> tuple[int, ...]:
        """What a lane adds to its first head for each step of `scatter` that it has the upper half of."""
        return tuple(self.padded >> i + 1 for i in range(len(self.scatter)))

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        return tuple(
            (g % self.count, sum(step for step, half in zip(self.scatter, self.halves, strict=True) if g & half))
            for g in range(self.padded)
        )


def owned(heads: int, sharing: int) -> Owned:
    """`sharing` lanes share a key, a power of two."""
    padded, steps = 1 << (heads - 1).bit_length(), lanes.steps(1, sharing)
    halvings = min(padded.bit_length() - 1, len(steps))
    return Owned(padded, steps[:halvings], steps[halvings:])


def candidates(problem: AttentionProblem, profile: DeviceProfile) -> Tuned:
    return lanes.part_candidates()


def variant(problem: AttentionProblem, profile: DeviceProfile, partial: bool = False) -> Variant:
    subgroup, heads = profile.subgroup_size or 0, heads_at_once(problem.group)
    sharing = lanes_a_key(problem, subgroup)
    own = (
        ("HEADS", heads),
        ("TURN", TURN),
        ("LANES", sharing),
        ("BESIDE", subgroup // max(sharing, 1)),
        ("owned", owned(heads, sharing)),
        ("join_steps", lanes.steps(sharing, subgroup)),
    )
    reason = ", one query row a head: lanes hold head dims"
    return lanes.variant(name, problem, profile, partial, stored_names(problem), f"n{heads}", own, reason)


def plan(problem: AttentionProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile) -> Plan:
    group = operands["query"].shape[3] // operands["key"].shape[3]
    heads = heads_at_once(problem.group)

    def workgroups(box: Box) -> int:
        share = min(group, box.size("n"))
        return -(-share // heads) * (box.size("n") // share) * box.batch

    def splits(box: Box) -> int:
        return max(lanes.parts(workgroups(box), box.size("s"), profile), -(-box.size("s") // LONGEST_SUM))

    return lanes.plan(
        problem,
        call,
        operands,
        profile,
        stored_names(problem),
        lambda partial: variant(problem, profile, partial),
        workgroups,
        splits,
        lanes.max_keys(profile, TURN, loops=2 + problem.segments + problem.paged),
        near=True,
    )
