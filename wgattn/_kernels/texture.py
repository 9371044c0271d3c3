"""Rows of heads laid out as a texture, and the steps that bring them there from a buffer.

On CPU adapters a read of a storage texture costs a fifteenth of a read of a storage buffer. A texel holds 16 bytes of one head's row: four float32
or eight 16-bit elements. A row of texels is one token with its heads side by side; 8,192 tokens make a block of columns, the next ones the block
to its right. Where a token's row lies in the buffer as it has to in the texture it is copied by the queue; else a kernel gathers, pads, casts and
rotates it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from wgattn._dtypes import float32, short_name
from wgattn._errors import UnsupportedError
from wgattn._kernels.kernel import (
    Binding,
    Bytes,
    CopyToTexture,
    Launch,
    Operand,
    Parameters,
    Scalar,
    Texture,
    Variant,
    bound_bytes,
    fold_workgroups,
    storage_element,
)
from wgattn._runtime.profile import Limits

FOLD = 13  # log2 of the tokens in a block of columns: every WebGPU device has textures of 8,192 texels a side
TEXEL = 16
COPY_PITCH = 256  # the queue copies rows that lie a multiple of this apart
WORKGROUP = 64


@dataclass(frozen=True, slots=True)
class Texels:
    """The layout of rows (batch, tokens, heads, dim) in a texture; `dim` is padded to whole texels with zeros."""

    dtype: np.dtype
    dim: int
    batch: int
    tokens: int
    heads: int

    @property
    def each(self) -> int:
        """Elements a texel."""
        return TEXEL // self.dtype.itemsize

    @property
    def head_width(self) -> int:
        return self.dim // self.each

    @property
    def block_width(self) -> int:
        return self.heads * self.head_width

    @property
    def texture(self) -> Texture:
        rows = self.batch * self.tokens
        blocks = -(-rows // (1 << FOLD))
        # Heights grow in steps, so that a cache that grows by a token finds the texture it had.
        height = min(1 << FOLD, -(-rows // 64) * 64)
        return Texture(
            self.block_width * blocks, max(height, 1), "rgba32float" if self.dtype == float32 else "rgba32uint"
        )

    def fits(self, limits: Limits) -> bool:
        return self.texture.width <= limits.texture_2d


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary embedding on the way: token l of batch entry b stands at first + l, and the run-time int32 at offset[b]."""

    style: str  # half4, half or interleaved, as in AttentionProblem
    pairs: int
    first: int
    offset: tuple[Bytes, int, int, int] | None = None  # where offsets lie: the first one, steps a B0 and a B1


def fill(
    source: Operand, name: str, texels: Texels, texture: str, limits: Limits, rotation: Rotation | None = None
) -> tuple[Launch | CopyToTexture, ...]:
    """The steps that bring `source` (B0, B1, L, heads, D), elements of a row side by side, from buffer `name` to `texture`.

    Raises UnsupportedError where a single row is wider than a binding.
    """
    if rotation is None and _lies_alike(source, texels):
        return tuple(_copies(source, name, texels, texture))
    return tuple(
        _launch(source, part, first, name, texels, texture, limits, rotation) for part, first in _parts(source, limits)
    )


def _side_by_side(source: Operand) -> bool:
    """Whether the heads of a token are one run of elements."""
    return source.shape[3] == 1 or source.strides[3] == source.shape[4]


def _lies_alike(source: Operand, texels: Texels) -> bool:
    size = source.itemsize
    _, _, tokens, heads, dim = source.shape
    strides = [s * size for s, n in zip(source.strides[:4], source.shape, strict=False) if n > 1]
    run = dim * heads if _side_by_side(source) else dim
    pitch = source.strides[2]
    return (
        source.dtype == texels.dtype
        and dim == texels.dim
        and all(n % TEXEL == 0 for n in (source.offset * size, *strides))
        and (tokens == 1 or (pitch >= run and pitch * size % COPY_PITCH == 0))
    )


