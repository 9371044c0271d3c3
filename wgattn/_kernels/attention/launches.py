"""The launches of one attention call, whichever family runs it: boxes, parts of the keys, the merge."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from wgattn._kernels.attention import merge
from wgattn._kernels.attention.boxes import Box, cut_to_limits
from wgattn._kernels.attention.inputs import gather_rows, resources_and_values
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.kernel import Bytes, Copy, Launch, Operand, Plan, Scratch, Variant, fold_workgroups
from wgattn._runtime.profile import DeviceProfile


def plan_buffers(
    problem: AttentionProblem,
    call: Call,
    operands: Mapping[str, Operand],
    profile: DeviceProfile,
    variant_of: Callable[[bool], Variant],
    workgroups_of: Callable[[Box], int],
    splits: int = 1,
    max_keys: int | None = None,
) -> Plan:
    """The plan of a family that reads its operands from buffers.

    `variant_of(partial)` gives the shader; `workgroups_of(box)` the workgroups of one part of a box; `splits` how many parts each range of keys is
    worked on at once; `max_keys` how many keys one invocation may pass.
    """
    limits = profile.limits
    row_bytes = merge.row_bytes(problem) * splits
    boxes, key_spans = cut_to_limits(
        operands, limits, max_keys=None if max_keys is None else max_keys * splits, partial_row_bytes=row_bytes if splits > 1 or max_keys else 0
    )
    partial = splits > 1 or len(key_spans) > 1
    variant = variant_of(partial)
    rows = gather_rows(problem, operands, operands["query"].shape[0] * operands["query"].shape[1])
    steps: list[Launch | Copy] = list(rows.steps)
    scratch = dict(rows.scratch)
    partial_bytes = 0
    for box in boxes:
        parts = 0
        for keys in key_spans:
            part_keys = -(-(keys[1] - keys[0]) // splits // 8) * 8  # whole turns of eight keys, so that loads stay aligned
            count = -(-(keys[1] - keys[0]) // part_keys)
            here = replace(box, s=keys)
            resources, values = resources_and_values(problem, call, operands, here, rows, limits.offset_alignment)
            values |= {"parts": count, "part_first": parts, "part_keys": part_keys}
            grid = fold_workgroups(workgroups_of(here) * count, limits.workgroups_per_dimension)
            steps.append(Launch(variant, _bound(variant, resources), variant.parameters.pack(**values), grid))
            parts += count
        if partial:
            partial_bytes = max(partial_bytes, parts * box.batch * box.size("t") * box.size("n") * merge.row_bytes(problem))
            steps.append(merge.launch(problem, call, operands, rows, box, parts, profile))
    if partial:
        scratch["partial"] = Scratch(partial_bytes)
    return Plan(tuple(steps), scratch)


def _bound(variant: Variant, resources: Mapping[str, object]) -> dict:
    """The resources that a variant binds; residual, partial and tables are whole buffers of their own name."""
    return {b.name: resources.get(b.name, Bytes(b.name)) for b in variant.bindings}
