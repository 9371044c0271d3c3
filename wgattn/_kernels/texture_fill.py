"""The steps that bring rows to a texture: copies by the queue where they lie right, else a kernel that gathers them.

The kernel casts, pads and rotates, follows a table of pages, and dequantises what it rotates.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from wgattn._dtypes import float32, short_name, uint8
from wgattn._errors import UnsupportedError
from wgattn._kernels.kernel import (
    FAR,
    Binding,
    Bytes,
    CopyToTexture,
    Launch,
    Operand,
    Parameters,
    Scalar,
    Variant,
    bound_bytes,
    fold_workgroups,
    storage_element,
)
from wgattn._kernels.rotation import TABLES
from wgattn._kernels.texture import COPY_PITCH, FOLD, TEXEL, Texels, entries_of
from wgattn._runtime.profile import Limits

WORKGROUP = 64
Row = tuple[int, int, int]  # where a small run-time array lies in a buffer: its first element, steps a B0 and a B1


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary embedding on the way: a token stands at `first` + its index + the run-time int32 of its batch entry."""

    style: str  # half4, half or interleaved, as in AttentionProblem
    pairs: int
    first: int
    offset: tuple[Bytes, int, int, int] | None = None  # the buffer of offsets, and a Row of it


@dataclass(frozen=True, slots=True)
class Held:
    """Which rows of a cache are read: key `first` + token of each sequence, as far as its length goes.

    With `pages` the source is a pool, the same for all sequences: `tokens` of each are gathered from it.
    """

    first: int = 0
    rows: Bytes | None = None  # the buffer of the small arrays below
    lengths: Row | None = None
    pages: Row | None = None
    page_size: int = 1
    tokens: int = 0
    ring: tuple[int, int] | None = None  # slots and pinned ones of a ring; its keys are rotated at their positions
    scales: Operand | None = None  # what the rows are dequantised by as they are rotated


def fill(
    source: Operand,
    name: str,
    texels: Texels,
    texture: str,
    limits: Limits,
    rotation: Rotation | None = None,
    held: Held = Held(),
) -> tuple[Launch | CopyToTexture, ...]:
    """The steps that bring `source` (B0, B1, L, heads, D) from buffer `name` to `texture`; D has stride 1.

    Raises UnsupportedError where a single row is wider than a binding.
    """
    if texels.copied:
        return tuple(_copies(source, name, texels, texture))
    return tuple(
        _launch(source, part, first, name, texels, texture, limits, rotation, held)
        for part, first in _parts(source, limits)
    )


