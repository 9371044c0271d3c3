"""What the launches of one backward call share, and how one of them is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from wgattn._kernels.attention.backward.problem import GradientProblem
from wgattn._kernels.attention.boxes import Box, cut
from wgattn._kernels.attention.inputs import (
    Rows,
    constants,
    parameters,
    resources_and_values,
    row_names,
    source_names,
    step_of,
)
from wgattn._kernels.attention.naming import variant_name
from wgattn._kernels.attention.problem import EVERY_KEY, AttentionProblem, Call, KeyRange
from wgattn._kernels.kernel import (
    Binding,
    Bytes,
    Copy,
    Launch,
    Operand,
    Scalar,
    Scratch,
    Variant,
    bound_bytes,
    fold_workgroups,
    storage_element,
)
from wgattn._runtime.profile import Limits

WORKGROUP = 64
GRAD_OUT: tuple[tuple[str, Scalar], ...] = tuple((f"grad_out_{axis}", "u32") for axis in ("at", "b0", "b1", "t", "n"))
LARGEST_PARTS = 16  # workgroups that look for the largest elements of a key/value head
LARGEST: tuple[tuple[str, Scalar], ...] = (("largest_at", "u32"),)
ADDING: tuple[tuple[str, Scalar], ...] = (("statistics_at", "u32"), ("add", "u32"))


@dataclass(frozen=True, slots=True)
class Work:
    """A backward call: its problem, the sweeps' call and operands (query and key rotated), small arrays, and limits."""

    problem: GradientProblem
    call: Call
    operands: Mapping[str, Operand]
    rows: Rows
    statistics_at: int
    limits: Limits

    @property
    def largest_at(self) -> int:
        """Where the largest elements of V and of grad_out lie in `rows`, two numbers a part of a key/value head's."""
        b0, b1, queries, heads, _ = self.operands["query"].shape
        return self.statistics_at + b0 * b1 * queries * heads * statistics_words(self.problem.sweep)

    @property
    def group(self) -> int:
        return self.operands["query"].shape[3] // self.operands["key"].shape[3]

    def source(self, name: str) -> str:
        """The buffer of an operand: the sweeps read the rotated copies of query and key."""
        return f"{name}_turned" if self.problem.forward.rope is not None and name in ("query", "key") else name


def statistics_words(sweep: AttentionProblem) -> int:
    """Numbers a row: the residual, delta, and beside a bias the residual's rest."""
    return 2 if sweep.bias is None else 3


def gather(sweep: AttentionProblem, operands: Mapping[str, Operand]) -> tuple[Rows, int]:
    """The small run-time arrays one after another in the buffer `rows`, and where the rows' statistics follow them."""
    b0, b1, queries, heads, _ = operands["query"].shape
    batch, at = b0 * b1, 0
    places: dict[str, tuple[int, int]] = {}
    steps = []
    for name in row_names(sweep, source_names(sweep)):
        operand = operands[name]
        count = 1
        for size in operand.shape:
            count *= size
        places[name] = (at, step_of(name, operand, batch))
        steps.append(Copy(Bytes(name, 4 * operand.offset, 4 * count), "rows", 4 * at))
        at += count
    words = at + batch * queries * heads * statistics_words(sweep)
    words += 2 * LARGEST_PARTS * batch * operands["key"].shape[3]
    return Rows(places, Bytes("rows"), tuple(steps), {"rows": Scratch(4 * words)}), at


def sweep_bindings(sweep: AttentionProblem, *own: Binding) -> tuple[Binding, ...]:
    """What a kernel that scores queries against keys binds, at most eight with its own."""
    found = [
        Binding("query", "read", storage_element(sweep.query_dtype, "query" in sweep.vectors)),
        Binding("key", "read", storage_element(sweep.key_dtype, "key" in sweep.vectors)),
        Binding("value", "read", storage_element(sweep.value_dtype, "value" in sweep.vectors)),
        grad_out_binding(sweep),
        Binding("rows", "read", "u32"),
    ]
    if sweep.bias is not None:
        found.append(Binding("bias", "read", "u32"))
    if sweep.mask:
        found.append(Binding("mask", "read", "u32"))
    return (*found, *own)


