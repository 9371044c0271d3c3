"""The bindings and parameters that all attention kernels share: one table for Python and WGSL, and what fills it.

A launch serves a Box (boxes.py). Operands are cut to it; the numbers that place it in the whole call are parameters, so
lengths, masks and residuals keep their absolute indices.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wgattn._dtypes import bool_, float32, short_name
from wgattn._kernels.attention.boxes import Box, cut
from wgattn._kernels.attention.problem import ROW_OPERANDS, TAILED, AttentionProblem, Call, key_count, scale_of
from wgattn._kernels.kernel import (
    FAR,
    Binding,
    Bytes,
    Copy,
    Operand,
    Parameters,
    Scalar,
    Scratch,
    bound_bytes,
    storage_element,
)
from wgattn._kernels.rotation import TABLES
from wgattn._kernels.texture import texel_format

LOG2_E = math.log2(math.e)

_AXES = {"query": ("t", "n"), "key": ("s", "k"), "value": ("s", "k"), "out": ("t", "n")}
_DENSE = {"bias": ("n", "t", "s"), "mask": ("n", "t", "s"), "scales": ("s", "k")}


def texel_dtype(problem: AttentionProblem, name: str) -> np.dtype:
    """What a texel of a texture holds: rotated rows stay in float32."""
    if name == "mask":
        return bool_
    if name == "bias":
        assert problem.bias is not None, "a problem without bias has no texture of it"
        return problem.bias
    if problem.rope is not None and name != "value":
        return float32
    return {"query": problem.query_dtype, "key": problem.key_dtype, "value": problem.value_dtype}[name]


def row_names(problem: AttentionProblem, call_sources: tuple[str, ...]) -> tuple[str, ...]:
    """The small run-time arrays of a problem, in the order in which they lie in `rows`."""
    there = {
        "query_lengths": problem.query_lengths,
        "key_value_lengths": problem.keys.lengths,
        "query_offset": problem.query_offset,
        "sinks": problem.sinks,
        "scale": problem.run_time_scale,
        "query_segments": problem.segments,
        "key_segments": problem.segments,
        "pages": problem.paged,
    }
    return (*(name for name in ROW_OPERANDS if there[name]), *call_sources)


def bound_sources(problem: AttentionProblem) -> tuple[tuple[str | None, ...], ...]:
    """For each bound, the name of the run-time operand it adds: bound0, bound1, … in order."""
    count = 0
    named = []
    for clause in problem.keys.clauses:
        names = []
        for _, _, source in clause:
            names.append(f"bound{count}" if source else None)
            count += bool(source)
        named.append(tuple(names))
    return tuple(named)


def source_names(problem: AttentionProblem) -> tuple[str, ...]:
    return tuple(name for names in bound_sources(problem) for name in names if name)


def bindings(
    problem: AttentionProblem, partial: bool, unbuffered: tuple[str, ...] = (), unit: int = 0
) -> tuple[Binding, ...]:
    """The resources in binding order. A partial kernel writes sums for the merge instead of out and residual.

    `unit`: key and value are bound as words of so many bytes, 4, 8 or 16, whatever their elements are.
    """
    dtypes = {"query": problem.query_dtype, "key": problem.key_dtype, "value": problem.value_dtype}
    found = []
    for name, dtype in dtypes.items():
        if name in unbuffered:
            found.append(Binding(name, "texture", texel_format(texel_dtype(problem, name))))
        elif unit and name != "query":
            found.append(Binding(name, "read", {4: "u32", 8: "vec2<u32>", 16: "vec4<u32>"}[unit]))
        else:
            found.append(Binding(name, "read", storage_element(dtype, name in problem.vectors)))
    if partial:
        found.append(Binding("partial", "write", "vec4<f32>"))
    else:
        found.append(Binding("out", "write", storage_element(problem.out_dtype, "out" in problem.vectors)))
        if problem.residual is not None:
            found.append(Binding("residual", "write", "u32"))
    for name, there in (("bias", problem.bias is not None), ("mask", problem.mask)):
        if there and name in unbuffered:
            found.append(Binding(name, "texture", texel_format(texel_dtype(problem, name))))
        elif there:
            found.append(Binding(name, "read", "u32"))
    if problem.scales:
        texture = "scales" in unbuffered
        found.append(Binding("scales", "texture", "rgba32float") if texture else Binding("scales", "read", "f32"))
    if row_names(problem, source_names(problem)):
        found.append(Binding("rows", "read", "u32"))
    if problem.rope is not None and not {"query", "key"} <= set(unbuffered):
        found.append(Binding(TABLES, "read", "vec2<f32>"))
    return tuple(found)


def parameters(
    problem: AttentionProblem, unbuffered: tuple[str, ...] = (), extra: tuple[tuple[str, Scalar], ...] = ()
) -> Parameters:
    """The struct: sizes, the box, strides of what is there, scalars, bounds, places in `rows`, a family's own."""
    fields = _words(
        "batch", "T", "T_all", "S", "N", "N_all", "G", "H", "Hv", "B1", "B1_all", "b0_first", "b1_first", "n_first",
        "k_first", "t_first", "key_first", "key_end", "parts", "part_first", "part_keys",
    )  # fmt: skip
    for name, axes in _AXES.items():
        if name not in unbuffered:
            fields += _words(*(f"{name}_{field}" for field in ("at", "b0", "b1", *axes)))
    for name, there in (("bias", problem.bias is not None), ("mask", problem.mask), ("scales", problem.scales)):
        if there and name not in unbuffered:
            fields += _words(*(f"{name}_{field}" for field in ("at", "b0", "b1", *_DENSE[name])))
    if problem.paged:
        fields += _words("page_bits", "pool_pages")
    if problem.ring:
        fields += _words("pinned")
    fields.append(("scale", "f32"))
    if problem.softcap:
        fields.append(("softcap", "f32"))
    if problem.rope is not None:
        fields.append(("rope_pairs", "u32"))
    for clause_index, clause in enumerate(problem.keys.clauses):
        fields.extend((f"bound_{clause_index}_{i}", "i32") for i in range(len(clause)))
    for name in row_names(problem, source_names(problem)):
        fields += _words(f"{name}_at", f"{name}_step")
    return Parameters(tuple(fields) + extra)


