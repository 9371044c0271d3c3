"""Decode: one query row against many keys, each read once for a whole group of heads. For T = 1 on GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from wgattn._kernels.attention.boxes import Box
from wgattn._kernels.attention.inputs import bindings, constants, parameters
from wgattn._kernels.attention.launches import plan_buffers, splits_for
from wgattn._kernels.attention.naming import variant_name
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant, unsupported
from wgattn._runtime.profile import DeviceProfile

name = "decode"
MAX_DIM = 256
TURN = 4  # loads of V that a thread has under way at once
KEY_LOADS = 8  # and of K
GATHERED = 8  # of the numbers that threads have for a head, a first step leaves so many
SPLIT_KEYS = 256  # a split has no fewer keys: the merge reads every split
MAX_QUERY = 20  # vec4 of q that a thread keeps in registers
MAX_BYTES = 26 << 10  # with more workgroup memory than this, too few workgroups run at once


@dataclass(frozen=True, slots=True)
class Share:
    """What a workgroup serves: up to `heads` heads of a group, `threads` keys a tile, `lanes` threads a key."""

    heads: int
    threads: int
    lanes: int

    @property
    def quads(self) -> int:
        return -(-self.heads // 4)

    @property
    def product_pitch(self) -> int:
        """vec4 from one key's products to the next: odd, so that threads with a key each meet no bank conflict."""
        return self.lanes * self.quads + 1

    def workgroup_bytes(self) -> int:
        """Products, weights, a number a head and thread, the same gathered, a vec4 a thread."""
        quads = self.product_pitch + self.quads + 1
        return self.threads * quads * 16 + self.heads * (self.threads + GATHERED + GATHERED) * 4


def share_of(problem: AttentionProblem, profile: DeviceProfile) -> Share | None:
    """The most heads that fit, in even blocks, with the fewest lanes a key that can hold q."""
    chunks, most_bytes = problem.head_dim // 4, min(profile.limits.workgroup_bytes, MAX_BYTES)
    for most, threads, lanes in product((8, 4, 2, 1), (128, 64), (4, 8, 16)):
        share = Share(-(-problem.group // -(-problem.group // most)), threads, lanes)
        held = chunks // lanes * share.heads
        if chunks % lanes == 0 and held <= MAX_QUERY and share.workgroup_bytes() <= most_bytes:
            return share
    return None


def supports(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    if problem.queries != "one":
        return unsupported("it takes one query row a head (T = 1)")
    if max(problem.head_dim, problem.value_dim) > MAX_DIM:
        return unsupported(f"it takes head dims up to {MAX_DIM}")
    if share_of(problem, profile) is None:
        return unsupported(f"one head needs more than {profile.limits.workgroup_bytes:,} bytes of workgroup memory")
    return SUPPORTED


def suits(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    return unsupported("workgroup memory and barriers are slow on a CPU adapter") if profile.is_cpu else SUPPORTED


def variant(problem: AttentionProblem, profile: DeviceProfile, partial: bool = False) -> Variant:
    share = _share(problem, profile)
    lane_chunks, value_chunks = problem.head_dim // 4 // share.lanes, problem.value_dim // 4
    return Variant(
        family=name,
        name=variant_name(name, problem, partial, f"n{share.heads}k{share.threads}l{share.lanes}"),
        template="attention/decode.wgsl",
        constants=(
            *constants(problem, partial),
            ("WORKGROUP", share.threads),
            ("GROUP", share.heads),
            ("GROUP_QUADS", share.quads),
            ("LANES", share.lanes),
            ("LANE_CHUNKS", lane_chunks),
            ("KEYS_AT_ONCE", share.threads // share.lanes),
            ("KEY_TURN", _key_turn(problem, share)),
            ("PRODUCT_PITCH", share.product_pitch),
            ("VALUE_CHUNKS", value_chunks),
            ("ROWS", share.threads // value_chunks),
            ("TURN", TURN),
            ("GATHERED", GATHERED),
            ("PITCH", share.threads + GATHERED),
        ),
        bindings=bindings(problem, partial),
        parameters=parameters(problem),
        workgroup_bytes=share.workgroup_bytes(),
        reason=f"one query row: keys and values are read once for {share.heads} heads",
    )


def plan(problem: AttentionProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile) -> Plan:
    share = _share(problem, profile)
    head_blocks = -(-problem.group // share.heads)

    def workgroups(box: Box) -> int:
        return box.batch * (box.size("n") // problem.group) * head_blocks

    return plan_buffers(
        problem,
        call,
        operands,
        profile,
        lambda partial: variant(problem, profile, partial),
        workgroups,
        splits_of=lambda box: splits_for(workgroups(box), box.size("s"), SPLIT_KEYS, profile),
        max_keys=_max_keys(problem, share, profile),
        whole_groups=True,
    )


def _share(problem: AttentionProblem, profile: DeviceProfile) -> Share:
    share = share_of(problem, profile)
    assert share is not None, "supports() was asked first"
    return share


def _key_turn(problem: AttentionProblem, share: Share) -> int:
    """How many keys a thread reads at once: a power of two, at most the `lanes` keys that it has in a tile."""
    loads = max(KEY_LOADS * share.lanes // (problem.head_dim // 4), 1)
    return min(1 << (loads.bit_length() - 1), share.lanes)


def _max_keys(problem: AttentionProblem, share: Share, profile: DeviceProfile) -> int | None:
    """How many keys fit in the loop turns an invocation has; a tile loops over keys, and gathers."""
    turns = profile.limits.loop_turns
    if turns is None:
        return None
    rows = share.threads // (problem.value_dim // 4)
    keys = share.lanes // _key_turn(problem, share)
    joined = share.lanes * share.quads + share.threads // GATHERED + share.heads * GATHERED
    a_tile = 2 + keys + share.threads // (TURN * rows) + joined
    if problem.rope == "half":
        a_tile += problem.head_dim
    if problem.empty_rows:
        a_tile += share.threads // 8 * 9
    return max((turns - 4096) // a_tile, 1) * share.threads
