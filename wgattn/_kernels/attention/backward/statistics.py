"""What is made of rows before the sweeps: their statistics, far rows once more, the sum over rows without keys."""

from dataclasses import replace

from wgattn._dtypes import short_name
from wgattn._kernels.attention.backward.problem import stripped
from wgattn._kernels.attention.backward.work import (
    ADDING,
    GRAD_OUT,
    LARGEST,
    LARGEST_PARTS,
    WORKGROUP,
    Work,
    grad_out_binding,
    key_heads,
    launch,
    shader,
    sums_binding,
)
from wgattn._kernels.attention.boxes import Box, Span, cut
from wgattn._kernels.attention.naming import variant_name
from wgattn._kernels.attention.problem import AttentionProblem, KeyRange
from wgattn._kernels.kernel import Binding, Bytes, Launch, Scalar, bound_bytes, storage_element

LANES = 8  # threads that add up a row of grad_out · out
LARGEST_WORKGROUP = 256
FAR_RESIDUAL = 256.0  # float32 holds a residual below it to 1.5e-5
MEAN = Bytes("mean")
ROWS_ALONE = ("query", "key", "value", "out")


def rows_alone(work: Work, **kept: object) -> AttentionProblem:
    """The problem of kernels that read grad_out and no key."""
    sweep = work.problem.sweep
    quads = tuple(name for name in sweep.vectors if name == "grad_out")
    return stripped(
        sweep,
        out_dtype=sweep.out_dtype,
        value_dim=sweep.value_dim,
        exact_dims=sweep.exact_dims,
        query_lengths=sweep.query_lengths,
        vectors=quads,
        **kept,
    )


def delta(work: Work, box: Box) -> Launch:
    """Every row's residual and grad_out · out, into `rows`."""
    left, problem = rows_alone(work), work.problem
    saved: tuple[tuple[str, Scalar], ...] = tuple((f"out_{axis}", "u32") for axis in ("at", "b0", "b1", "t", "n"))
    natural = problem.sweep.bias is not None
    words = (
        f"delta-{short_name(left.out_dtype)}{'q' * bool(left.vectors)}",
        f"{short_name(problem.saved_dtype)}{'q' * problem.saved_quads}-v{left.value_dim}{'p' * (not left.exact_dims)}",
        *(("qlen",) if left.query_lengths else ()),
        *(("natural",) if natural else ()),
    )
    variant = shader(
        "delta",
        "-".join(words),
        "delta",
        left,
        (
            grad_out_binding(left),
            Binding("out", "read", storage_element(problem.saved_dtype, problem.saved_quads)),
            Binding("residual", "read", "f32"),
            Binding("rows", "write", "u32"),
        ),
        (*GRAD_OUT, *ADDING, *saved),
        (("LANES", LANES), ("saved_name", short_name(problem.saved_dtype)), ("saved_quads", problem.saved_quads)),
        ROWS_ALONE,
        WORKGROUP * 4,
        natural,
    )
    part = cut("out", work.operands["out"], box, work.group)
    resource, at = bound_bytes(part, "out", work.limits.offset_alignment)
    placed = {f"out_{axis}": stride % 2**32 for axis, stride in zip(("b0", "b1", "t", "n"), part.strides, strict=False)}
    rows = box.batch * box.size("t") * box.size("n")
    count = -(-rows * LANES // WORKGROUP)
    return launch(work, variant, left, box, count, {"out": resource}, out_at=at, **placed)


def far_rows(work: Work, box: Box, spans: tuple[Span, ...], loop_turns: int | None) -> list[Launch]:
    """The statistics of rows whose residual is far from 0, over one range of keys after another."""
    sweep = work.problem.sweep
    bound = [
        Binding("query", "read", storage_element(sweep.query_dtype, "query" in sweep.vectors)),
        Binding("key", "read", storage_element(sweep.key_dtype, "key" in sweep.vectors)),
        Binding("residual", "read", "f32"),
        Binding("bias", "read", "u32"),
        *((Binding("mask", "read", "u32"),) if sweep.mask else ()),
        Binding("rows", "write", "u32"),
    ]
    variant = shader(
        "far_rows",
        variant_name("far_rows", sweep, False),
        "far_rows",
        sweep,
        tuple(bound),
        ADDING,
        (("FAR_RESIDUAL", FAR_RESIDUAL),),
        ("value", "out"),
    )
    count = -(-box.batch * box.size("t") * box.size("n") // WORKGROUP)
    step = box.size("s") if loop_turns is None else max((loop_turns - 1024) // (sweep.head_dim // 4 + 1), 1)
    parts = [
        replace(box, s=(start, min(start + step, end))) for first, end in spans for start in range(first, end, step)
    ]
    return [launch(work, variant, sweep, part, count, add=int(turn > 0)) for turn, part in enumerate(parts)]


def largest(work: Work, box: Box, add: bool) -> Launch:
    """The largest elements of V and grad_out of each key/value head of a box, into `rows`; NaN and infinity aside."""
    sweep = work.problem.sweep
    left = stripped(
        sweep,
        value_dtype=sweep.value_dtype,
        out_dtype=sweep.out_dtype,
        value_dim=sweep.value_dim,
        exact_dims=sweep.exact_dims,
        keys=KeyRange(lengths=sweep.keys.lengths),
        query_lengths=sweep.query_lengths,
        group=sweep.group,
        vectors=tuple(name for name in sweep.vectors if name in ("value", "grad_out")),
    )
    natural = sweep.bias is not None
    words = (
        f"largest-{short_name(left.value_dtype)}{'q' * ('value' in left.vectors)}",
        f"{short_name(left.out_dtype)}{'q' * ('grad_out' in left.vectors)}",
        f"v{left.value_dim}{'p' * (not left.exact_dims)}",
        *(word for word, there in (("klen", left.keys.lengths), ("qlen", left.query_lengths)) if there),
        *(("natural",) if natural else ()),
    )
    bound = (
        Binding("value", "read", storage_element(left.value_dtype, "value" in left.vectors)),
        grad_out_binding(left),
        Binding("rows", "write", "u32"),
    )
    variant = shader(
        "largest",
        "-".join(words),
        "largest",
        left,
        bound,
        (*GRAD_OUT, *ADDING, *LARGEST),
        (("WORKGROUP", LARGEST_WORKGROUP), ("LARGEST_PARTS", LARGEST_PARTS)),
        ("query", "key", "out"),
        LARGEST_WORKGROUP * 4,
        natural,
    )
    count = LARGEST_PARTS * box.batch * key_heads(box, work.group)
    return launch(work, variant, left, box, count, add=int(add))


def empty_rows(work: Work, box: Box, add: bool) -> Launch:
    """The sum of grad_out over rows that keep no key, (batch, K, value_dim), into the scratch `mean`."""
    left = rows_alone(work)
    words = (
        f"empty_rows-{short_name(left.out_dtype)}{'q' * bool(left.vectors)}",
        f"v{left.value_dim}{'p' * (not left.exact_dims)}",
        *(("qlen",) if left.query_lengths else ()),
    )
    bound = (
        grad_out_binding(left),
        Binding("residual", "read", "f32"),
        *((Binding("rows", "read", "u32"),) if left.query_lengths else ()),
        sums_binding(),
    )
    variant = shader(
        "empty_rows",
        "-".join(words),
        "empty_rows",
        left,
        bound,
        (*GRAD_OUT, *ADDING),
        (),
        ROWS_ALONE,
        WORKGROUP * 16,
    )
    count = box.batch * key_heads(box, work.group) * (left.value_dim // 4)
    return launch(work, variant, left, box, count, {"sums": MEAN}, add=int(add))