def _copies(source: Operand, name: str, texels: Texels, texture: str) -> Iterator[CopyToTexture]:
    """A copy a batch entry, and a head where heads do not lie side by side, cut where a block of columns ends."""
    B0, B1, tokens, heads, _ = source.shape
    joined = _side_by_side(source)
    width = texels.block_width if joined else texels.head_width
    pitch = source.strides[2] * source.itemsize if tokens > 1 else -(-width * TEXEL // COPY_PITCH) * COPY_PITCH
    for b0, b1, head in product(range(B0), range(B1), range(1 if joined else heads)):
        start = source.offset + b0 * source.strides[0] + b1 * source.strides[1] + head * source.strides[3]
        done = 0
        while done < tokens:
            block, y = divmod((b0 * B1 + b1) * tokens + done, 1 << FOLD)
            height = min(tokens - done, (1 << FOLD) - y)
            first = (start + done * source.strides[2]) * source.itemsize
            nbytes = (height - 1) * pitch + width * TEXEL
            x = block * texels.block_width + head * texels.head_width
            yield CopyToTexture(Bytes(name, first, nbytes), pitch, texture, x, y, width, height)
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
            f"one row of {source.shape[4]:,} elements does not fit the {limits.binding_bytes:,} bytes that this device binds"
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
        "count", "B1", "tokens", "heads", "H", "head_width", "block_width", "row_first", "row_b0", "row_b1", "head_first",
        "source_at", *(f"source_{axis}" for axis in _AXES),
    )
)  # fmt: skip
_ROTATION: tuple[tuple[str, Scalar], ...] = (("rope_pairs", "u32"), ("position", "i32"))
_OFFSET: tuple[tuple[str, Scalar], ...] = tuple((f"offset_{field}", "u32") for field in ("at", "b0", "b1"))


def variant(source: np.dtype, quads: bool, exact: bool, texel: np.dtype, rotation: Rotation | None) -> Variant:
    """The kernel that gathers rows. `quads`: they can be read four elements at a time; `exact`: they need no padding."""
    words = [short_name(source), *([short_name(texel)] if texel != source else [])]
    words += ["quads"] * quads + ["padded"] * (not exact)
    offset = rotation is not None and rotation.offset is not None
    bindings = [Binding("source", "read", storage_element(source, quads))]
    fields = _SIZES
    if rotation is not None:
        words += ["rope", rotation.style, *(["offset"] * offset)]
        bindings.append(Binding("rope_tables", "read", "vec2<f32>"))
        fields += _ROTATION
        if offset:
            bindings.append(Binding("offset", "read", "u32"))
            fields += _OFFSET
    bindings.append(Binding("texels", "write_texture", "rgba32float" if texel == float32 else "rgba32uint"))
    return Variant(
        family="texture",
        name="-".join(("texture", *words)),
        template="array/texture.wgsl",
        constants=(
            ("WORKGROUP", WORKGROUP),
            ("FOLD", FOLD),
            ("dtype", short_name(source)),
            ("texel", short_name(texel)),
            ("quads", quads),
            ("exact", exact),
            ("rope", None if rotation is None else rotation.style),
            ("offset", offset),
        ),
        bindings=tuple(bindings),
        parameters=Parameters(fields),
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
) -> Launch:
    B0, B1, tokens, heads, dim = source.shape
    sized = [s for s, n in zip(source.strides[:4], source.shape, strict=False) if n > 1]
    quads = all(n % 4 == 0 for n in (dim, source.offset, *sized))
    shader = variant(source.dtype, quads, dim == texels.dim, texels.dtype, rotation)
    bound, at = bound_bytes(source, name, limits.offset_alignment)
    count = B0 * B1 * tokens * heads * texels.head_width
    row_b1 = whole.shape[2]
    row_b0 = whole.shape[1] * row_b1
    values = {
        "count": count, "B1": B1, "tokens": tokens, "heads": heads, "H": dim, "head_width": texels.head_width,
        "block_width": texels.block_width, "row_first": place[0] * row_b0 + place[1] * row_b1 + place[2], "row_b0": row_b0,
        "row_b1": row_b1, "head_first": place[3], "source_at": at,
    }  # fmt: skip
    values |= {f"source_{axis}": stride % 2**32 for axis, stride in zip(_AXES, source.strides, strict=False)}
    resources: dict[str, Bytes | str] = {"source": bound, "texels": texture}
    if rotation is not None:
        resources["rope_tables"] = Bytes("rope_tables")
        values |= {"rope_pairs": rotation.pairs, "position": rotation.first + place[2]}
        if rotation.offset is not None:
            resources["offset"], offset_at, step_b0, step_b1 = rotation.offset
            offset_at += place[0] * step_b0 + place[1] * step_b1
            values |= {"offset_at": offset_at, "offset_b0": step_b0, "offset_b1": step_b1}
    groups = fold_workgroups(-(-count // WORKGROUP), limits.workgroups_per_dimension)
    return Launch(shader, resources, shader.parameters.pack(**values), groups)