def _words(*names: str) -> list[tuple[str, Scalar]]:
    return [(name, "u32") for name in names]


def constants(
    problem: AttentionProblem, partial: bool, unbuffered: tuple[str, ...] = (), unit: int = 0
) -> tuple[tuple[str, object], ...]:
    """What the shared hooks need to see when they are composed."""
    dtypes = {"query": problem.query_dtype, "key": problem.key_dtype, "value": problem.value_dtype}
    named = [short_name(dtype) for dtype in (*dtypes.values(), *([problem.bias] if problem.bias is not None else []))]
    return (
        ("problem", problem),
        ("far", FAR),
        ("PARTIAL", partial),
        ("NATURAL", problem.bias is not None),
        ("UNBUFFERED", unbuffered),
        ("unit", unit),
        ("HEAD_DIM", problem.head_dim),
        ("VALUE_DIM", problem.value_dim),
        ("names_16_bit", tuple(name for name in ("f16", "bf16") if name in named)),
        ("names_8_bit", tuple(name for name in ("f8e4m3", "f8e5m2", "i8", "u8") if name in named)),
        ("out_name", short_name(problem.out_dtype)),
        ("bias_name", "" if problem.bias is None else short_name(problem.bias)),
        ("rows_read", tuple((n, short_name(d), "Hv" if n == "value" else "H") for n, d in dtypes.items())),
        ("rows_placed", tuple((n, *axes) for n, axes in _AXES.items() if n not in unbuffered)),
        ("row_names", row_names(problem, source_names(problem))),
        ("rows_bound", bool(row_names(problem, source_names(problem)))),
        ("bound_sources", bound_sources(problem)),
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the small run-time arrays lie: each name's first element and step a batch entry, and how they got there."""

    places: Mapping[str, tuple[int, int]]
    resource: Bytes | None
    steps: tuple[Copy, ...]
    scratch: Mapping[str, Scratch]


def step_of(name: str, operand: Operand, batch: int) -> int:
    """The elements from one batch entry of a small array to the next; 0 where all share one."""
    tail = operand.shape[-1:] if name in TAILED else ()
    lead = operand.shape[: len(operand.shape) - len(tail)]
    return math.prod(tail) if lead == (batch,) and batch > 1 else 0


def gather_rows(problem: AttentionProblem, operands: Mapping[str, Operand], batch: int) -> Rows:
    """One array is bound where it lies, several are copied into one buffer. Each serves one or every batch entry."""
    places, steps, at = {}, [], 0
    names = row_names(problem, source_names(problem))
    for name in names:
        operand = operands[name]
        count = int(np.prod(operand.shape))
        places[name] = (at, step_of(name, operand, batch))
        steps.append(Copy(Bytes(name, 4 * operand.offset, 4 * count), "rows", 4 * at))
        at += count
    if not names:
        return Rows({}, None, (), {})
    if len(names) == 1:
        (name,) = names
        aligned = operands[name].offset // 64 * 64
        places[name] = (operands[name].offset - aligned, places[name][1])
        return Rows(places, Bytes(name, 4 * aligned, None), (), {})
    return Rows(places, Bytes("rows"), tuple(steps), {"rows": Scratch(4 * at)})


def resources_and_values(
    problem: AttentionProblem,
    call: Call,
    operands: Mapping[str, Operand],
    box: Box,
    rows: Rows,
    alignment: int,
    unbuffered: tuple[str, ...] = (),
) -> tuple[dict[str, Bytes | str], dict[str, float]]:
    """What a launch over `box` binds, and the values of the shared parameters (without parts, which the plan sets)."""
    query, key = operands["query"], operands["key"]
    group = query.shape[3] // key.shape[3]
    values: dict[str, float] = {
        "batch": box.batch, "T": box.size("t"), "T_all": query.shape[2], "S": key_count(call, operands),
        "N": box.size("n"), "N_all": query.shape[3],
        "G": group, "H": query.shape[4], "Hv": operands["out"].shape[4], "B1": box.size("b1"), "B1_all": query.shape[1],
        "b0_first": box.b0[0], "b1_first": box.b1[0], "n_first": box.n[0], "k_first": box.n[0] // group,
        "t_first": box.t[0], "key_first": box.s[0], "key_end": box.s[1],
    }  # fmt: skip
    resources: dict[str, Bytes | str] = {}
    for name, axes in _AXES.items():
        if name in unbuffered:
            continue
        resources[name], placed = _placed(name, axes, cut(name, operands[name], box, group, problem.paged), alignment)
        values |= placed
    for name, axes in _DENSE.items():
        if name in operands and name not in unbuffered:
            part = cut(name, operands[name], box, group, problem.paged)
            resources[name], placed = _placed(name, axes, part, alignment)
            values |= placed
    if call.page_size is not None:
        values |= {"page_bits": call.page_size.bit_length() - 1, "pool_pages": key.shape[2] // call.page_size}
    if call.ring is not None:
        values["pinned"] = call.ring
    # Logits are in base 2 unless a bias is added (see hooks.wgsl); a cap needs them natural until it is applied.
    folded = problem.bias is None and not problem.softcap
    values["scale"] = scale_of(call, query.shape[4]) * (LOG2_E if folded else 1.0)
    if problem.softcap:
        values["softcap"] = call.softcap or 0.0
    if call.rope is not None:
        values["rope_pairs"] = call.rope.rotated(query.shape[4]) // 2
        resources[TABLES] = Bytes(TABLES)
    for clause_index, clause in enumerate(call.clauses):
        values |= {f"bound_{clause_index}_{i}": max(-FAR, min(FAR, bound.addend)) for i, bound in enumerate(clause)}
    for name, (at, step) in rows.places.items():
        values |= {f"{name}_at": at, f"{name}_step": step}
    if rows.resource is not None:
        resources["rows"] = rows.resource
    return resources, values


def _placed(name: str, axes: tuple[str, ...], part: Operand, alignment: int) -> tuple[Bytes, dict[str, float]]:
    """What is bound of an operand, and the parameters that say where its rows lie in it."""
    bound, at = bound_bytes(part, name, alignment)
    values: dict[str, float] = {f"{name}_at": at}
    for axis, stride in zip(("b0", "b1", *axes), part.strides, strict=False):
        values[f"{name}_{axis}"] = stride % 2**32
    return bound, values
