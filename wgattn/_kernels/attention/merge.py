"""Merge: the parts of every row, computed over separate keys, to one output and residual. Its shader is merge.wgsl."""

from collections.abc import Mapping
from dataclasses import replace

from wgattn._dtypes import float32, short_name
from wgattn._errors import UnsupportedError
from wgattn._kernels.attention.boxes import cut_to_limits
from wgattn._kernels.attention.inputs import Rows, bindings, constants, parameters, resources_and_values
from wgattn._kernels.attention.problem import EVERY_KEY, AttentionProblem, Call, KeyRange
from wgattn._kernels.kernel import Binding, Bytes, Launch, Operand, Variant, fold_workgroups
from wgattn._runtime.profile import DeviceProfile

WORKGROUP = 64
UNBUFFERED = ("query", "key", "value")


def partial_bytes(problem: AttentionProblem, query: Operand, parts: int) -> int:
    """parts · rows · (value_dim + 4) · 4: each part's sums, then its (top, total)."""
    b0, b1, rows, heads, _ = query.shape
    return parts * b0 * b1 * rows * heads * (problem.value_dim + 4) * 4


def variant(problem: AttentionProblem) -> Variant:
    """What is left of a problem when its parts are merged: how rows end and how they are stored."""
    left = replace(
        problem, query_dtype=float32, key_dtype=float32, value_dtype=float32, keys=KeyRange(), mask=False, segments=False, rope=None,
        query_offset=False, softcap=False, run_time_scale=False, head_dim=16, group=1, queries="one", exact_dims=True, empty_rows=False,
        bias=None if problem.bias is None else float32, vectors=tuple(v for v in problem.vectors if v == "out"),
    )  # fmt: skip
    words = (
        f"merge-{short_name(problem.out_dtype)}{'q' if left.vectors else ''}-v{problem.value_dim}",
        *(("natural",) if problem.bias is not None else ()),
        *(word for word in left.features if word in ("sink", "qlen") or word.startswith("res")),
    )
    kept = tuple(b for b in bindings(left, False, UNBUFFERED) if b.name in ("out", "residual", "rows"))
    return Variant(
        family="merge",
        name="-".join(words),
        template="attention/merge.wgsl",
        constants=(*constants(left, False, UNBUFFERED), ("WORKGROUP", WORKGROUP), ("CHUNKS", problem.value_dim // 4)),
        bindings=(Binding("partial", "read", "vec4<f32>"), *kept),
        parameters=parameters(left, UNBUFFERED),
    )


def launches(
    problem: AttentionProblem, call: Call, operands: Mapping[str, Operand], rows: Rows, parts: int, profile: DeviceProfile
) -> tuple[Launch, ...]:
    limits = profile.limits
    if (needed := partial_bytes(problem, operands["query"], parts)) > limits.binding_bytes:
        raise UnsupportedError(
            f"{parts} parts of the keys need {needed:,} bytes of partial sums, and this device binds {limits.binding_bytes:,} at once; "
            f"attend fewer queries a call"
        )
    shader = variant(problem)
    names = {name for name, _ in shader.parameters.fields}
    made = []
    keys = (0, operands["key"].shape[2])
    merged = replace(call, clauses=EVERY_KEY, rope=None)
    for box in cut_to_limits(operands, limits, ("out",)).over(keys):
        resources, values = resources_and_values(problem, merged, operands, box, rows, limits.offset_alignment, UNBUFFERED)
        values |= {"parts": parts, "part_first": 0, "part_keys": keys[1]}
        resources["partial"] = Bytes("partial")
        count = -(-box.batch * box.rows * operands["query"].shape[3] * (problem.value_dim // 4) // WORKGROUP)
        made.append(
            Launch(
                shader,
                {b.name: resources.get(b.name, b.name) for b in shader.bindings},
                shader.parameters.pack(**{name: value for name, value in values.items() if name in names}),
                fold_workgroups(count, limits.workgroups_per_dimension),
            )
        )
    return tuple(made)