def _copies(source: Operand, name: str, texels: Texels, texture: str) -> Iterator[CopyToTexture]:
    """A copy a batch entry, a head where they lie apart, a block of columns; and the tokens that fill no row."""
    _, B1, _, heads, _ = source.shape
    size, side = source.itemsize, texels.side
    _, entries, tokens = entries_of(source, texels)
    rows = -(-tokens // side)
    whole, left = divmod(tokens, side)
    width = side * texels.token_step
    pitch = source.strides[2] * side * size if tokens > 1 else -(-width * TEXEL // COPY_PITCH) * COPY_PITCH
    for entry, head in product(range(entries), range(heads if texels.apart else 1)):
        b0, b1 = divmod(entry, B1)
        start = (source.offset + b0 * source.strides[0] + b1 * source.strides[1] + head * source.strides[3]) * size
        row = entry * rows
        done = 0
        while done < rows:
            block, y = divmod(row + done, 1 << FOLD)
            height = min(whole - done, (1 << FOLD) - y)
            across = width
            if done == whole:
                height, across = 1, left * texels.token_step
            at = Bytes(name, start + done * pitch, (height - 1) * pitch + across * TEXEL)
            x = block * texels.block_width + head * texels.head_step
            yield CopyToTexture(at, pitch, texture, x, y, across, height)
            done += height


Place = tuple[int, int, int, int]  # the first B0, B1, token and head of a part


def _parts(source: Operand, limits: Limits, place: Place = (0, 0, 0, 0)) -> Iterator[tuple[Operand, Place]]:
    """`source` cut until each part can be bound."""
    reach = [abs(s) * (n - 1) for s, n in zip(source.strides[:4], source.shape, strict=False)]
    if (sum(reach) + source.shape[4]) * source.itemsize + limits.offset_alignment + 4 <= limits.binding_bytes:
        yield source, place
        return
    if not any(reach):
        raise UnsupportedError(
            f"one row of {source.shape[4]:,} elements does not fit the {limits.binding_bytes:,} bytes of a binding; "
            f"use a smaller head dim"
        )
    axis = reach.index(max(reach))
    half = source.shape[axis] // 2
    for first, end in ((0, half), (half, source.shape[axis])):
        shape = (*source.shape[:axis], end - first, *source.shape[axis + 1 :])
        part = replace(source, shape=shape, offset=source.offset + first * source.strides[axis])
        yield from _parts(part, limits, (*place[:axis], place[axis] + first, *place[axis + 1 :]))  # type: ignore[arg-type]


_AXES = ("b0", "b1", "t", "h")
_SIZES: tuple[tuple[str, Scalar], ...] = tuple(
    (name, "u32")
    for name in (
        "count", "B1", "tokens", "heads", "H", "head_width", "block_width", "row_first", "row_b0", "row_b1",
        "head_first", "source_at", "first", *(f"source_{axis}" for axis in _AXES),
    )
)  # fmt: skip
_ROTATION: tuple[tuple[str, Scalar], ...] = (("rope_pairs", "u32"),)
_PAGES: tuple[tuple[str, Scalar], ...] = tuple(
    (name, "u32") for name in ("page_bits", "page_last", "part_first", "part_tokens")
)
_RING: tuple[tuple[str, Scalar], ...] = (("slots", "i32"), ("pinned", "i32"))


def _place_of(name: str, *axes: str) -> tuple[tuple[str, Scalar], ...]:
    return tuple((f"{name}_{field}", "u32") for field in ("at", *axes))


def stored(dtype: np.dtype) -> bool:
    """Whether elements are bytes of a type that does not compute: they are moved, or dequantised, a word at a time."""
    return dtype.itemsize == 1


def variant(
    source: np.dtype, quads: bool, exact: bool, texel: np.dtype, rotation: Rotation | None, held: Held = Held()
) -> Variant:
    """The kernel that gathers rows. `quads`: they can be read four elements at a time; `exact`: without padding."""
    words = [short_name(source), *([short_name(texel)] if texel != source else [])]
    words += ["quads"] * quads + ["padded"] * (not exact)
    bindings = [Binding("source", "read", storage_element(source, quads))]
    table = _SIZES
    there = {
        "offset": rotation is not None and rotation.offset is not None,
        "lengths": held.lengths is not None,
        "pages": held.pages is not None,
    }
    ring, scales = rotation is not None and held.ring is not None, rotation is not None and held.scales is not None
    if rotation is not None:
        words += ["rope", rotation.style]
        bindings.append(Binding(TABLES, "read", "vec2<f32>"))
        table += _ROTATION
    if any(there.values()):
        bindings.append(Binding("rows", "read", "u32"))
    for name, given in there.items():
        if given:
            words.append(name)
            table += _place_of(name, "b0", "b1") + (_PAGES if name == "pages" else ())
    if ring:
        words.append("ring")
        table += _RING
    if scales:
        words.append("scales")
        bindings.append(Binding("scales", "read", "f32"))
        table += _place_of("scales", *_AXES)
    bindings.append(Binding("texels", "write_texture", "rgba32float" if texel == float32 else "rgba32uint"))
    return Variant(
        family="texture",
        name="-".join(("texture", *words)),
        template="array/texture.wgsl",
        constants=(
            ("WORKGROUP", WORKGROUP),
            ("FOLD", FOLD),
            ("far", FAR),
            ("dtype", short_name(source)),
            ("texel", short_name(texel)),
            ("stored", stored(source)),
            ("quads", quads),
            ("exact", exact),
            ("rope", None if rotation is None else rotation.style),
            ("rows_read", tuple(name for name, given in there.items() if given)),
            ("wraps", ring),
            ("scales", scales),
        ),
        bindings=tuple(bindings),
        parameters=Parameters(table),
    )


def _launch(
    whole: Operand,
    source: Operand,
    place: Place,
    name: str,
    texels: Texels,
    texture: str,
    limits: Limits,
    rotation: Rotation | None,
    held: Held,
) -> Launch:
    B0, B1, tokens, heads, dim = source.shape
    sized = [s for s, n in zip(source.strides[:4], source.shape, strict=False) if n > 1]
    quads = all(n % 4 == 0 for n in (*((dim,) if not stored(source.dtype) else ()), source.offset, *sized))
    width = 2 * dim if source.dtype == uint8 and texels.dtype == float32 else dim
    exact = width >= texels.dim
    shader = variant(source.dtype, quads, exact, texels.dtype, rotation, held)
    bound, at = bound_bytes(source, name, limits.offset_alignment)
    row_b1 = whole.shape[2]
    first = held.first if rotation is None else rotation.first
    values: dict[str, float] = {}
    resources: dict[str, Bytes | str] = {"source": bound, "texels": texture}
    if held.pages is not None:
        values = {
            "page_bits": held.page_size.bit_length() - 1, "page_last": max(row_b1 // held.page_size, 1) - 1,
            "part_first": place[2], "part_tokens": tokens,
        }  # fmt: skip
        tokens = row_b1 = held.tokens
        place = (place[0], place[1], 0, place[3])
    row_b0 = whole.shape[1] * row_b1
    count = B0 * B1 * tokens * heads * texels.head_width
    values |= {
        "count": count, "B1": B1, "tokens": tokens, "heads": heads, "H": dim, "head_width": texels.head_width,
        "block_width": texels.block_width, "row_first": place[0] * row_b0 + place[1] * row_b1 + place[2],
        "row_b0": row_b0, "row_b1": row_b1, "head_first": place[3], "source_at": at, "first": first + place[2],
    }  # fmt: skip
    values |= {f"source_{axis}": stride % 2**32 for axis, stride in zip(_AXES, source.strides, strict=False)}
    found: dict[str, Row | None] = {"lengths": held.lengths, "pages": held.pages}
    if held.rows is not None:
        resources["rows"] = held.rows
    if rotation is not None:
        resources[TABLES] = Bytes(TABLES)
        values["rope_pairs"] = rotation.pairs
        if rotation.offset is not None:
            resources["rows"], *row = rotation.offset
            found["offset"] = (row[0], row[1], row[2])
        if held.ring is not None:
            values |= {"slots": held.ring[0], "pinned": held.ring[1]}
        if held.scales is not None:
            part = _same_part(held.scales, source, values, place)
            resources["scales"], scales_at = bound_bytes(part, "scales", limits.offset_alignment)
            steps = zip(_AXES, part.strides, strict=False)
            values |= {"scales_at": scales_at} | {f"scales_{axis}": step % 2**32 for axis, step in steps}
    for word, row in found.items():
        if row is not None:
            at, step_b0, step_b1 = row
            at += place[0] * step_b0 + place[1] * step_b1
            values |= {f"{word}_at": at, f"{word}_b0": step_b0, f"{word}_b1": step_b1}
    groups = fold_workgroups(-(-count // WORKGROUP), limits.workgroups_per_dimension)
    return Launch(shader, resources, shader.parameters.pack(**values), groups)


def _same_part(scales: Operand, source: Operand, values: Mapping[str, float], place: Place) -> Operand:
    """The scales of a part of the rows."""
    places = (place[0], place[1], int(values.get("part_first", place[2])), place[3])
    offset = scales.offset + sum(n * step for n, step in zip(places, scales.strides, strict=False))
    return replace(scales, shape=(*source.shape[:4], scales.shape[4]), offset=offset)
