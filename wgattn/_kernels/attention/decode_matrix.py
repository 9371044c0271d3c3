"""Decode on matrix units: one query row a head against float8 caches, which become float16 exactly. For T = 1."""

from collections.abc import Mapping

from wgattn._dtypes import float8_e4m3fn, float8_e5m2, float32, short_name
from wgattn._kernels.attention.inputs import bindings, constants, parameters
from wgattn._kernels.attention.launches import enough_buffers, plan_row, split_candidates
from wgattn._kernels.attention.naming import variant_name
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant, unsupported
from wgattn._kernels.matrices import LANES, is_emulated, matrix_features, supports_matrices
from wgattn._runtime.profile import DeviceProfile, Tuned

name = "decode_matrix"
DIMS = (64, 128)
PART_DIM = 64  # head dims that are staged at a time
TILE_K = 32  # keys
# 16 bytes from one row to the next, of keys and values, of weights, of sums: odd numbers, against bank conflicts
PITCH, WEIGHT_PITCH, SUM_PITCH = PART_DIM // 8 + 1, TILE_K // 8 + 1, 5
EXCHANGE = 16 * max(WEIGHT_PITCH, SUM_PITCH)
LEAST_GROUP = 3  # with fewer query heads a key/value head, multiplications are few and lanes do them as fast
SLACK = 4.0  # how far a logit may lie above the running maximum
LARGE = 2048.0  # what weights are multiplied by: with SLACK below the largest float16, and far from the smallest


def heads_of(problem: AttentionProblem) -> int:
    """Query heads that one read of a key serves, in two rows of a matrix each."""
    return 4 if problem.group <= 4 else 8


def supports(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    if problem.queries != "one":
        return unsupported("it takes T = 1 alone")
    units = supports_matrices(profile)
    if not units:
        return units
    if problem.key_dtype not in (float8_e4m3fn, float8_e5m2) or problem.value_dtype != problem.key_dtype:
        return unsupported("it takes float8 keys and values of one type")
    if float32 in (problem.query_dtype, problem.out_dtype):
        return unsupported("matrix units add without rounding, which a float32 result would show")
    if problem.head_dim not in DIMS or problem.value_dim not in DIMS or not problem.exact_dims:
        return unsupported("it takes head dims of 64 and 128")
    if problem.rope is not None or problem.aligned < 16:
        return unsupported("it takes keys as they lie, without rotation, in rows at multiples of 16 bytes")
    return enough_buffers(problem, profile)


def suits(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    if problem.group < LEAST_GROUP:
        return unsupported(f"lanes are as fast for fewer than {LEAST_GROUP} query heads a key/value head")
    return SUPPORTED


def candidates(problem: AttentionProblem, profile: DeviceProfile) -> Tuned:
    return split_candidates(profile)


def variant(problem: AttentionProblem, profile: DeviceProfile, partial: bool = False) -> Variant:
    heads, emulated = heads_of(problem), is_emulated(profile)
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
            ("TILE_K", TILE_K),
            ("PART_DIM", PART_DIM),
            ("KEY_PARTS", problem.head_dim // PART_DIM),
            ("VALUE_PARTS", problem.value_dim // PART_DIM),
            ("PITCH", PITCH),
            ("SUM_PITCH", SUM_PITCH),
            ("EXCHANGE", EXCHANGE),
            ("WEIGHT_PITCH", WEIGHT_PITCH),
            ("ITEMS", 4 * heads),
            ("SLACK", SLACK),
            ("LARGE", LARGE),
            ("NAN_IS_INFINITE", problem.key_dtype == float8_e4m3fn),
            ("key_name", short_name(problem.key_dtype)),
        ),
        bindings=bindings(problem, partial, unit=16),
        parameters=parameters(problem),
        workgroup_bytes=(TILE_K * PITCH + EXCHANGE) * 16 + 2 * heads * 4,
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
