"""Lanes, backward: own rows stay in a lane, the other side comes from textures by shuffles. For CPU adapters."""

import math
from collections.abc import Mapping
from dataclasses import replace

from wgattn._dtypes import short_name
from wgattn._kernels.attention.backward.launches import Sweep, Sweeps, plan_gradient
from wgattn._kernels.attention.backward.problem import GradientProblem
from wgattn._kernels.attention.backward.texels import NAMES, texel_dtype
from wgattn._kernels.attention.backward.work import ADDING, blocks_of_keys, key_heads, shader, sums_binding
from wgattn._kernels.attention.boxes import Box
from wgattn._kernels.attention.inputs import texel_dtype as dense_dtype
from wgattn._kernels.attention.lanes import device_support
from wgattn._kernels.attention.naming import variant_name
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.attention.textures import dense_beside, given_dense, texture_fields
from wgattn._kernels.kernel import SUPPORTED, Binding, Operand, Plan, Support, Variant, unsupported
from wgattn._kernels.texture import FOLD, TEXEL, texel_format
from wgattn._runtime.profile import DeviceProfile, Tuned

name = "backward_lanes"
MAX_DIM = 256
UNROLLED = 512  # how many products of own and streamed elements a turn writes out: more take too long to compile


def supports(problem: GradientProblem, profile: DeviceProfile) -> Support:
    widest = max(problem.sweep.head_dim, problem.sweep.value_dim)
    device = device_support(profile)
    if not device:
        return device
    if widest > MAX_DIM:
        return unsupported(f"it takes head dims up to {MAX_DIM}, this is {widest}")
    if profile.limits.storage_textures < len(NAMES):
        return unsupported(f"it reads {len(NAMES)} textures; the device binds {profile.limits.storage_textures}")
    return SUPPORTED


def suits(problem: GradientProblem, profile: DeviceProfile) -> Support:
    return SUPPORTED


def turn_of(sweep: AttentionProblem) -> tuple[int, int]:
    """Own rows a lane, and streamed rows a turn.

    Own rows share a streamed row's read and shuffles. Streamed rows share the reads and writes of the sums; as few as
    two do, because the lanes that are left over share the reading of each.
    """
    width = sweep.head_dim + sweep.value_dim
    items = 2 if 2 * width <= UNROLLED else 1
    rows = max(1, min(4, UNROLLED // (items * width)))
    return 1 << rows.bit_length() - 1, items


def candidates(problem: GradientProblem, profile: DeviceProfile) -> Tuned:
    return ()


def variant(problem: GradientProblem, profile: DeviceProfile) -> Variant:
    """The sweep by key and value, which stands for the family."""
    return _sweep(problem, profile, "key_value")


def plan(problem: GradientProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile) -> Plan:
    rows, _ = turn_of(problem.sweep)
    block = rows * (profile.subgroup_size or 1)
    group = problem.sweep.group

    def query_workgroups(box: Box) -> int:
        share = min(group, box.size("n"))
        return box.batch * key_heads(box, group) * -(-box.size("t") * share // block)

    most = _most(problem, profile)
    sweeps = Sweeps(
        Sweep(_sweep(problem, profile, "query"), query_workgroups),
        Sweep(_sweep(problem, profile, "key_value"), blocks_of_keys(block, group)),
        most,
        None if most is None else max(most // group, 1),
        from_textures=True,
        dense=_dense(problem, profile),
    )
    return plan_gradient(problem, call, operands, profile, sweeps)


def _sweep(problem: GradientProblem, profile: DeviceProfile, by: str) -> Variant:
    # However rows lie in their buffers, textures hold them alike.
    sweep = replace(problem.sweep, vectors=("query", "key", "value", "out"), exact_dims=True)
    subgroup = profile.subgroup_size or 1
    rows, items = turn_of(sweep)
    own, stream = ("query", "grad_out"), ("key", "value")
    if by == "key_value":
        own, stream = stream, own
    texel = {operand: texel_dtype(sweep, operand) for operand in NAMES}
    each = {operand: TEXEL // texel[operand].itemsize for operand in NAMES}
    dims = {"query": sweep.head_dim, "key": sweep.head_dim, "value": sweep.value_dim, "grad_out": sweep.value_dim}
    # The lanes beyond one for each streamed row read other shares of its texels.
    shares = [math.gcd(subgroup // items, dims[operand] // each[operand]) for operand in stream]
    dense = _dense(problem, profile)
    bound = (
        *(Binding(operand, "texture", texel_format(texel[operand])) for operand in NAMES),
        Binding("rows", "read", "u32"),
        *(
            Binding(of, "texture", texel_format(dense_dtype(sweep, of))) if of in dense else Binding(of, "read", "u32")
            for of in given_dense(sweep)
        ),
        sums_binding(),
    )
    from_buffers = (f"buf{of}" for of in given_dense(sweep) if of not in dense)
    made = shader(
        name,
        variant_name(f"{name}_{by}", sweep, False, f"r{rows}", *from_buffers, f"sg{subgroup}"),
        "lanes",
        sweep,
        bound,
        (*ADDING, *texture_fields((*NAMES, *dense))),
        (
            ("BY", by),
            ("dense_names", dense),
            ("own_head_texel", short_name(texel[own[0]])),
            ("own_value_texel", short_name(texel[own[1]])),
            ("head_texel", short_name(texel[stream[0]])),
            ("value_texel", short_name(texel[stream[1]])),
            ("FOLD", FOLD),
            ("ROWS", rows),
            ("ITEMS", items),
            ("SUBGROUP", subgroup),
            ("HEAD_SHARES", shares[0]),
            ("VALUE_SHARES", shares[1]),
        ),
        ("query", "key", "value", "grad_out", "out", "segments", *dense),
    )
    return replace(made, features=frozenset({"subgroup"})).because(
        (),
        f"CPU adapter with subgroups of {subgroup}: own rows stay in a lane's registers, the others come from textures",
    )


def _dense(problem: GradientProblem, profile: DeviceProfile) -> tuple[str, ...]:
    return dense_beside(problem.sweep, profile.limits, len(NAMES))


def _most(problem: GradientProblem, profile: DeviceProfile) -> int | None:
    """How many streamed rows fit in the loop turns an invocation has; segments are skipped in a loop of their own."""
    turns = profile.limits.loop_turns
    _, items = turn_of(problem.sweep)
    return None if turns is None else max((turns - 1024) // (1 + problem.sweep.segments), 1) * items
