"""The launches of one attention call, whichever family runs it: boxes, parts of the keys, the merge."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from wgattn._kernels.attention import merge
from wgattn._kernels.attention.boxes import Box, Span, cut_to_limits
from wgattn._kernels.attention.inputs import Rows, bindings, gather_rows, resources_and_values
from wgattn._kernels.attention.problem import AttentionProblem, Call, key_count
from wgattn._kernels.attention.textures import Filled, Textures
from wgattn._kernels.kernel import (
    SUPPORTED,
    Binding,
    Bytes,
    Copy,
    CopyToTexture,
    Launch,
    Operand,
    Plan,
    Scratch,
    Support,
    Texture,
    Variant,
    fold_workgroups,
    unsupported,
)
from wgattn._runtime.profile import DeviceProfile, Tuned

# Multiplications that a dispatch of a fast family may have where nothing was measured: drivers give up a device that
# seems to hang. A CPU adapter has no such driver.
MOST_WORK = {"discrete": 1 << 40, "unknown": 1 << 36, "integrated": 1 << 36, "cpu": None}
# Of an operation a second that was measured: 0.3 s, with half of the operations multiplications, a quarter of them in
# attention, and four times the clocks that an idle GPU is measured at.
WORK_SHARE = 0.15
BUSY_WORKGROUPS = {"discrete": 1024, "unknown": 1024, "integrated": 256, "cpu": 1}  # enough to fill a device
SPLITS = "workgroups"  # the tuned constant in its place
SPLIT_KEYS = 64  # a split of one query row's keys has no fewer: the merge reads every split
NOTHING_FILLED = Filled((), {}, {}, {})


def most_work(profile: DeviceProfile) -> int | None:
    """How many multiplications a dispatch of a fast family may have: what the device does in some 0.3 s, or what its
    kind is sure to. A power of two, so that most measurements of one device agree."""
    most = MOST_WORK[profile.kind]
    if most is None or not profile.multiply_adds:
        return most
    return 1 << int(math.log2(max(WORK_SHARE * profile.multiply_adds, 1.0)))


def splits_for(
    workgroups: int, keys: int, least_keys: int, profile: DeviceProfile, size: float = 1, halves: bool = False
) -> int:
    """Into how many parts the keys are split, so that few rows fill a device. Tuned by SPLITS.

    `size`: how many times as large as a workgroup that decodes these are, so that fewer fill it. `halves`: keys are
    halved, and halved again, so that parts end where tiles do.
    """
    busy = int(profile.constant(SPLITS, BUSY_WORKGROUPS[profile.kind]) / size)
    parts = max(1, min(busy // max(workgroups, 1), keys // least_keys))
    return 1 << parts.bit_length() - 1 if halves else parts


def split_candidates(profile: DeviceProfile) -> Tuned:
    """The values of SPLITS that are worth a trial: a half to eight times the rule's.

    Fewer would be taken by calls that leave a device idle without parts, whichever call they were found with.
    """
    busy = BUSY_WORKGROUPS[profile.kind]
    return tuple((SPLITS, busy << shift >> 1) for shift in range(5) if busy > 1)


def storage_buffers(bindings: tuple[Binding, ...]) -> int:
    return sum(binding.access in ("read", "write") for binding in bindings)


def enough_buffers(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    """Whether a kernel that reads buffers alone can bind all that the problem has, in parts if need be."""
    needed, most = storage_buffers(bindings(problem, True)), profile.limits.storage_buffers
    if needed > most:
        return unsupported(
            f"its operands are {needed} storage buffers, of {most} that a kernel has here; put the mask into the bias"
        )
    return SUPPORTED


def plan_buffers(
    problem: AttentionProblem,
    call: Call,
    operands: Mapping[str, Operand],
    profile: DeviceProfile,
    variant_of: Callable[[bool], Variant],
    workgroups_of: Callable[[Box], int],
    splits_of: Callable[[Box], int] = lambda box: 1,
    max_keys: int | None = None,
    whole_groups: bool = False,
    textures: Textures | None = None,
    slowness: int = 1,
) -> Plan:
    """The plan of a family that reads its operands from buffers, or some of them from textures.

    `variant_of(partial)` gives the shader; `workgroups_of(box)` the workgroups of one part of a box; `splits_of(box)`
    how many parts each range of keys is worked on at once; `max_keys` how many keys one invocation may pass;
    `whole_groups` keeps the query heads of a key/value head in one box; `slowness` is how many times longer a
    multiplication takes than in a fast family.
    """
    limits = profile.limits
    keys = key_count(call, operands)
    most = most_work(profile)

    def cut(splits: int) -> tuple[tuple[Box, ...], tuple[Span, ...]]:
        return cut_to_limits(
            operands,
            limits,
            max_keys=None if max_keys is None else max_keys * splits,
            partial_row_bytes=merge.row_bytes(problem),
            splits=splits,
            whole_groups=whole_groups,
            fits=None if textures is None else textures.fits,
            most_work=None if most is None else most // slowness,
            pooled_keys=keys if problem.paged else None,
        )

    splits, (boxes, key_spans) = 1, cut(1)
    if boxes and key_spans:
        # Boxes are worked on one after another: each is to fill the device, with no more parts than have one binding.
        least_rows = problem.group if whole_groups else 1
        bound = limits.binding_bytes // (len(key_spans) * least_rows * merge.row_bytes(problem))
        splits = max(1, min(splits_of(replace(boxes[0], s=key_spans[0])), bound))
        if splits > 1:
            boxes, key_spans = cut(splits)
    # A call with everything there is binds a residual too many for some devices: the merge writes it.
    crowded = storage_buffers(variant_of(False).bindings) > limits.storage_buffers
    partial = splits > 1 or len(key_spans) > 1 or crowded
    variant = variant_of(partial)
    rows = gather_rows(problem, operands, operands["query"].shape[0] * operands["query"].shape[1])
    work = _Work(problem, call, operands, profile, rows, textures)
    parts = _parts_of(key_spans, splits)
    steps: list[Launch | Copy | CopyToTexture] = list(rows.steps)
    scratch: dict[str, Scratch | Texture] = dict(rows.scratch)
    for box in boxes:
        for part in parts:
            here = replace(box, s=part.keys)
            filled = work.fill(here, scratch)
            steps += (*filled.steps, work.launch(variant, here, part, filled, workgroups_of(here) * part.count))
            scratch |= filled.scratch
        if partial:
            steps.append(merge.launch(problem, call, operands, rows, box, _count(parts), profile))
    if partial:
        most_rows = max((box.batch * box.size("t") * box.size("n") for box in boxes), default=0)
        scratch["partial"] = Scratch(_count(parts) * most_rows * merge.row_bytes(problem))
    return Plan(tuple(steps), scratch)


@dataclass(frozen=True, slots=True)
class _Parts:
    """A range of keys that one dispatch works on in `count` parts of `part_keys` each, numbered from `first`."""

    keys: Span
    part_keys: int
    count: int
    first: int

    @property
    def values(self) -> dict[str, int]:
        """What the shader is told."""
        return {"parts": self.count, "part_first": self.first, "part_keys": self.part_keys}


@dataclass(frozen=True, slots=True)
class _Work:
    """What the launches of one call share."""

    problem: AttentionProblem
    call: Call
    operands: Mapping[str, Operand]
    profile: DeviceProfile
    rows: Rows
    textures: Textures | None

    def fill(self, here: Box, known: Mapping[str, Scratch | Texture]) -> Filled:
        """What a box has in textures, and the steps that bring it there; `known` are those of other boxes."""
        return NOTHING_FILLED if self.textures is None else self.textures.fill(here, self.rows, known)

    def launch(self, variant: Variant, here: Box, part: _Parts, filled: Filled, workgroups: int) -> Launch:
        limits = self.profile.limits
        resources, values = resources_and_values(
            self.problem, self.call, self.operands, here, self.rows, limits.offset_alignment,
            () if self.textures is None else self.textures.names,
        )  # fmt: skip
        return Launch(
            variant,
            _bound(variant, {**resources, **filled.resources}),
            variant.parameters.pack(**{**values, **filled.values, **part.values}),
            fold_workgroups(workgroups, limits.workgroups_per_dimension),
        )


def _parts_of(spans: Sequence[Span], splits: int) -> tuple[_Parts, ...]:
    parts: list[_Parts] = []
    for first, end in spans:
        part_keys = -(-(end - first) // splits // 8) * 8  # whole turns of eight keys
        parts.append(_Parts((first, end), part_keys, -(-(end - first) // part_keys), _count(parts)))
    return tuple(parts)


def _count(parts: Sequence[_Parts]) -> int:
    return sum(each.count for each in parts)


def plan_row(
    problem: AttentionProblem,
    call: Call,
    operands: Mapping[str, Operand],
    profile: DeviceProfile,
    variant_of: Callable[[bool], Variant],
    heads: int,
    max_keys: int | None,
    least_keys: int = SPLIT_KEYS,
) -> Plan:
    """The plan of a family for T = 1: a workgroup serves up to `heads` query heads of a group over a part of the keys.

    `least_keys` is `splits_for`'s, the others are `plan_buffers`'.
    """
    head_blocks = -(-problem.group // heads)

    def workgroups(box: Box) -> int:
        return box.batch * (box.size("n") // problem.group) * head_blocks

    def splits(box: Box) -> int:
        return splits_for(workgroups(box), box.size("s"), least_keys, profile)

    return plan_buffers(problem, call, operands, profile, variant_of, workgroups, splits, max_keys, whole_groups=True)


def plan_blocks(
    problem: AttentionProblem,
    call: Call,
    operands: Mapping[str, Operand],
    profile: DeviceProfile,
    variant_of: Callable[[bool], Variant],
    heads: int,
    rows: int,
    max_keys: int | None,
    least_keys: int,
    size: float,
    halves: bool = False,
) -> Plan:
    """The plan of a family whose workgroups serve blocks of `rows` rows: of one query head, or `heads` of a group.

    `least_keys`, `size` and `halves` are `splits_for`'s, the others `plan_buffers`'.
    """

    def workgroups(box: Box) -> int:
        units = box.size("n") if heads == 1 else box.size("n") // problem.group * -(-problem.group // heads)
        return box.batch * units * -(-box.size("t") * heads // rows)

    def splits(box: Box) -> int:
        return splits_for(workgroups(box), box.size("s"), least_keys, profile, size, halves)

    return plan_buffers(
        problem, call, operands, profile, variant_of, workgroups, splits, max_keys, whole_groups=heads > 1
    )


def _bound(variant: Variant, resources: Mapping[str, object]) -> dict:
    """The resources that a variant binds; residual, partial and tables are whole buffers of their own name."""
    return {b.name: resources.get(b.name, Bytes(b.name)) for b in variant.bindings}
