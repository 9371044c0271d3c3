"""Decode on matrix units: one query row a head against caches of one byte, which become float16 exactly. For T = 1."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from wgattn._dtypes import float8_e4m3fn, float32, int8, short_name
from wgattn._kernels.attention.inputs import bindings, constants, parameters
from wgattn._kernels.attention.launches import enough_buffers, plan_row, split_candidates
from wgattn._kernels.attention.naming import variant_name
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant, unsupported
from wgattn._kernels.matrices import EIGHT_COLUMNS, LANES, is_emulated, matrix_features, supports_matrices
from wgattn._runtime.profile import DeviceProfile, Tuned

name = "decode_matrix"
DIMS = (64, 128)
TILE_K = 32  # keys
STAGED = 2048  # numbers that are staged at a time
COLUMNS = 8  # of the matrices of query rows, weights and sums
# 16 bytes from one row to the next, of logits, weights and sums: odd numbers, against bank conflicts
LOGIT_PITCH, WEIGHT_PITCH, SUM_PITCH = TILE_K // 4 + 1, TILE_K // 8 + 1, 5
EXCHANGE = COLUMNS * max(WEIGHT_PITCH, SUM_PITCH)
# Keys after which sums leave the matrices, which add without rounding: 3,276 make them 3.5e-6 too small. Fewer where a
# result has float32.
FLUSH, FLUSH_FLOAT32 = 2048, 64
LEAST_GROUP = 2  # with fewer query heads a key/value head, multiplications are few and lanes do them faster
SLACK = 4.0  # how far a logit, to base 2, may lie above the running maximum
LARGE = 2048.0  # what weights are multiplied by: with SLACK below the largest float16, and far from the smallest
LEAST_SCALE = 2.0**-100  # of int8 values, that the sums' unit follows


@dataclass(frozen=True, slots=True)
class Staged:
    """How rows of `dim` bytes are read, sixteen bytes a lane, and lie in workgroup memory as float16."""

    dim: int

    @property
    def chunks(self) -> int:
        """Lanes that read a row."""
        return self.dim // 16

    @property
    def rows(self) -> int:
        """Rows that the lanes read at once."""
        return LANES // self.chunks

    @property
    def keys(self) -> int:
        """Rows that are staged at a time."""
        return STAGED // self.dim

    @property
    def pieces(self) -> int:
        """Reads of a lane that are staged at a time."""
        return self.keys // self.rows

    @property
    def stages(self) -> int:
        """How many times there are rows to stage in a tile."""
        return TILE_K // self.keys

    @property
    def pitch(self) -> int:
        """16 bytes from one row to the next: an odd number, against bank conflicts."""
        return self.dim // 8 + 1

    @property
    def row_of_lane(self) -> str:
        """Which of the rows a lane reads: of eight lanes that write at once, no two meet in a bank."""
        return "lane / 8u" if self.chunks == 8 else "lane / 8u + lane / 4u % 2u * 4u"


def heads_of(problem: AttentionProblem) -> int:
    """Query heads that one read of a key serves: four, whose rows have two digits, or eight, whose rows have one."""
    return 4 if problem.group <= 4 or _has_float32(problem) else 8


def _has_float32(problem: AttentionProblem) -> bool:
    return float32 in (problem.query_dtype, problem.out_dtype)


def supports(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    if problem.queries != "one":
        return unsupported("it takes T = 1 alone")
    units = supports_matrices(profile, EIGHT_COLUMNS)
    if not units:
        return units
    if problem.key_dtype.itemsize != 1 or problem.value_dtype != problem.key_dtype:
        return unsupported("it takes keys and values of one type of one byte")
    if problem.head_dim not in DIMS or problem.value_dim not in DIMS or not problem.exact_dims:
        return unsupported("it takes head dims of 64 and 128")
    if problem.rope is not None or problem.aligned < 16:
        return unsupported("it takes keys as they lie, without rotation, in rows at multiples of 16 bytes")
    return enough_buffers(problem, profile)


def suits(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    if problem.group < LEAST_GROUP:
        return unsupported(f"lanes are faster for fewer than {LEAST_GROUP} query heads a key/value head")
    short = max(problem.head_dim, problem.value_dim) == min(DIMS)
    if problem.key_dtype == int8 and short and problem.group <= 4 and not _has_float32(problem):
        return unsupported("lanes multiply int8 keys as they are, which is faster where rows are short and heads few")
    return SUPPORTED


def candidates(problem: AttentionProblem, profile: DeviceProfile) -> Tuned:
    return split_candidates(profile)


def variant(problem: AttentionProblem, profile: DeviceProfile, partial: bool = False) -> Variant:
    heads, emulated = heads_of(problem), is_emulated(profile)
    wide = _has_float32(problem)
    key, value = Staged(problem.head_dim), Staged(problem.value_dim)
    tile = max(key.keys * key.pitch, value.keys * value.pitch, COLUMNS * LOGIT_PITCH)
    own = f"n{heads}k{TILE_K}", *(("emulated",) if emulated else ())
    return Variant(
        family=name,
        name=variant_name(name, problem, partial, *own),
        template="attention/decode_matrix.wgsl",
        constants=(
            *constants(problem, partial, unit=16),
            ("EMULATED", emulated),
            ("HEADS", heads),
            ("HEAD_LANES", LANES // heads),
            ("QUERY_DIGITS", 2 if wide else 1),  # a row of 16 bits is a float16, times a power of two
            ("COLUMNS", COLUMNS),
            ("TILE_K", TILE_K),
            ("TILE", tile),
            ("EXCHANGE", EXCHANGE),
            ("LOGIT_PITCH", LOGIT_PITCH),
            ("WEIGHT_PITCH", WEIGHT_PITCH),
            ("SUM_PITCH", SUM_PITCH),
            ("SLACK", SLACK if problem.bias is None else SLACK * math.log(2)),  # beside a bias to base e: NATURAL
            ("LARGE", LARGE),
            ("LEAST_SCALE", LEAST_SCALE),
            ("FLUSH", FLUSH_FLOAT32 if wide else FLUSH),
            ("NAN_IS_INFINITE", problem.key_dtype == float8_e4m3fn),
            ("staged_key", key),
            ("staged_value", value),
            ("key_name", short_name(problem.key_dtype)),
        ),
        bindings=bindings(problem, partial, unit=16),
        parameters=parameters(problem),
        workgroup_bytes=(tile + EXCHANGE) * 16 + 3 * heads * 4,
        features=matrix_features(profile),
        reason=f"matrix units: {TILE_K} keys at a time become float16 once for {heads} heads",
    )


def plan(problem: AttentionProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile) -> Plan:
    return plan_row(
        problem,
        call,
        operands,
        profile,
        lambda partial: variant(problem, profile, partial),
        heads_of(problem),
        _max_keys(problem, profile),
    )


def _max_keys(problem: AttentionProblem, profile: DeviceProfile) -> int | None:
    """How many keys fit in the loop turns an invocation has; a row without keys loops over V besides."""
    turns = profile.limits.loop_turns
    if turns is None:
        return None
    a_tile = 1 + 2 * LANES + (TILE_K // 8 * 9 * problem.value_dim // 16 if problem.empty_rows == "mean" else 0)
    return max((turns - 4096) // a_tile, 1) * TILE_K
