"""The launches of one attention call, whichever family runs it: boxes, parts of the keys, the merge."""

from collections.abc import Callable, Mapping

from wgattn._kernels.attention import merge
from wgattn._kernels.attention.boxes import CUT_OPERANDS, cut_to_limits
from wgattn._kernels.attention.inputs import Box, gather_rows, resources_and_values
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.kernel import Launch, Operand, Plan, Scratch, Variant, fold_workgroups
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
    boxes = cut_to_limits(operands, limits, CUT_OPERANDS, None if max_keys is None else max_keys * splits)
    partial = splits > 1 or len(boxes.key_ranges) > 1
    variant = variant_of(partial)
    query = operands["query"]
    rows = gather_rows(problem, operands, query.shape[0] * query.shape[1])
    steps: list = list(rows.steps)
    scratch = dict(rows.scratch)
    parts = 0
    for keys in boxes.key_ranges:
        part_keys = -(-(keys[1] - keys[0]) // splits // 8) * 8  # whole turns of eight keys, so that loads stay aligned
        count = -(-(keys[1] - keys[0]) // part_keys)
        for box in boxes.over(keys):
            resources, values = resources_and_values(problem, call, operands, box, rows, limits.offset_alignment)
            values |= {"parts": count, "part_first": parts, "part_keys": part_keys}
            steps.append(
                Launch(
                    variant,
                    _bound(variant, resources),
                    variant.parameters.pack(**values),
                    fold_workgroups(workgroups_of(box) * count, limits.workgroups_per_dimension),
                )
            )
        parts += count
    if partial:
        scratch["partial"] = Scratch(merge.partial_bytes(problem, query, parts))
        steps += merge.launches(problem, call, operands, rows, parts, profile)
    return Plan(tuple(steps), scratch)


def _bound(variant: Variant, resources: Mapping[str, object]) -> dict:
    """The resources that a variant binds; residual, partial and tables are whole buffers of their own name."""
    return {b.name: resources.get(b.name, b.name) for b in variant.bindings}
