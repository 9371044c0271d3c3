"""Gradients that are sums over whole axes: of a bias over those it was broadcast on, of sinks, of a run-time scale.

Every sum is made of parts that are added up in a fixed order.
"""

import math
from dataclasses import dataclass

from wgattn._dtypes import float32, short_name
from wgattn._kernels.attention.backward.problem import stripped
from wgattn._kernels.attention.backward.statistics import ROWS_ALONE
from wgattn._kernels.attention.backward.work import (
    ADDING,
    GRAD_OUT,
    WORKGROUP,
    Work,
    launch,
    shader,
    sweep_bindings,
    sweep_name,
)
from wgattn._kernels.attention.boxes import Box
from wgattn._kernels.attention.problem import scale_of
from wgattn._kernels.kernel import (
    Binding,
    Bytes,
    Launch,
    Operand,
    Parameters,
    Scalar,
    Variant,
    bound_bytes,
    fold_workgroups,
    natural_strides,
    storage_element,
)

SCALE_PARTS = 1024  # workgroups that add up the scale's gradient, shared out over batch entries
BUSY_THREADS = 1 << 17
FEW_ELEMENTS = 4096  # of a bias: below, many threads share one
MOST_PARTIAL = 1 << 22  # elements of partial sums
AXES = ("b0", "b1", "n", "t", "s")
_AXES_FIELDS: tuple[tuple[str, Scalar], ...] = tuple(
    (f"{prefix}_{axis}", "u32") for prefix in ("own", "over", "result") for axis in AXES
)


