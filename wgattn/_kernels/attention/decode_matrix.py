"""Decode on matrix units: one query row a head against caches of one byte, which become float16 exactly. For T = 1."""

from collections.abc import Mapping
from dataclasses import replace

from wgattn._dtypes import float8_e4m3fn, float32, int8, short_name
from wgattn._kernels.attention.inputs import bindings, constants, parameters
from wgattn._kernels.attention.launches import BUSY_WORKGROUPS, SPLITS, enough_buffers, plan_row, split_candidates
from wgattn._kernels.attention.naming import variant_name
from wgattn._kernels.attention.problem import AttentionProblem, Call, key_count
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
# Keys that a workgroup takes at most, where a row has up to MANY and where it has more and may be off by more: matrix
# units add without rounding, which costs 3.5e-6 of the sums of 3,276 keys. Fewer keys are slower by what starts cost.
MOST_KEYS, MOST_OF_MANY, MANY = 1024, 2048, 4096


def heads_of(problem: AttentionProblem) -> int:
    """Query heads that one read of a key serves, in two rows of a matrix each."""
    return 4 if problem.group <= 4 else 8


def supports(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    if problem.queries != "one":
        return unsupported("it takes T = 1 alone")
    units = supports_matrices(profile)
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
        return unsupported(f"lanes are as fast for fewer than {LEAST_GROUP} query heads a key/value head")
    if problem.key_dtype == int8 and float32 not in (problem.query_dtype, problem.residual):
        return unsupported("lanes multiply int8 keys as they are, and need two digits of such a query: that is faster")
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
            ("LEAST_SCALE", 2.0**-100),
            ("NAN_IS_INFINITE", problem.key_dtype == float8_e4m3fn),
            ("key_name", short_name(problem.key_dtype)),
        ),
        bindings=bindings(problem, partial, unit=16),
        parameters=parameters(problem),
        workgroup_bytes=(TILE_K * PITCH + EXCHANGE) * 16 + 3 * heads * 4,
        features=matrix_features(profile),
        reason=f"matrix units: {TILE_K} keys at a time become float16 once for {heads} heads",
    )


def plan(problem: AttentionProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile) -> Plan:
    heads, (a, b, _, n, _) = heads_of(problem), operands["query"].shape
    rows = a * b * (n // problem.group) * -(-problem.group // heads)
    keys = key_count(call, operands)
    parts = -(-keys // (MOST_KEYS if keys <= MANY else MOST_OF_MANY))
    busy = max(profile.constant(SPLITS, BUSY_WORKGROUPS[profile.kind]), rows * parts)
    return plan_row(
        problem,
        call,
        operands,
        replace(profile, tuned=(*profile.tuned, (SPLITS, busy))),
        lambda partial: variant(problem, profile, partial),
        heads,
        _max_keys(problem, profile),
    )


def _max_keys(problem: AttentionProblem, profile: DeviceProfile) -> int | None:
    """How many keys fit in the loop turns an invocation has; a row without keys loops over V besides."""
    turns = profile.limits.loop_turns
    if turns is None:
        return None
    a_tile = 1 + 2 * LANES + (TILE_K // 8 * 9 * problem.value_dim // 16 if problem.empty_rows == "mean" else 0)
    return max((turns - 4096) // a_tile, 1) * TILE_K
