"""Rows of heads before and after the sweeps: q and k rotated into float32; sums rotated back, scaled and cast."""

from dataclasses import dataclass
from typing import Literal

from wgattn._dtypes import float32, short_name
from wgattn._kernels.attention.backward.problem import stripped, turned_rows
from wgattn._kernels.attention.backward.statistics import MEAN, ROWS_ALONE
from wgattn._kernels.attention.backward.work import WORKGROUP, Work, launch, shader
from wgattn._kernels.attention.boxes import Box, cut
from wgattn._kernels.attention.problem import scale_of, vectorized
from wgattn._kernels.kernel import Binding, Launch, Operand, Scalar, bound_bytes, storage_element
from wgattn._kernels.rotation import Rope

_PLACES: tuple[tuple[str, Scalar], ...] = tuple(
    (f"{name}_{field}", "u32") for name in ("source", "destination") for field in ("at", "b0", "b1", "i", "head")
)
_PAIRS: tuple[tuple[str, Scalar], ...] = (("rope_pairs", "u32"),)
_FIELDS: tuple[tuple[str, Scalar], ...] = (
    *_PLACES, ("width", "u32"), ("heads", "u32"), ("length", "u32"), ("way", "i32"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens to rows on their way: rotated (`way` -1: back), times the call's scale, plus the empty rows'."""

    of: Literal["query", "key", "value"]
    rope: Rope | None = None
    way: int = 1
    scaled: bool = False
    mean: bool = False


def move(
    work: Work, box: Box, rule: Rule, source: tuple[str, Operand], destination: tuple[str, Operand], width: int
) -> Launch:
    """Rows (B0, B1, T or S, N or K, ·) of a box from one array to another: each a buffer's name and the box's part."""
    (from_name, given), (to_name, made) = source, destination
    forward = work.problem.forward
    turned = rule.rope is not None
    scaled = rule.scaled and forward.run_time_scale
    left = stripped(
        forward,
        query_offset=turned and rule.of == "query" and forward.query_offset,
        run_time_scale=scaled,
    )
    chunks = -(-width // 4)
    mean_chunks = work.problem.sweep.value_dim // 4 if rule.mean else 0  # of a head in `mean`
    exact = given.shape[-1] != width or width % 4 == 0
    quads = vectorized(given), vectorized(made)
    names = short_name(given.dtype), short_name(made.dtype)
    words = (
        f"rows-{names[0]}{'q' * quads[0]}{'' if exact else 'p'}-{names[1]}{'q' * quads[1]}-c{chunks}",
        *((f"{forward.rope}{rule.of[0]}",) if turned else ()),
        *(word for word in left.features if word in ("off", "scale")),
        *((f"mean{mean_chunks}",) if rule.mean else ()),
    )
    bound = [
        Binding("source", "read", storage_element(given.dtype, quads[0])),
        Binding("destination", "write", storage_element(made.dtype, quads[1])),
        *((Binding("mean", "read", "vec4<f32>"),) if rule.mean else ()),
        *((Binding("rows", "read", "u32"),) if left.query_offset or scaled else ()),
        *((Binding("rope_tables", "read", "vec2<f32>"),) if turned else ()),
    ]
    own = {
        "source_name": names[0],
        "source_quads": quads[0],
        "source_exact": exact,
        "destination_name": names[1],
        "destination_quads": quads[1],
        "turned_as": forward.rope if turned else "",
        "BY_QUERY": turned and rule.of == "query",
        "WITH_MEAN": rule.mean,
        "MEAN_CHUNKS": mean_chunks,
        "CHUNKS": chunks,
    }
    fields = (*_FIELDS, *(_PAIRS if turned else ()))
    variant = shader(
        "rows", "-".join(words), "rows", left, tuple(bound), fields, tuple(own.items()), ROWS_ALONE, natural=False
    )
    resources = {"mean": MEAN}
    values: dict[str, float] = {}
    for name, buffer, part in (("source", from_name, given), ("destination", to_name, made)):
        resources[name], values[f"{name}_at"] = bound_bytes(part, buffer, work.limits.offset_alignment)
        for axis, stride in zip(("b0", "b1", "i", "head"), part.strides, strict=False):
            values[f"{name}_{axis}"] = stride % 2**32
    length, heads = made.shape[2:4]
    if rule.rope is not None:
        values["rope_pairs"] = rule.rope.rotated(work.operands["query"].shape[4]) // 2
    values |= {"width": width, "heads": heads, "length": length, "way": rule.way}
    scale = scale_of(work.call, width) if rule.scaled else 1.0
    count = -(-box.batch * length * heads * chunks // WORKGROUP)
    return launch(work, variant, left, box, count, resources, scale, **values)


def turn(work: Work, box: Box, name: Literal["query", "key"], given: Operand, rope: Rope) -> Launch:
    """The rotated float32 copy of query or key that the sweeps read."""
    made = cut(name, turned_rows(given), box, work.group)
    return move(
        work,
        box,
        Rule(name, rope),
        (name, cut(name, given, box, work.group)),
        (turned_name(name), made),
        given.shape[-1],
    )


def turned_name(name: str) -> str:
    return f"{name}_turned"


def finish(
    work: Work, box: Box, name: Literal["query", "key", "value"], rope: Rope | None, result: Operand, mean: bool
) -> Launch:
    """The gradient of query, key or value from the sums of a box."""
    part = cut(name, result, box, work.group)
    sweep = work.problem.sweep
    dims = {"query": sweep.head_dim, "key": sweep.head_dim, "value": sweep.value_dim}
    pitch = sweep.head_dim if name == "query" else sweep.head_dim + sweep.value_dim
    b0, b1, length, heads, width = part.shape
    steps = b1 * length * heads * pitch, length * heads * pitch, heads * pitch, pitch, 1
    sums = Operand(float32, (b0, b1, length, heads, dims[name]), steps, sweep.head_dim if name == "value" else 0)
    rule = Rule(name, None if name == "value" else rope, -1, scaled=name != "value", mean=mean)
    source = "query_sums" if name == "query" else "key_value_sums"
    return move(work, box, rule, (source, sums), (f"grad_{name}", part), width)
