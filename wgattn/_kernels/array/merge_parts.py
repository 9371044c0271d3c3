"""Partial attention results over separate keys as one: outputs weighed by their residuals, and the sinks once."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from wgattn._dtypes import float32, short_name
from wgattn._errors import UnsupportedError
from wgattn._kernels.array import pointwise
from wgattn._kernels.kernel import (
    Binding,
    Bytes,
    Launch,
    Operand,
    Parameters,
    Plan,
    Scratch,
    Variant,
    fold_workgroups,
    natural_strides,
    storage_element,
)
from wgattn._runtime.profile import DeviceProfile

NAME = "merge_parts"
# The residual of a row of dot_product_attention that keeps no key, -0.7 times the largest float32, within 8 last bits.
EMPTY_BITS = 0xFF33332A, 17  # the first pattern, and how many there are
WITHOUT_KEYS = tuple(
    float(np.uint32(EMPTY_BITS[0] + step).view(np.float32)) for step in (EMPTY_BITS[1] - 1, 0)
)  # lowest and highest
WORKGROUP = 64


@dataclass(frozen=True, slots=True)
class Rows:
    """An operand as a kernel walks it: where each row lies, how far a row reaches, and whose buffer it is in."""

    view: Operand
    reach: tuple[int, int] = (0, 0)
    buffer: str = ""
    part: int = 0  # elements from one part's row to the next part's


def plan(
    outputs: Operand,
    residuals: Operand,
    sinks: Operand | None,
    out: Operand,
    residual: Operand,
    profile: DeviceProfile,
) -> Plan:
    """Merge `outputs` (P, …, Hv) of `residuals` (P, …), float32, into `out` (…, Hv) and `residual` (…).

    `sinks`, float32, broadcast to (…). Rows lie element by element, those of `out` at whole words. A part whose
    residual is -inf, or that of a row without keys, is not read. Computed in float32, parts in order; parts that are
    too large to be bound together are merged one after the other. Names: those of the arguments.

    Raises ValueError for shapes that do not fit, UnsupportedError for a row that no binding holds.
    """
    P, *lead, Hv = outputs.shape
    if residuals.shape != (P, *lead) or out.shape != (*lead, Hv) or residual.shape != tuple(lead) or not P:
        raise ValueError(f"parts {outputs.shape} and {residuals.shape} do not merge to {out.shape}, {residual.shape}")
    if Hv > 1 and (outputs.strides[-1], out.strides[-1]) != (1, 1):
        raise ValueError("rows of parts and of their merge lie element by element")
    if 0 in out.shape:
        return Plan(())
    groups = tuple(_groups(outputs, residuals, profile))
    width = -(-Hv // 4) * 4
    carried = Operand(float32, (*lead, Hv), natural_strides((*lead, width)))
    carried_residual = Operand(float32, tuple(lead), natural_strides(tuple(lead)))
    steps: list[Launch] = []
    scratch: dict[str, Scratch] = {}
    before: dict[str, Rows] = {}
    for number, (parts, of_parts) in enumerate(groups):
        last = number == len(groups) - 1
        names = ("out", "residual") if last else (f"carried{number}", f"carried_residual{number}")
        target, target_residual = (out, residual) if last else (carried, carried_residual)
        rows = {
            "out": Rows(_row(target), (0, Hv - 1), names[0]),
            "residual": Rows(target_residual, buffer=names[1]),
            "outputs": _part(parts, Hv),
            "residuals": _part(replace(of_parts, shape=(*of_parts.shape, 1), strides=(*of_parts.strides, 1)), 1),
            **before,
        }
        if sinks is not None and last:
            rows["sinks"] = Rows(pointwise.broadcast(sinks, tuple(lead)))
        steps += _launches(rows, parts.shape[0], Hv, profile)
        if not last:
            scratch |= {names[0]: Scratch(4 * math.prod(lead) * width), names[1]: Scratch(4 * math.prod(lead))}
            before = {
                "carry": Rows(_row(carried), (0, width - 1), names[0]),
                "carry_residual": Rows(carried_residual, buffer=names[1]),
            }
    return Plan(tuple(steps), scratch)


def _groups(outputs: Operand, residuals: Operand, profile: DeviceProfile) -> Iterator[tuple[Operand, Operand]]:
    """As many parts at a time as can be bound; what is too large by itself is cut along its rows later."""
    P, count = outputs.shape[0], outputs.shape[0]
    alignment, limit = profile.limits.offset_alignment, pointwise.binding_limit(profile)

    def fits(operand: Operand) -> bool:
        return pointwise.window(pointwise.cut(operand, 0, 0, count), alignment)[1] + alignment <= limit

    while count > 1 and not (fits(outputs) and fits(residuals)):
        count = -(-count // 2)
    for first in range(0, P, count):
        end = min(first + count, P)
        yield pointwise.cut(outputs, 0, first, end), pointwise.cut(residuals, 0, first, end)


def _row(operand: Operand) -> Operand:
    """Where the rows of an array start."""
    return replace(operand, shape=operand.shape[:-1], strides=operand.strides[:-1])


def _part(parts: Operand, width: int) -> Rows:
    """The rows of the first part, from which those of the others are reached."""
    step, last = parts.strides[0], parts.strides[0] * (parts.shape[0] - 1)
    view = replace(parts, shape=parts.shape[1:-1], strides=parts.strides[1:-1])
    return Rows(view, (min(last, 0), max(last, 0) + width - 1), part=step)


def _launches(rows: dict[str, Rows], parts: int, Hv: int, profile: DeviceProfile) -> Iterator[Launch]:
    simple = pointwise.simplify(tuple(given.view for given in rows.values()))
    if len(simple[0].shape) > pointwise.MAX_RANK:
        raise UnsupportedError(f"parts with {len(simple[0].shape)} separate axes do not merge: make them contiguous")
    reaches = tuple(given.reach for given in rows.values())
    for piece in pointwise.pieces(simple, reaches, profile):
        yield _launch(rows, dict(zip(rows, piece, strict=True)), parts, Hv, profile)


def _launch(rows: dict[str, Rows], views: dict[str, Operand], parts: int, Hv: int, profile: DeviceProfile) -> Launch:
    resources: dict[str, Bytes | str] = {}
    offsets: dict[str, int] = {}
    for name, view in views.items():
        start, nbytes, offsets[name] = pointwise.window(view, profile.limits.offset_alignment, rows[name].reach)
        resources[name] = Bytes(rows[name].buffer or name, start, nbytes)
    quads = {
        name: Hv % 4 == 0 and not any(n % 4 for n in (offsets[name], rows[name].part, *views[name].strides))
        for name in ("outputs", "out")
    }
    variant = _variant(views, quads, Hv % 4 == 0)
    shape, chunks = views["out"].shape, -(-Hv // 4)
    threads = math.prod(shape) * chunks
    if threads >= 1 << 32:
        raise UnsupportedError(f"a merge of {math.prod(shape):,} rows of {Hv} elements is not taken in one launch")
    values = {"threads": threads, "chunks": chunks, "Hv": Hv, "parts": parts}
    values |= {f"{name}_part": rows[name].part & 0xFFFFFFFF for name in ("outputs", "residuals")}
    values |= {f"size{axis}": size for axis, size in enumerate(shape)}
    for name, view in views.items():
        values[f"{name}_offset"] = offsets[name] & 0xFFFFFFFF
        values |= {f"{name}_stride{axis}": stride & 0xFFFFFFFF for axis, stride in enumerate(view.strides)}
    groups = fold_workgroups(-(-threads // WORKGROUP), profile.limits.workgroups_per_dimension)
    taken = {binding.name: resources[binding.name] for binding in variant.bindings}
    return Launch(variant, taken, variant.parameters.pack(**values), groups)


def _variant(views: dict[str, Operand], quads: dict[str, bool], exact: bool) -> Variant:
    rank, dtype, result = len(views["out"].shape), views["outputs"].dtype, views["out"].dtype
    sinks, carries = "sinks" in views, "carry" in views
    fields = ["threads", "chunks", "Hv", "parts", "outputs_part", "residuals_part"]
    fields += [f"{name}_offset" for name in views]
    for axis in range(rank):
        fields += [f"size{axis}", *(f"{name}_stride{axis}" for name in views)]
    words = (
        NAME,
        short_name(dtype) + "q" * quads["outputs"],
        short_name(result) + "q" * quads["out"],
        f"r{rank}",
        *(["exact"] * exact),
        *(["sinks"] * sinks),
        *(["carry"] * carries),
    )
    elements = {
        "outputs": storage_element(dtype, quads["outputs"]),
        "out": storage_element(result, quads["out"]),
        "carry": "vec4<f32>",
    }
    return Variant(
        family=NAME,
        name="-".join(words),
        template="array/merge_parts.wgsl",
        constants=(
            ("WORKGROUP", WORKGROUP),
            ("EMPTY_FIRST", EMPTY_BITS[0]),
            ("EMPTY_COUNT", EMPTY_BITS[1]),
            ("rank", rank),
            ("views", tuple(views)),
            ("names_16_bit", tuple({short_name(dtype)} - {"f32"})),
            ("dtype", short_name(dtype)),
            ("result_dtype", short_name(result)),
            ("quads", quads["outputs"]),
            ("result_quads", quads["out"]),
            ("exact", exact),
            ("sinks", sinks),
            ("carries", carries),
        ),
        bindings=tuple(
            Binding(name, "write" if name in ("out", "residual") else "read", elements.get(name, "u32"))
            for name in sorted(views, key=lambda name: name in ("out", "residual"))
        ),
        parameters=Parameters(tuple((name, "u32") for name in fields)),
    )
