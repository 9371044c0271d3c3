"""Flash, rows in lanes: keys are read from textures and handed to all query rows by shuffles. For CPU adapters."""

from collections.abc import Mapping
from dataclasses import replace

from wgattn._dtypes import short_name
from wgattn._kernels.attention.boxes import Box, whole
from wgattn._kernels.attention.inputs import bindings, constants, parameters, texel_dtype
from wgattn._kernels.attention.launches import SPLITS, plan_buffers
from wgattn._kernels.attention.naming import tuned_name, variant_name
from wgattn._kernels.attention.problem import AttentionProblem, Call, key_count
from wgattn._kernels.attention.textures import Textures, stored_names, texture_fields, unbuffered
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant, unsupported
from wgattn._kernels.texture import FOLD
from wgattn._runtime.profile import DeviceProfile, Tuned

name = "flash_rows"
SUBGROUPS = (4, 8, 16)
BUSY = 8  # workgroups that keep the threads of a CPU busy; every further part of the keys costs sums to merge
LEAST_KEYS = 512  # keys that are worth a part
CACHED = 8 << 20  # bytes of keys and values that stay in a CPU's cache from their copy to their use


def supports(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    return lanes_support(problem, profile)


def lanes_support(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    """What both families of CPU adapters ask for."""
    if not profile.is_cpu:
        return unsupported(f"it is for CPU adapters, and {profile.name} is none")
    if not profile.subgroups or profile.subgroup_size not in SUBGROUPS:
        return unsupported(
            f"it needs subgroups of 4, 8 or 16 lanes; {profile.name} has {profile.subgroup_size or 'none'}"
        )
    if max(problem.head_dim, problem.value_dim) > 256:
        return unsupported(f"it takes head dims up to 256, this is {max(problem.head_dim, problem.value_dim)}")
    textures = 1 + len(stored_names(problem))
    if profile.limits.storage_textures < textures:
        return unsupported(f"it reads {textures} textures; the device binds {profile.limits.storage_textures}")
    return SUPPORTED


def suits(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    return SUPPORTED


def rows_a_lane(problem: AttentionProblem, subgroup: int, tuned: int = -1) -> int:
    """More rows a lane share a key's read and shuffles; each adds to the time that the first call compiles."""
    if tuned in _rows(problem):
        return tuned
    most = {"one": 1, "few": 16, "short": 256, "many": 1 << 20}[problem.queries] * problem.group
    most_rows = max(_rows(problem))
    if problem.queries != "many":
        most_rows = min(most_rows, 2)
    while most_rows > 1 and most < 2 * most_rows * subgroup:
        most_rows //= 2
    return most_rows


def _rows(problem: AttentionProblem) -> tuple[int, ...]:
    """Rows a lane that compile in a few seconds."""
    width = problem.head_dim + problem.value_dim
    return (1, 2, 4)[: 1 if width > 256 else 2 if width > 128 or problem.dense else 3]


def _rows_of(problem: AttentionProblem, profile: DeviceProfile) -> int:
    return rows_a_lane(problem, profile.subgroup_size or 0, profile.constant(tuned_name(name, problem)))


def candidates(problem: AttentionProblem, profile: DeviceProfile) -> Tuned:
    return *((tuned_name(name, problem), rows) for rows in _rows(problem)), *part_candidates()


def variant(problem: AttentionProblem, profile: DeviceProfile, partial: bool = False) -> Variant:
    subgroup = profile.subgroup_size or 0
    rows = _rows_of(problem, profile)
    names = ("query", *stored_names(problem))
    return Variant(
        family=name,
        name=variant_name(name, problem, partial, f"r{rows}", f"sg{subgroup}"),
        template="attention/flash_rows.wgsl",
        constants=(
            *constants(problem, partial, unbuffered(names)),
            *((f"{operand}_texel", short_name(texel_dtype(problem, operand))) for operand in ("query", "key", "value")),
            ("stored_names", stored_names(problem)),
            ("FOLD", FOLD),
            ("ROWS", rows),
            ("SUBGROUP", subgroup),
            ("xor_steps", tuple(1 << i for i in range(subgroup.bit_length() - 1))),
        ),
        bindings=bindings(problem, partial, unbuffered(names)),
        parameters=parameters(problem, unbuffered(names), texture_fields(names, problem.paged)),
        features=frozenset({"subgroup"}),
        reason=f"CPU adapter with subgroups of {subgroup}: rows stay in a lane's registers, keys come from textures",
    )


def plan(problem: AttentionProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile) -> Plan:
    subgroup = profile.subgroup_size or 1
    group = operands["query"].shape[3] // operands["key"].shape[3]
    block = _rows_of(problem, profile) * subgroup

    def workgroups(box: Box) -> int:
        share = min(group, box.size("n"))
        return -(-box.size("t") * share // block) * (box.size("n") // share) * box.batch

    def splits(box: Box) -> int:
        return parts(workgroups(box), box.size("s"), profile)

    textures = Textures(("query", *stored_names(problem)), problem, call, operands, profile.limits)
    most_keys, entries = max_keys(profile, subgroup, loops=2 + problem.segments), None
    if problem.queries in ("one", "few"):  # more rows take longer than the copies
        all_of = whole(operands, key_count(call, operands))
        entries, most_keys = cached_part(textures, workgroups(all_of), most_keys, splits(all_of))

    return plan_buffers(
        problem,
        call,
        operands,
        profile,
        lambda partial: variant(problem, profile, partial),
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
    return tuple((SPLITS, busy) for busy in (1, BUSY // 2, BUSY, 2 * BUSY, 4 * BUSY))


def max_keys(profile: DeviceProfile, each: int, loops: int) -> int | None:
    """How many keys an invocation may pass: `each` a turn, in as many loops as the shader has."""
    turns = profile.limits.loop_turns
    return None if turns is None else max((turns - 1024) // loops, 1) * each
