"""Decode on matrix units: one query row a head, keys and values of few bytes. For T = 1 on GPUs, through Dawn."""

from collections.abc import Mapping
from dataclasses import dataclass

from wgattn._dtypes import float8_e4m3fn, float8_e5m2, float16, int8, short_name
from wgattn._kernels.attention.boxes import Box
from wgattn._kernels.attention.inputs import bindings, constants, parameters
from wgattn._kernels.attention.launches import enough_buffers, plan_buffers, split_candidates, splits_for
from wgattn._kernels.attention.naming import variant_name
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant, unsupported
from wgattn._kernels.matrices import LANES, is_emulated, matrix_features, supports_matrices
from wgattn._runtime.profile import DeviceProfile, Tuned

name = "decode_matrix"
READ = (float16, float8_e4m3fn, float8_e5m2, int8)  # float16 holds their values exactly
MAX_DIM = 256
MOST_HEADS = 8  # a head is two rows of sixteen
SUBGROUPS = 1
UNIT = 16  # bytes a read
SPLIT_KEYS = 256  # a split has no fewer keys: the merge reads every split
SLACK = 8.0  # how far a logit may lie above the running maximum
HELD_DIM = 128  # the widest query rows that stay in registers


@dataclass(frozen=True, slots=True)
class Shape:
    """What a workgroup of `subgroups` serves: `heads` query heads, sixteen keys a subgroup at a time."""

    heads: int
    subgroups: int
    head_dim: int
    value_dim: int
    per_chunk: int  # elements that 16 bytes hold
    scales: bool

    @property
    def threads(self) -> int:
        return LANES * self.subgroups

    @property
    def tile(self) -> int:
        return 16 * self.subgroups

    @property
    def pairs(self) -> int:
        """Lanes that share a head, two keys each."""
        return self.tile // 2

    @property
    def holds_query(self) -> bool:
        return self.head_dim <= HELD_DIM

    @property
    def score_pitch(self) -> int:
        """float32 quads from one row of logits to the next: lanes that store side by side hit other banks."""
        return self.tile // 4 + 2

    @property
    def scores(self) -> int:
        return max(2, self.subgroups) * 16 * self.score_pitch

    def items(self, dim: int) -> int:
        """How many times 16 bytes of a tile a thread reads."""
        return -(-self.tile * dim // (self.per_chunk * self.threads))

    @property
    def pitch(self) -> int:
        """What a staged row takes of workgroup memory, a padding among it, in units of 16 bytes."""
        return max(self.head_dim, self.value_dim) // 8 + 1

    @property
    def workgroup_bytes(self) -> int:
        """What is staged, and query rows unless a lane holds them; weights; logits, scales, a few a head."""
        queries = 0 if self.holds_query else 16 * (self.head_dim // 8 + 1)
        rows = self.tile * self.pitch + queries + 16 * (self.tile // 8 + 1)
        return 16 * (rows + self.scores) + (8 * self.tile if self.scales else 0) + 3 * 32 + 4


def shape_of(problem: AttentionProblem) -> Shape:
    blocks = -(-problem.group // MOST_HEADS)
    per_chunk = UNIT // problem.key_dtype.itemsize
    dims = problem.head_dim, problem.value_dim
    return Shape(-(-problem.group // blocks), SUBGROUPS, *dims, per_chunk, problem.scales)


def supports(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    if problem.queries != "one":
        return unsupported("it takes T = 1 alone")
    if problem.key_dtype not in READ or problem.value_dtype != problem.key_dtype:
        stored = sorted({short_name(problem.key_dtype), short_name(problem.value_dtype)})
        return unsupported(f"it reads types that float16 holds, the same for key and value, not {' and '.join(stored)}")
    if problem.rope is not None:
        return unsupported("it reads keys as they stand, and RoPE turns them")
    if max(problem.head_dim, problem.value_dim) > MAX_DIM or problem.value_dim % 32:
        return unsupported(f"it takes head dims up to {MAX_DIM}, of values in multiples of 32")
    if not problem.exact_dims or problem.aligned != UNIT:
        return unsupported(f"it reads {UNIT} bytes at a time, and rows of key and value do not start and end with them")
    units = supports_matrices(profile)
    if not units:
        return units
    if shape_of(problem).workgroup_bytes > profile.limits.workgroup_bytes:
        return unsupported(f"its tiles need more than {profile.limits.workgroup_bytes:,} bytes of workgroup memory")
    return enough_buffers(problem, profile)


def suits(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    if problem.key_dtype.itemsize > 1:
        return unsupported("types of two bytes are read as fast without matrix units")
    return SUPPORTED


def candidates(problem: AttentionProblem, profile: DeviceProfile) -> Tuned:
    return split_candidates(profile)


def variant(problem: AttentionProblem, profile: DeviceProfile, partial: bool = False) -> Variant:
    shape = shape_of(problem)
    stored = short_name(problem.key_dtype)
    widened = 256.0 if stored == "f8e4m3" else 1.0  # its staged values are that much too small
    own = (f"n{shape.heads}k{shape.tile}", *(("emulated",) if is_emulated(profile) else ()))
    return Variant(
        family=name,
        name=variant_name(name, problem, partial, *own),
        template="attention/decode_matrix.wgsl",
        constants=(
            *constants(problem, partial, unit=UNIT),
            ("EMULATED", is_emulated(profile)),
            ("STORED", stored),
            ("THREADS", shape.threads),
            ("SUBGROUPS", shape.subgroups),
            ("HEADS", shape.heads),
            ("TILE", shape.tile),
            ("PAIRS", shape.pairs),
            ("ROUNDS", -(-shape.heads * shape.pairs // shape.threads)),
            ("PER_CHUNK", shape.per_chunk),
            ("KEY_CHUNKS", problem.head_dim // shape.per_chunk),
            ("VALUE_CHUNKS", problem.value_dim // shape.per_chunk),
            ("KEY_ITEMS", shape.items(problem.head_dim)),
            ("VALUE_ITEMS", shape.items(problem.value_dim)),
            ("TILE_PITCH", shape.pitch),
            ("KEY_PITCH", problem.head_dim // 8 + 1),
            ("VALUE_PITCH", problem.value_dim // 8 + 1),
            ("WEIGHT_PITCH", shape.tile // 8 + 1),
            ("SCORE_PITCH", shape.score_pitch),
            ("SCORES", shape.scores),
            ("VALUE_OWN", -(-problem.value_dim // shape.tile)),
            ("HOLD_QUERY", shape.holds_query),
            ("KEY_UNIT", widened),
            ("VALUE_UNIT", widened),
            ("SLACK", SLACK),
        ),
        bindings=bindings(problem, partial, unit=UNIT),
        parameters=parameters(problem),
        workgroup_bytes=shape.workgroup_bytes,
        features=matrix_features(profile) | {"subgroup"},
        reason=f"one query row: matrix units take {shape.tile} keys at once for {shape.heads} heads",
    )


def plan(problem: AttentionProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile) -> Plan:
    shape = shape_of(problem)
    head_blocks = -(-problem.group // shape.heads)

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
        max_keys=_max_keys(problem, shape, profile),
        whole_groups=True,
    )


def _max_keys(problem: AttentionProblem, shape: Shape, profile: DeviceProfile) -> int | None:
    """How many keys fit in the loop turns an invocation has; rescaling loops, and a row without keys over V besides."""
    turns = profile.limits.loop_turns
    if turns is None:
        return None
    a_tile = 1 + 3 * -(-problem.value_dim // shape.tile) + (shape.tile // 8 * 9 if problem.empty_rows == "mean" else 0)
    return max((turns - 4096) // a_tile, 1) * shape.tile