def sinks(work: Work, whole: Box) -> Launch:
    """grad_sinks, of each head or of each head of a batch entry, from the statistics of all rows."""
    sweep = work.problem.sweep
    left = stripped(sweep, sinks=True)
    natural = sweep.bias is not None
    bound = (Binding("rows", "read", "u32"), Binding("grad_sinks", "write", "f32"))
    variant = shader(
        "grad_sinks",
        "grad_sinks" + "-natural" * natural,
        "grad_sinks",
        left,
        bound,
        (*ADDING, ("entries", "u32"), ("result_at", "u32")),
        (),
        ROWS_ALONE,
        WORKGROUP * 4,
        natural,
    )
    result = work.operands["grad_sinks"]
    elements = math.prod(result.shape)
    resource, at = bound_bytes(result, "grad_sinks", work.limits.offset_alignment)
    own = {"entries": elements // whole.size("n"), "result_at": at}
    return launch(work, variant, left, whole, elements, {"grad_sinks": resource}, **own)


def scale_part(work: Work, box: Box, place: int) -> Launch:
    """Partial sums of the scale's gradient over the rows of box number `place`, from the query's sums."""
    sweep = work.problem.sweep
    left = stripped(
        sweep,
        query_dtype=sweep.query_dtype,
        head_dim=sweep.head_dim,
        exact_dims=sweep.exact_dims,
        query_lengths=sweep.query_lengths,
        vectors=tuple(name for name in sweep.vectors if name == "query"),
    )
    bound = (
        Binding("query", "read", storage_element(left.query_dtype, bool(left.vectors))),
        Binding("sums", "read", "vec4<f32>"),
        *((Binding("rows", "read", "u32"),) if left.query_lengths else ()),
        Binding("partial", "write", "f32"),
    )
    words = (
        f"grad_scale-{short_name(left.query_dtype)}{'q' * bool(left.vectors)}",
        f"h{left.head_dim}{'p' * (not left.exact_dims)}",
        *(("qlen",) if left.query_lengths else ()),
    )
    variant = shader(
        "grad_scale",
        "-".join(words),
        "grad_scale",
        left,
        bound,
        (("entries", "u32"),),
        (),
        ("key", "value", "out"),
        WORKGROUP * 4,
    )
    entries, parts = _scale_parts(work)
    resources = {"sums": Bytes("query_sums"), "partial": Bytes("scale_parts")}
    return launch(
        work,
        variant,
        left,
        box,
        entries * parts,
        resources,
        entries=entries,
        parts=parts,
        part_first=place * parts,
    )


def _scale_parts(work: Work) -> tuple[int, int]:
    """Batch entries, and the parts of each."""
    query = work.operands["query"].shape
    entries = query[0] * query[1]
    return entries, max(1, min(64, SCALE_PARTS // entries))


def scale_bytes(work: Work, boxes: int) -> int:
    entries, parts = _scale_parts(work)
    return 4 * boxes * parts * entries


def scale(work: Work, boxes: int) -> Launch:
    """grad_scale, one number or one a batch entry, from the parts of all boxes."""
    result, head_dim = work.operands["grad_scale"], work.operands["query"].shape[4]
    entries, parts = _scale_parts(work)
    elements = 1
    for size in result.shape:
        elements *= size
    factor = scale_of(work.call, head_dim)
    total = boxes * parts * (entries // elements)
    return reduce_parts(work, "scale_parts", "grad_scale", result, elements, total, factor)


def reduce_parts(
    work: Work, source: str, name: str, result: Operand, elements: int, parts: int, factor: float = 1.0
) -> Launch:
    """A contiguous result of `elements` from `parts` rows of partial sums."""
    dtype = short_name(result.dtype)
    fields: tuple[tuple[str, Scalar], ...] = (
        ("elements", "u32"), ("parts", "u32"), ("result_at", "u32"), ("factor", "f32"),
    )  # fmt: skip
    variant = Variant(
        family="reduce_parts",
        name=f"reduce_parts-{dtype}",
        template="attention/backward/reduce_parts.wgsl",
        constants=(("result_name", dtype), ("WORKGROUP", WORKGROUP)),
        bindings=(Binding("partial", "read", "f32"), Binding("result", "write", storage_element(result.dtype, False))),
        parameters=Parameters(fields),
    )
    resource, at = bound_bytes(result, name, work.limits.offset_alignment)
    words = elements if result.dtype == float32 else -(-elements // 2)
    return Launch(
        variant,
        {"partial": Bytes(source), "result": resource},
        variant.parameters.pack(elements=elements, parts=parts, result_at=at, factor=factor),
        fold_workgroups(-(-words // WORKGROUP), work.limits.workgroups_per_dimension),
    )


@dataclass(frozen=True, slots=True)
class BiasSums:
    """How the gradient of a bias is added up: which of B0 B1 N T S it owns, by how many threads, in how many parts."""

    work: Work
    owned: tuple[bool, ...]
    elements: int
    lanes: int
    parts: int

    @property
    def result(self) -> Operand:
        return self.work.operands["grad_bias"]

    @property
    def nbytes(self) -> int:
        """Bytes of the partial sums."""
        return 4 * self.parts * self.elements

    @property
    def direct(self) -> bool:
        """The one part is the result."""
        return self.parts == 1 and self.result.dtype == float32 and self.result.contiguous()

    def elements_of(self, box: Box) -> tuple[tuple[int, int], ...]:
        """What a box touches of the bias: boxes that touch the same add up."""
        return tuple(getattr(box, axis) for axis, own in zip(AXES, self.owned, strict=True) if own)

    def add(self, box: Box, again: bool) -> Launch:
        """The sums over a box of rows and keys; `again`: an earlier box touched the same elements."""
        work, sweep = self.work, self.work.problem.sweep
        bound = sweep_bindings(sweep, Binding("partial", "write", "f32"))
        fields: tuple[tuple[str, Scalar], ...] = (
            *GRAD_OUT, *ADDING, *_AXES_FIELDS,
            ("elements", "u32"), ("elements_all", "u32"), ("over", "u32"), ("part_size", "u32"), ("result_at", "u32"),
        )  # fmt: skip
        variant = shader(
            "grad_bias",
            sweep_name("grad_bias", sweep, f"l{self.lanes}"),
            "grad_bias",
            sweep,
            bound,
            fields,
            (("LANES", self.lanes),),
            workgroup_bytes=WORKGROUP * 4,
        )
        values: dict[str, float] = {}
        start = 0
        for axis, own, stride in zip(AXES, self.owned, natural_strides(self.result.shape), strict=True):
            values[f"own_{axis}"] = box.size(axis) if own else 1
            values[f"over_{axis}"] = 1 if own else box.size(axis)
            values[f"result_{axis}"] = stride if own else 0
            start += getattr(box, axis)[0] * stride if own else 0
        elements, over = _size(box, self.owned, True), _size(box, self.owned, False)
        values |= {
            "elements": elements,
            "elements_all": self.elements,
            "over": over,
            "parts": self.parts,
            "part_size": -(-over // self.parts),
            "result_at": start,
            "add": int(again),
        }
        resource = Bytes("bias_parts")
        if self.direct:
            resource, at = bound_bytes(self.result, "grad_bias", work.limits.offset_alignment)
            values["result_at"] += at
        workgroups = self.parts * -(-elements * self.lanes // WORKGROUP)
        return launch(work, variant, sweep, box, workgroups, {"partial": resource}, **values)

    def finish(self) -> Launch:
        return reduce_parts(self.work, "bias_parts", "grad_bias", self.result, self.elements, self.parts)


def bias_sums(work: Work, boxes: tuple[Box, ...], loop_turns: int | None) -> BiasSums:
    """Many threads for each of few elements, one for each of many, and as many parts as keep a device busy."""
    result, full = work.operands["grad_bias"], work.operands["bias"].shape
    owned = tuple(size == have for size, have in zip(full, result.shape, strict=True))
    elements = 1
    for size in result.shape:
        elements *= size
    over = max(_size(box, owned, False) for box in boxes)
    lanes = 1 if over == 1 or elements >= FEW_ELEMENTS else WORKGROUP
    parts = max(1, min(BUSY_THREADS // (elements * lanes), -(-over // (8 * lanes)), MOST_PARTIAL // elements))
    if loop_turns is not None:
        a_turn = (work.problem.sweep.head_dim + work.problem.sweep.value_dim) // 4 + 4
        parts = max(parts, -(-over * a_turn // (lanes * (loop_turns - 1024))))
    return BiasSums(work, owned, elements, lanes, parts)


def _size(box: Box, owned: tuple[bool, ...], own: bool) -> int:
    """The product of a box's sizes on the axes that the bias owns, or on the others."""
    count = 1
    for axis, here in zip(AXES, owned, strict=True):
        if here == own:
            count *= box.size(axis)
    return count
