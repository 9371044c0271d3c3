"""What the families of CPU adapters share: subgroups whose lanes hold rows or head dims, textures that they read."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from wgattn._dtypes import short_name
from wgattn._kernels.attention.boxes import Box, whole
from wgattn._kernels.attention.inputs import bindings, constants, parameters, texel_dtype
from wgattn._kernels.attention.launches import SPLITS, plan_buffers
from wgattn._kernels.attention.naming import variant_name
from wgattn._kernels.attention.problem import AttentionProblem, Call, key_count
from wgattn._kernels.attention.textures import (
    Textures,
    dense_reason,
    given_dense,
    stored_names,
    texture_fields,
    unbuffered,
)
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant, unsupported
from wgattn._kernels.texture import FOLD
from wgattn._runtime.profile import DeviceProfile, Tuned

SUBGROUPS = (4, 8, 16)
MAX_DIM = 256
BUSY = 8  # workgroups that keep the threads of a CPU busy; every further part of the keys costs sums to merge
LEAST_KEYS = 512  # keys that are worth a part
CACHED = 8 << 20  # bytes of keys and values that stay in a CPU's cache from their copy to their use


def device_support(profile: DeviceProfile) -> Support:
    """Whether a device is a CPU adapter whose subgroups are of a size that shaders are written for."""
    if not profile.is_cpu:
        return unsupported(f"it is for CPU adapters, and {profile.name} is none")
    if not profile.subgroups or profile.subgroup_size not in SUBGROUPS:
        return unsupported(
            f"it needs subgroups of 4, 8 or 16 lanes; {profile.name} has {profile.subgroup_size or 'none'}"
        )
    return SUPPORTED


def supports(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    device = device_support(profile)
    if not device:
        return device
    if max(problem.head_dim, problem.value_dim) > MAX_DIM:
        return unsupported(f"it takes head dims up to {MAX_DIM}, this is {max(problem.head_dim, problem.value_dim)}")
    textures = 1 + len(stored_names(problem))
    if profile.limits.storage_textures < textures:
        return unsupported(f"it reads {textures} textures; the device binds {profile.limits.storage_textures}")
    return SUPPORTED


def variant(
    family: str,
    problem: AttentionProblem,
    profile: DeviceProfile,
    partial: bool,
    names: tuple[str, ...],
    word: str,
    own: tuple[tuple[str, object], ...],
    reason: str,
) -> Variant:
    """The shader of a family that reads the operands `names` from textures; `word` tells of its `own` constants."""
    subgroup, unread = profile.subgroup_size or 0, unbuffered(names)
    dense = given_dense(problem)
    from_buffers = [f"buf{name}" for name in dense if name not in names]
    return Variant(
        family=family,
        name=variant_name(family, problem, partial, word, *from_buffers, f"sg{subgroup}"),
        template=f"attention/{family}.wgsl",
        constants=(
            *constants(problem, partial, unread),
            *((f"{name}_texel", short_name(texel_dtype(problem, name))) for name in names if name != "scales"),
            ("stored_names", stored_names(problem)),
            ("dense_names", tuple(name for name in dense if name in names)),
            ("FOLD", FOLD),
            *own,
            ("SUBGROUP", subgroup),
        ),
        bindings=bindings(problem, partial, unread),
        parameters=parameters(problem, unread, texture_fields(names, problem.paged)),
        features=frozenset({"subgroup"}),
        reason=f"CPU adapter with subgroups of {subgroup}{reason}{dense_reason(problem, names)}",
    )


def plan(
    problem: AttentionProblem,
    call: Call,
    operands: Mapping[str, Operand],
    profile: DeviceProfile,
    names: tuple[str, ...],
    variant_of: Callable[[bool], Variant],
    workgroups: Callable[[Box], int],
    splits: Callable[[Box], int],
    most_keys: int | None,
    near: bool,
) -> Plan:
    """The plan of a family that reads `names` from textures.

    `near`: no more is copied at once than stays in the CPU's cache. `most_keys` are those that an invocation may pass;
    the functions are `plan_buffers`'.
    """
    textures, entries = Textures(names, problem, call, operands, profile.limits), None
    if near:
        all_of = whole(operands, key_count(call, operands))
        entries, most_keys = cached_part(textures, workgroups(all_of), most_keys, splits(all_of))
    return plan_buffers(
        problem,
        call,
        operands,
        profile,
        variant_of,
        workgroups,
        splits,
        max_keys=most_keys,
        textures=replace(textures, most_entries=entries),
    )


def cached_part(textures: Textures, workgroups: int, looped: int | None, splits: int) -> tuple[int | None, int | None]:
    """How many batch entries, and keys a part, are worked on at once, so that what is copied to textures is read while
    it is in the CPU's cache; not more keys than `looped`. None: all. A pool that is copied whole stays in no cache.
    """
    if textures.pool("key") is not None or textures.pool("value") is not None:
        return None, looped
    key = textures.operands["key"]
    b0, b1, keys = key.shape[:3]
    of_key = textures.key_bytes()
    apart = all(s >= keys * key.strides[2] > 0 for s, n in zip(key.strides, (b0, b1), strict=False) if n > 1)
    least = -(-b0 * b1 * BUSY // max(workgroups, 1)) if apart else b0 * b1
    entries = max(least, CACHED // max(keys * of_key, 1), 1)
    cached = max(CACHED // (min(entries, b0 * b1) * of_key) // splits // 64 * 64, LEAST_KEYS)
    return entries, cached if looped is None else min(cached, looped)


def parts(workgroups: int, keys: int, profile: DeviceProfile) -> int:
    """Into how many parts keys are split. Tuned by SPLITS."""
    busy = profile.constant(SPLITS, BUSY)
    return max(1, min(-(-busy // max(workgroups, 1)), keys // LEAST_KEYS))


def part_candidates() -> Tuned:
    """The values of SPLITS that are worth a trial on a CPU adapter."""
    return tuple((SPLITS, busy) for busy in (BUSY // 2, BUSY, 2 * BUSY, 4 * BUSY))


def max_keys(profile: DeviceProfile, each: int, loops: int) -> int | None:
    """How many keys an invocation may pass: `each` a turn, in as many loops as the shader has."""
    turns = profile.limits.loop_turns
    return None if turns is None else max((turns - 1024) // loops, 1) * each


def steps(first: int, end: int) -> tuple[int, ...]:
    """The powers of two from `first` on below `end`, both of them such: by how much lanes of an exchange differ."""
    return tuple(1 << i for i in range(first.bit_length() - 1, end.bit_length() - 1))
