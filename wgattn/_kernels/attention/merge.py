"""Merge: the parts of every row, computed over separate keys, to one output and residual. Its shader is merge.wgsl."""

from collections.abc import Mapping
from dataclasses import replace

from wgattn._dtypes import float32, short_name
from wgattn._kernels.attention.boxes import Box
from wgattn._kernels.attention.inputs import Rows, bindings, constants, parameters, resources_and_values
from wgattn._kernels.attention.problem import EVERY_KEY, AttentionProblem, Call, KeyRange
from wgattn._kernels.kernel import Binding, Bytes, Launch, Operand, Variant, fold_workgroups
from wgattn._runtime.profile import DeviceProfile

WORKGROUP = 256
LEAST_PARTS = 8  # parts of a row that are worth threads of their own
UNBUFFERED = ("query", "key", "value")


def row_bytes(problem: AttentionProblem) -> int:
    """Bytes of one row's sums in one part: value_dim elements, then (top, total)."""
    return (problem.value_dim + 4) * 4


def lanes_of(problem: AttentionProblem, parts: int, profile: DeviceProfile) -> int:
    """How many threads share the parts of a row's chunk. On a CPU adapter one: workgroup memory is slow there."""
    chunks = problem.value_dim // 4
    return 1 if profile.is_cpu or parts < LEAST_PARTS else max(1, min(WORKGROUP // chunks, parts // 4))


def variant(problem: AttentionProblem, lanes: int = 1) -> Variant:
    """What is left of a problem when its parts are merged: how rows end and how they are stored."""
    chunks = problem.value_dim // 4
    left = replace(
        problem, query_dtype=float32, key_dtype=float32, value_dtype=float32, keys=KeyRange(), mask=False,
        segments=False, rope=None, query_offset=False, softcap=False, run_time_scale=False, head_dim=16, group=1,
        queries="one", exact_dims=True, empty_rows="zero" if problem.empty_rows == "zero" else None,
        paged=False, ring=False, scales=False, bias=None, vectors=tuple(v for v in problem.vectors if v == "out"),
    )  # fmt: skip
    words = (
        f"merge-{short_name(problem.out_dtype)}{'q' if left.vectors else ''}-v{problem.value_dim}",
        *(("natural",) if problem.bias is not None else ()),
        *(word for word in left.features if word in ("sink", "qlen", "zero") or word.startswith("res")),
        *((f"p{lanes}",) if lanes > 1 else ()),
    )
    given = dict(constants(left, False, UNBUFFERED)) | {"NATURAL": problem.bias is not None}
    kept = tuple(b for b in bindings(left, False, UNBUFFERED) if b.name in ("out", "residual", "rows"))
    return Variant(
        family="merge",
        name="-".join(words),
        template="attention/merge.wgsl",
        constants=(
            *given.items(),
            ("WORKGROUP", WORKGROUP),
            ("CHUNKS", chunks),
            ("PART_LANES", lanes),
            ("ROWS", WORKGROUP // (chunks * lanes)),
        ),
        bindings=(Binding("partial", "read", "vec4<f32>"), *kept),
        parameters=parameters(left, UNBUFFERED),
        workgroup_bytes=40 * WORKGROUP if lanes > 1 else 0,
    )


def launch(
    problem: AttentionProblem,
    call: Call,
    operands: Mapping[str, Operand],
    rows: Rows,
    box: Box,
    parts: int,
    profile: DeviceProfile,
) -> Launch:
    """The merge of a box of rows, whose `parts` have been computed over all keys."""
    limits = profile.limits
    lanes, chunks = lanes_of(problem, parts, profile), problem.value_dim // 4
    shader = variant(problem, lanes)
    merged = replace(call, clauses=EVERY_KEY, rope=None)
    resources, values = resources_and_values(problem, merged, operands, box, rows, limits.offset_alignment, UNBUFFERED)
    values |= {"parts": parts, "part_first": 0, "part_keys": box.size("s")}
    names = {name for name, _ in shader.parameters.fields}
    threads = box.batch * box.size("t") * int(values["N"]) * chunks * lanes
    each = WORKGROUP if lanes == 1 else WORKGROUP // (chunks * lanes) * chunks * lanes  # whole rows
    return Launch(
        shader,
        {b.name: resources.get(b.name, Bytes(b.name)) for b in shader.bindings},
        shader.parameters.pack(**{name: value for name, value in values.items() if name in names}),
        fold_workgroups(-(-threads // each), limits.workgroups_per_dimension),
    )
