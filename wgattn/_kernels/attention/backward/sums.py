"""Gradients that are sums over whole axes: of a bias over those it was broadcast on, of sinks, of a run-time scale.

Every sum is made of parts that are added up in a fixed order.
"""

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
MOST_PARTIAL = 1 << 22  # elements of partial sums
AXES = ("b0", "b1", "n", "t", "s")
_AXES_FIELDS: tuple[tuple[str, Scalar], ...] = tuple(
    (f"{prefix}_{axis}", "u32") for prefix in ("own", "over", "result") for axis in AXES
)


def sinks(work: Work, whole: Box) -> Launch:
    """grad_sinks (N,), from the statistics of all rows."""
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
        (*ADDING, ("result_at", "u32")),
        (),
        ROWS_ALONE,
        WORKGROUP * 4,
        natural,
    )
    resource, at = bound_bytes(work.operands["grad_sinks"], "grad_sinks", work.limits.offset_alignment)
    return launch(work, variant, left, whole, whole.size("n"), {"grad_sinks": resource}, result_at=at)


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


class BiasSums:
    """How the gradient of a bias is added up: which axes it owns, how many parts, and where the parts lie."""

    def __init__(self, work: Work, loop_turns: int | None, boxes: tuple[Box, ...]):
        self.work = work
        self.result = work.operands["grad_bias"]
        full = work.operands["bias"].shape
        self.owned = tuple(size == have for size, have in zip(full, self.result.shape, strict=True))
        self.elements = 1
        for size in self.result.shape:
            self.elements *= size
        over = max(self._sizes(box, False) for box in boxes)
        self.lanes = 1 if over == 1 or self.elements >= 4096 else WORKGROUP
        wanted = BUSY_THREADS // max(self.elements * self.lanes, 1)
        parts = max(1, min(wanted, -(-over // (8 * self.lanes)), MOST_PARTIAL // max(self.elements, 1)))
        if loop_turns is not None:
            sweep = work.problem.sweep
            a_turn = (sweep.head_dim + sweep.value_dim) // 4 + 4
            parts = max(parts, -(-over * a_turn // (self.lanes * (loop_turns - 1024))))
        self.parts = parts
        self.direct = parts == 1 and self.result.dtype == float32 and self.result.contiguous()
        self.seen: set[tuple[tuple[int, int], ...]] = set()

    def _sizes(self, box: Box, owned: bool) -> int:
        count = 1
        for axis, own in zip(AXES, self.owned, strict=True):
            if own == owned:
                count *= box.size(axis)
        return count

    @property
    def nbytes(self) -> int:
        return 4 * self.parts * self.elements

    def add(self, box: Box) -> Launch:
        """The sums over a box of rows and keys. Boxes that share their elements of the bias are added up in turn."""
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
        here = tuple(getattr(box, axis) for axis, own in zip(AXES, self.owned, strict=True) if own)
        elements, over = self._sizes(box, True), self._sizes(box, False)
        values |= {
            "elements": elements,
            "elements_all": self.elements,
            "over": over,
            "parts": self.parts,
            "part_size": -(-over // self.parts),
            "result_at": start,
            "add": int(here in self.seen),
        }
        self.seen.add(here)
        resource = Bytes("bias_parts")
        if self.direct:
            resource, at = bound_bytes(self.result, "grad_bias", work.limits.offset_alignment)
            values["result_at"] += at
        workgroups = self.parts * -(-elements * self.lanes // WORKGROUP)
        return launch(work, variant, sweep, box, workgroups, {"partial": resource}, **values)

    def finish(self) -> Launch:
        return reduce_parts(self.work, "bias_parts", "grad_bias", self.result, self.elements, self.parts)
