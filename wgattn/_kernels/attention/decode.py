"""Decode: one query row against many keys, each read once for a whole group of heads. For T = 1 on GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass

from wgattn._kernels.attention.inputs import bindings, constants, parameters
from wgattn._kernels.attention.launches import enough_buffers, plan_row, split_candidates
from wgattn._kernels.attention.naming import variant_name
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant, unsupported
from wgattn._runtime.profile import DeviceProfile, Tuned

name = "decode"
MAX_DIM = 256
WORKGROUP = 128
TURN = 4  # loads of K or V that a thread has under way at once
KEYS = (2, 1)  # keys a thread, the faster first: two share a read of q
GATHERED = 8  # of the numbers that threads have for a head, a first step leaves so many


@dataclass(frozen=True, slots=True)
class Share:
    """What a workgroup serves: up to `heads` query heads of a group, `keys` keys a thread and tile."""

    heads: int
    keys: int

    @property
    def tile(self) -> int:
        return WORKGROUP * self.keys

    @property
    def quads(self) -> int:
        return -(-self.heads // 4)

    def workgroup_bytes(self, problem: AttentionProblem) -> int:
        """Query rows, the weights of a tile, a number a head and thread, the same gathered, a vec4 a thread."""
        return (
            self.heads * problem.head_dim * 4
            + self.tile * self.quads * 16
            + self.heads * (WORKGROUP + GATHERED + GATHERED) * 4
            + WORKGROUP * 16
        )


def share_of(problem: AttentionProblem, profile: DeviceProfile) -> Share | None:
    """The most heads that fit, in even blocks. Tuned by `decode_keys`, how many keys a thread takes."""
    tuned = profile.constant("decode_keys", KEYS[0])
    return _share_of(problem, profile, tuned if tuned in KEYS else KEYS[0])


def _share_of(problem: AttentionProblem, profile: DeviceProfile, keys: int) -> Share | None:
    for most in (8, 4, 2, 1):
        blocks = -(-problem.group // most)
        for share in (Share(-(-problem.group // blocks), keys), Share(-(-problem.group // blocks), 1)):
            if share.workgroup_bytes(problem) <= profile.limits.workgroup_bytes:
                return share
    return None


def supports(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    if problem.queries != "one":
        return unsupported("it takes T = 1 alone")
    if max(problem.head_dim, problem.value_dim) > MAX_DIM:
        return unsupported(f"it takes head dims up to {MAX_DIM}")
    if share_of(problem, profile) is None:
        return unsupported(f"one head needs more than {profile.limits.workgroup_bytes:,} bytes of workgroup memory")
    return enough_buffers(problem, profile)


def suits(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    return unsupported("workgroup memory and barriers are slow on a CPU adapter") if profile.is_cpu else SUPPORTED


def candidates(problem: AttentionProblem, profile: DeviceProfile) -> Tuned:
    shares = ((keys, _share_of(problem, profile, keys)) for keys in KEYS)
    fitting = (("decode_keys", keys) for keys, share in shares if share is not None and share.keys == keys)
    return *fitting, *split_candidates(profile)


def variant(problem: AttentionProblem, profile: DeviceProfile, partial: bool = False) -> Variant:
    share = _share(problem, profile)
    chunks = problem.value_dim // 4
    return Variant(
        family=name,
        name=variant_name(name, problem, partial, f"n{share.heads}k{share.tile}"),
        template="attention/decode.wgsl",
        constants=(
            *constants(problem, partial),
            ("WORKGROUP", WORKGROUP),
            ("HEADS", share.heads),
            ("HEAD_QUADS", share.quads),
            ("KEYS", share.keys),
            ("TILE_K", share.tile),
            ("HEAD_CHUNKS", problem.head_dim // 4),
            ("VALUE_CHUNKS", chunks),
            ("ROWS", WORKGROUP // chunks),
            ("TURN", TURN),
            ("GATHERED", GATHERED),
            ("PITCH", WORKGROUP + GATHERED),
        ),
        bindings=bindings(problem, partial),
        parameters=parameters(problem),
        workgroup_bytes=share.workgroup_bytes(problem),
        reason=f"one query row: keys and values are read once for {share.heads} heads",
    )


def plan(problem: AttentionProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile) -> Plan:
    share = _share(problem, profile)
    return plan_row(
        problem,
        call,
        operands,
        profile,
        lambda partial: variant(problem, profile, partial),
        share.heads,
        _max_keys(problem, share, profile),
        share.tile,
    )


def _share(problem: AttentionProblem, profile: DeviceProfile) -> Share:
    share = share_of(problem, profile)
    assert share is not None, "supports() was asked first"
    return share


def _max_keys(problem: AttentionProblem, share: Share, profile: DeviceProfile) -> int | None:
    """How many keys fit in the loop turns an invocation has; a tile loops over H, over its own keys, and gathers."""
    turns = profile.limits.loop_turns
    if turns is None:
        return None
    rows = WORKGROUP // (problem.value_dim // 4)
    gather = WORKGROUP // GATHERED + share.heads * GATHERED
    a_tile = 2 + problem.head_dim // 4 // TURN + share.tile // (TURN * rows) + gather
    if problem.rope == "half":
        a_tile += problem.head_dim * share.keys
    if problem.empty_rows == "mean":
        a_tile += share.tile // 8 * 9
    return max((turns - 4096) // a_tile, 1) * share.tile
