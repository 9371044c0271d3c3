"""The frame of every kernel that computes each element of its result from elements at affine addresses.

One invocation owns one 32-bit word of the result. Where elements are smaller than a word and the launch does not fill
all of it (odd ends, slices of a larger array), the invocation keeps the other bytes: no word has two owners in a
launch, and launches are ordered.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from wgattn._dtypes import (
    FLOATS,
    bool_,
    float8_e4m3fn,
    float8_e5m2,
    int4,
    int8,
    int32,
    short_name,
    uint8,
    uint32,
)
from wgattn._errors import UnsupportedError
from wgattn._kernels.kernel import Binding, Bytes, Launch, Operand, Parameters, Plan, Scalar, Variant, fold_workgroups
from wgattn._runtime.profile import DeviceProfile

WORKGROUP = 64
WORD = 4
MAX_RANK = 8
REGISTERS: Mapping[np.dtype, str] = {
    **dict.fromkeys((*FLOATS, float8_e4m3fn, float8_e5m2), "f32"),
    **dict.fromkeys((int32, int8, int4), "i32"),  # int4 lies one in a byte, the low nibble, as NumPy has it
    **dict.fromkeys((uint32, uint8), "u32"),
    bool_: "bool",
}


@dataclass(frozen=True, slots=True)
class Pointwise:
    """What a kernel file says of itself. `element(…)` of its template takes an address for each of `inputs`, which are
    read from buffers, and of `coordinates`, which are addresses alone; `values` are parameters of its own.

    `reach` is how far an input is read before and behind its address, `buffers` the schedule's name of a buffer where
    it is not the binding's own, `extra` are bindings without addresses. What is too large for a binding is cut, but not
    along axes that the view `uncut` moves on.
    """

    family: str
    name: str
    template: str
    result: Operand
    inputs: Mapping[str, Operand]
    coordinates: Mapping[str, Operand] = field(default_factory=dict)
    constants: tuple[tuple[str, object], ...] = ()
    extra: tuple[tuple[Binding, Bytes], ...] = ()
    values: tuple[tuple[str, Scalar, float], ...] = ()
    reach: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    buffers: Mapping[str, str] = field(default_factory=dict)
    uncut: str | None = None


def register(dtype: np.dtype) -> str:
    """The WGSL type that elements of `dtype` are computed in. Raises UnsupportedError for dtypes that have none."""
    if dtype not in REGISTERS:
        known = ", ".join(d.name for d in REGISTERS)
        raise UnsupportedError(f"{dtype.name} elements cannot be read or written by array kernels; they take {known}")
    return REGISTERS[dtype]


def broadcast(operand: Operand, shape: tuple[int, ...]) -> Operand:
    """`operand` seen as `shape`, NumPy's rule: axes that are missing or of size 1 get stride 0. Raises ValueError."""
    missing = len(shape) - len(operand.shape)
    sizes = (1,) * missing + operand.shape
    if missing < 0 or any(have not in (1, want) for have, want in zip(sizes, shape, strict=True)):
        raise ValueError(f"an operand of shape {operand.shape} does not broadcast to {shape}")
    strides = (0,) * missing + operand.strides
    taken = tuple(0 if have != want else stride for have, want, stride in zip(sizes, shape, strides, strict=True))
    return replace(operand, shape=shape, strides=taken)


def coordinate(shape: tuple[int, ...], axis: int) -> Operand:
    """An address that is the index along `axis`."""
    strides = [0] * len(shape)
    strides[axis] = 1
    return Operand(np.dtype(np.uint32), shape, tuple(strides))


