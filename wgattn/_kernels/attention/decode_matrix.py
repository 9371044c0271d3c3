"""Decode on matrix units: one query row a head, keys and values of few bytes. For T = 1 on GPUs, through Dawn."""

from collections.abc import Mapping
from dataclasses import dataclass

from wgattn._dtypes import float8_e4m3fn, float8_e5m2, float16, int8, short_name
from wgattn._kernels.attention.boxes import Box
from wgattn._kernels.attention.inputs import bindings, constants, parameters
from wgattn._kernels.attention.launches import enough_buffers, plan_buffers, splits_for
from wgattn._kernels.attention.naming import variant_name
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant, unsupported
from wgattn._kernels.matrices import is_emulated, matrix_features, supports_matrices
from wgattn._runtime.profile import DeviceProfile

name = "decode_matrix"
READ = (float16, float8_e4m3fn, float8_e5m2, int8)  # float16 holds their values exactly
MAX_DIM = 256
MOST_HEADS = 8  # a head is two rows of sixteen
SUBGROUPS = 4  # of 32 lanes
THREADS = 32 * SUBGROUPS
UNIT = 16  # bytes a read
TILES = (64, 32)  # keys that are staged at once, as they are tried
MOST_ITEMS = 8  # reads of a thread that are under way at once: they take its registers
SPLIT_KEYS = 256  # a split has no fewer keys: the merge reads every split
SLACK = 8.0  # how far a logit may lie above the running maximum


@dataclass(frozen=True, slots=True)
class Shape:
    """What a workgroup serves: `heads` query heads, `tile` keys at a time."""

    heads: int
    tile: int
    head_dim: int
    value_dim: int
    per_chunk: int  # elements that 16 bytes hold
    scales: bool

    def items(self, dim: int) -> int:
        """How many times 16 bytes of a tile a thread reads."""
        return -(-self.tile * dim // (self.per_chunk * THREADS))

    @property
    def score_quads(self) -> int:
        """The logits of a tile, four at a time, or for each subgroup a matrix that is rescaled."""
        return max(16 * (self.tile // 4 + 2), SUBGROUPS * 64)

    @property
    def workgroup_bytes(self) -> int:
        """Query rows, keys, values and weights in float16, rows padded by 16 bytes; logits, scales, a few a head."""
        rows = (16 + self.tile) * (self.head_dim // 8 + 1) + self.tile * (self.value_dim // 8 + 1)
        weights = 16 * (self.tile // 8 + 1)
        return 16 * (rows + weights) + 16 * self.score_quads + (8 * self.tile if self.scales else 0) + 3 * 32 + 4


def shape_of(problem: AttentionProblem, profile: DeviceProfile) -> Shape | None:
    """The most keys a tile that workgroup memory and a thread's registers hold; None where none fits."""
    blocks = -(-problem.group // MOST_HEADS)
    per_chunk = UNIT // problem.key_dtype.itemsize
    for tile in TILES:
        dims = problem.head_dim, problem.value_dim
        shape = Shape(-(-problem.group // blocks), tile, *dims, per_chunk, problem.scales)
        held = max(map(shape.items, dims)) <= MOST_ITEMS or tile == TILES[-1]
        if held and shape.workgroup_bytes <= profile.limits.workgroup_bytes:
            return shape
    return None


def supports(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    if problem.queries != "one":
        return unsupported("it takes T = 1 alone")
    if problem.key_dtype not in READ or problem.value_dtype != problem.key_dtype:
        stored = sorted({short_name(problem.key_dtype), short_name(problem.value_dtype)})
        return unsupported(f"it reads types that float16 holds, the same for key and value, not {' and '.join(stored)}")
    if problem.rope is not None:
        return unsupported("it reads keys as they stand, and RoPE turns them")
    if max(problem.head_dim, problem.value_dim) > MAX_DIM:
        return unsupported(f"it takes head dims up to {MAX_DIM}")
    if not problem.exact_dims or problem.aligned != UNIT:
        return unsupported(f"it reads {UNIT} bytes at a time, and rows of key and value do not start and end with them")
    units = supports_matrices(profile)
    if not units:
        return units
    shape = shape_of(problem, profile)
    if shape is None:
        return unsupported(f"its tiles need more than {profile.limits.workgroup_bytes:,} bytes of workgroup memory")
    if profile.limits.invocations < THREADS:
        return unsupported(f"it needs workgroups of {THREADS} threads")
    return enough_buffers(problem, profile)


def suits(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    if problem.key_dtype.itemsize > 1:
        return unsupported("types of two bytes are read as fast without matrix units")
    return SUPPORTED


def variant(problem: AttentionProblem, profile: DeviceProfile, partial: bool = False) -> Variant:
    shape = _shape(problem, profile)
    lanes = profile.team  # 32, but where matrix units are emulated
    stored = short_name(problem.key_dtype)
    widened = 256.0 if stored == "f8e4m3" else 1.0  # its staged values are that much too small
    own = (f"n{shape.heads}k{shape.tile}", *((f"emulated{lanes}",) if is_emulated(profile) else ()))
    return Variant(
        family=name,
        name=variant_name(name, problem, partial, *own),
        template="attention/decode_matrix.wgsl",
        constants=(
            *constants(problem, partial, unit=UNIT),
            ("EMULATED", is_emulated(profile)),
            ("STORED", stored),
            ("THREADS", THREADS),
            ("LANES", lanes),
            ("CREWS", THREADS // lanes),
            ("SUBGROUPS", SUBGROUPS),
            ("HEADS", shape.heads),
            ("OWN_HEADS", -(-shape.heads // (THREADS // lanes))),
            ("TILE", shape.tile),
            ("PAIRS", shape.tile // (2 * lanes)),
            ("PER_CHUNK", shape.per_chunk),
            ("KEY_CHUNKS", problem.head_dim // shape.per_chunk),
            ("VALUE_CHUNKS", problem.value_dim // shape.per_chunk),
            ("KEY_ITEMS", shape.items(problem.head_dim)),
            ("VALUE_ITEMS", shape.items(problem.value_dim)),
            ("SCALE_ITEMS", -(-2 * shape.tile // THREADS)),
            ("KEY_PITCH", problem.head_dim // 8 + 1),
            ("VALUE_PITCH", problem.value_dim // 8 + 1),
            ("WEIGHT_PITCH", shape.tile // 8 + 1),
            ("SCORE_PITCH", shape.tile // 4 + 2),
            ("SUM_PITCH", problem.value_dim // 4),
            ("SCORES", shape.score_quads),
            ("KEY_OWN", -(-shape.tile // (16 * SUBGROUPS))),
            ("VALUE_OWN", -(-problem.value_dim // (16 * SUBGROUPS))),
            ("HOLD_QUERY", problem.head_dim <= 128),
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
    shape = _shape(problem, profile)
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


def _shape(problem: AttentionProblem, profile: DeviceProfile) -> Shape:
    shape = shape_of(problem, profile)
    assert shape is not None, "supports() was asked first"
    return shape


def _max_keys(problem: AttentionProblem, shape: Shape, profile: DeviceProfile) -> int | None:
    """How many keys fit in the loop turns an invocation has; rescaling loops, and a row without keys over V besides."""
    turns = profile.limits.loop_turns
    if turns is None:
        return None
    a_tile = 1 + 2 * -(-problem.value_dim // 64) + (shape.tile // 8 * 9 if problem.empty_rows == "mean" else 0)
    return max((turns - 4096) // a_tile, 1) * shape.tile