def grad_out_binding(sweep: AttentionProblem) -> Binding:
    return Binding("grad_out", "read", storage_element(sweep.out_dtype, "grad_out" in sweep.vectors))


def shader(
    family: str,
    name: str,
    template: str,
    problem: AttentionProblem,
    bound: tuple[Binding, ...],
    fields: tuple[tuple[str, Scalar], ...] = (),
    own: tuple[tuple[str, object], ...] = (),
    unbuffered: tuple[str, ...] = ("out",),
    workgroup_bytes: int = 0,
    natural: bool | None = None,
) -> Variant:
    """A variant of a backward kernel. `fields` and `own` are its parameters and constants beside the shared ones."""
    given = dict(constants(problem, False, unbuffered))
    if natural is not None:
        given["NATURAL"] = natural
    given |= {
        "BOUND": tuple(binding.name for binding in bound),
        "STATISTICS": 3 if given["NATURAL"] else 2,
        "WORKGROUP": WORKGROUP,
    }
    return Variant(
        family=family,
        name=name,
        template=f"attention/backward/{template}.wgsl",
        constants=tuple((given | dict(own)).items()),
        bindings=bound,
        parameters=parameters(problem, unbuffered, fields),
        workgroup_bytes=workgroup_bytes,
    )


def launch(
    work: Work,
    variant: Variant,
    problem: AttentionProblem,
    box: Box,
    workgroups: int,
    resources: Mapping[str, Bytes | str] | None = None,
    scale: float | None = None,
    **own: float,
) -> Launch:
    """A dispatch of `variant` over a box: shared values and `own` ones, buffers by their own name unless given."""
    call = work.call
    if problem.keys == KeyRange():
        call = Call(EVERY_KEY, call.scale, call.softcap)
    found, values = resources_and_values(
        problem, call, work.operands, box, work.rows, work.limits.offset_alignment, ("out",)
    )
    part = cut("out", work.operands["grad_out"], box, work.group)
    found["grad_out"], values["grad_out_at"] = bound_bytes(part, "grad_out", work.limits.offset_alignment)
    for axis, stride in zip(("b0", "b1", "t", "n"), part.strides, strict=False):
        values[f"grad_out_{axis}"] = stride % 2**32
    values |= {"parts": 1, "part_first": 0, "part_keys": 0, "add": 0, "statistics_at": work.statistics_at}
    values["largest_at"] = work.largest_at
    if scale is not None:
        values["scale"] = scale
    values |= own
    for name in ("query", "key"):
        held = found[name]
        assert isinstance(held, Bytes)
        found[name] = replace(held, name=work.source(name))
    found |= resources or {}
    names = [name for name, _ in variant.parameters.fields]
    return Launch(
        variant,
        {binding.name: found.get(binding.name, Bytes(binding.name)) for binding in variant.bindings},
        variant.parameters.pack(**{name: values[name] for name in names}),
        fold_workgroups(workgroups, work.limits.workgroups_per_dimension),
    )


def sweep_name(family: str, sweep: AttentionProblem, *own: str) -> str:
    """The name of a sweep's variant: `variant_name`, and whether grad_out is read an element at a time."""
    return variant_name(family, sweep, False, *(() if "grad_out" in sweep.vectors else ("scalarg",)), *own)


def key_heads(box: Box, group: int) -> int:
    """The key/value heads of a box, which holds whole groups of query heads or a share of one."""
    return max(box.size("n") // group, 1)


def blocks_of_rows(own: int) -> Callable[[Box], int]:
    """How many workgroups sweep a box where each owns `own` query rows of a head."""
    return lambda box: box.batch * box.size("n") * -(-box.size("t") // own)


def blocks_of_keys(own: int, group: int) -> Callable[[Box], int]:
    """How many workgroups sweep a box where each owns `own` keys of a key/value head."""
    return lambda box: box.batch * key_heads(box, group) * -(-box.size("s") // own)


def sums_binding() -> Binding:
    return Binding("sums", "write", "vec4<f32>")