def simplify(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
    """The same addresses with as few axes as will do, ordered by the first operand's strides, which become positive.

    Example: two contiguous operands of one shape come out with one axis.
    """
    first = operands[0]
    axes = [axis for axis, size in enumerate(first.shape) if size > 1]
    offsets = [operand.offset for operand in operands]
    columns: list[tuple[int, list[int]]] = []
    for axis in axes:
        size = first.shape[axis]
        strides = [operand.strides[axis] for operand in operands]
        if strides[0] < 0:
            offsets = [offset + stride * (size - 1) for offset, stride in zip(offsets, strides, strict=True)]
            strides = [-stride for stride in strides]
        columns.append((size, strides))
    columns.sort(key=lambda column: -column[1][0])
    merged: list[tuple[int, list[int]]] = []
    for size, strides in columns:
        if merged and all(outer == size * inner for outer, inner in zip(merged[-1][1], strides, strict=True)):
            merged[-1] = (merged[-1][0] * size, strides)
        else:
            merged.append((size, strides))
    shape = tuple(size for size, _ in merged)
    return tuple(
        Operand(operand.dtype, shape, tuple(strides[n] for _, strides in merged), offsets[n])
        for n, operand in enumerate(operands)
    )


def window(operand: Operand, alignment: int, reach: tuple[int, int] = (0, 0)) -> tuple[int, int, int]:
    """What `operand` touches: byte offset (a multiple of `alignment`), bytes, and the operand's own offset from there.

    `reach` is how far the kernel reads before and behind each address.
    """
    low, high = operand.extent()
    low, high = low + reach[0], high + reach[1]
    if low < 0:
        raise ValueError(f"an operand of shape {operand.shape} and strides {operand.strides} starts before its buffer")
    start = low * operand.itemsize // alignment * alignment
    end = -(-high * operand.itemsize // WORD) * WORD
    return start, end - start, operand.offset - start // operand.itemsize


def binding_limit(profile: DeviceProfile) -> int:
    """The most bytes that a kernel binds: addresses are 32-bit."""
    return min(profile.limits.binding_bytes, (1 << 32) - 256)


def pieces(
    operands: tuple[Operand, ...],
    reaches: tuple[tuple[int, int], ...],
    profile: DeviceProfile,
    uncut: int | None = None,
) -> Iterator[tuple[Operand, ...]]:
    """`operands` cut until all that is touched by those with a reach can be bound. Raises UnsupportedError.

    Axes along which operand number `uncut` moves stay whole.
    """
    limit = binding_limit(profile)
    for operand, reach in zip(operands, reaches, strict=False):
        nbytes = window(operand, profile.limits.offset_alignment, reach)[1]
        if nbytes <= limit:
            continue
        spans = [abs(stride) * (size - 1) for stride, size in zip(operand.strides, operand.shape, strict=True)]
        if uncut is not None:
            spans = [0 if stride else span for stride, span in zip(operands[uncut].strides, spans, strict=True)]
        if not any(spans):
            raise UnsupportedError(f"a binding of {nbytes:,} bytes is needed; the limit of {profile.name} is {limit:,}")
        axis = spans.index(max(spans))
        half = operand.shape[axis] // 2
        yield from pieces(tuple(cut(o, axis, 0, half) for o in operands), reaches, profile, uncut)
        yield from pieces(tuple(cut(o, axis, half, o.shape[axis]) for o in operands), reaches, profile, uncut)
        return
    yield operands


def cut(operand: Operand, axis: int, start: int, stop: int) -> Operand:
    """Indices [start, stop) of `axis`."""
    shape = (*operand.shape[:axis], stop - start, *operand.shape[axis + 1 :])
    return replace(operand, shape=shape, offset=operand.offset + start * operand.strides[axis])


def plan(kernel: Pointwise, profile: DeviceProfile) -> Plan:
    """The launches that fill `kernel.result`: none where it is empty, several where a binding would pass the limit."""
    result = kernel.result
    if len(result.shape) > MAX_RANK:
        raise UnsupportedError(
            f"arrays of rank {len(result.shape)} are not taken: the most is {MAX_RANK}; reshape first"
        )
    if 0 in result.shape:
        return Plan(())
    views = {**kernel.inputs, **kernel.coordinates}
    operands = simplify((result, *(broadcast(view, result.shape) for view in views.values())))
    _check_nested(operands[0])
    reaches = ((0, 0), *(kernel.reach.get(name, (0, 0)) for name in kernel.inputs))
    uncut = 1 + list(views).index(kernel.uncut) if kernel.uncut else None
    cuts = pieces(operands, reaches, profile, uncut)
    return Plan(tuple(_launch(kernel, tuple(views), piece, profile) for piece in cuts))


def _check_nested(result: Operand) -> None:
    reach = 0
    for size, stride in zip(reversed(result.shape), reversed(result.strides), strict=True):
        if stride <= reach:
            raise ValueError(f"a result of shape {result.shape} and strides {result.strides} would lie over itself")
        reach += stride * (size - 1)


def _split(result: Operand, each: int) -> int:
    """How many outer axes an invocation can be given by its index: no two of their rows may share a word."""
    if each == 1:
        return len(result.shape)
    for outer in range(len(result.shape), 0, -1):
        words = _row_words(result, outer, each)
        if all(stride % each == 0 for stride in result.strides[:outer]) and result.strides[outer - 1] >= words * each:
            return outer
    return 0


def _row_words(result: Operand, outer: int, each: int) -> int:
    pairs = zip(result.shape[outer:], result.strides[outer:], strict=True)
    extent = 1 + sum(stride * (size - 1) for size, stride in pairs)
    return -(-(result.offset % each + extent) // each)


def _launch(kernel: Pointwise, names: tuple[str, ...], piece: tuple[Operand, ...], profile: DeviceProfile) -> Launch:
    result = piece[0]
    each = WORD // result.itemsize
    outer = _split(result, each)
    if each > 1 and (outer == len(result.shape) or result.strides[-1] != 1):
        piece = tuple(replace(o, shape=(*o.shape, 1), strides=(*o.strides, 1)) for o in piece)
        result = piece[0]
    rank = len(result.shape)
    variant = _variant(kernel, names, rank, outer)
    alignment = profile.limits.offset_alignment
    resources: dict[str, Bytes | str] = {}
    offsets = [o.offset for o in piece]
    for n, name in enumerate(("result", *kernel.inputs)):
        start, nbytes, offsets[n] = window(piece[n], alignment, kernel.reach.get(name, (0, 0)))
        resources[name] = Bytes(kernel.buffers.get(name, name), start, nbytes)
    resources |= {binding.name: given for binding, given in kernel.extra}
    resources = {binding.name: resources[binding.name] for binding in variant.bindings}

    values: dict[str, float] = {name: value for name, _, value in kernel.values}
    row_words = _row_words(replace(result, offset=offsets[0]), outer, each)
    invocations = math.prod(result.shape[:outer]) * row_words
    values["invocations"] = invocations
    values["result_offset"] = offsets[0] // each
    if each > 1:
        values["row_words"] = row_words
        values["shift"] = offsets[0] % each
        values["extent"] = 1 + sum(
            s * (n - 1) for n, s in zip(result.shape[outer:], result.strides[outer:], strict=True)
        )
    for axis in range(rank):
        values[f"size{axis}"] = result.shape[axis]
        values[f"result_stride{axis}"] = result.strides[axis] // (each if axis < outer else 1)
    for n, name in enumerate(names, start=1):
        values[f"{name}_offset"] = offsets[n] & 0xFFFFFFFF
        for axis in range(rank):
            values[f"{name}_stride{axis}"] = piece[n].strides[axis] & 0xFFFFFFFF
    groups = fold_workgroups(-(-invocations // WORKGROUP), profile.limits.workgroups_per_dimension)
    return Launch(variant, resources, variant.parameters.pack(**values), groups)


def _variant(kernel: Pointwise, names: tuple[str, ...], rank: int, outer: int) -> Variant:
    each = WORD // kernel.result.itemsize
    fields = ["invocations", "result_offset"] + (["row_words", "shift", "extent"] if each > 1 else [])
    fields += [f"{name}_offset" for name in names]
    for axis in range(rank):
        fields += [f"size{axis}", f"result_stride{axis}", *(f"{name}_stride{axis}" for name in names)]
    words: tuple[tuple[str, Scalar], ...] = tuple((name, "u32") for name in fields)
    bindings = (
        *(Binding(name, "read", "u32") for name in kernel.inputs),
        *(binding for binding, _ in kernel.extra),
        Binding("result", "write", "u32"),
    )
    inner = rank - outer
    return Variant(
        family=kernel.family,
        name=f"{kernel.name}-o{outer}" + (f"i{inner}" if inner else ""),
        template=kernel.template,
        constants=(
            ("WORKGROUP", WORKGROUP),
            ("outer", outer),
            ("rank", rank),
            ("views", names),
            ("inputs", tuple((name, short_name(view.dtype)) for name, view in kernel.inputs.items())),
            ("result_dtype", short_name(kernel.result.dtype)),
            *kernel.constants,
        ),
        bindings=bindings,
        parameters=Parameters((*words, *((name, kind) for name, kind, _ in kernel.values))),
    )
