"""Rows of heads laid out as a texture.

On CPU adapters a read of a storage texture costs a fifteenth of a read of a storage buffer. A texel holds 16 bytes of
one head's row: four float32, eight 16-bit or sixteen 8-bit elements, or 32 of packed int4. A row of texels is one token
with its heads side by side; 8,192 rows make a block of columns, the next ones the block to its right.

Rows that need no padding, cast or rotation are copied by the queue, which takes rows a multiple of 256 bytes apart.
Tokens that are shorter lie side by side in a row of texels, all heads of one after the other, or each head's own run.
Anything else is gathered by a kernel: texture_fill.py has the steps.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from wgattn._dtypes import float32
from wgattn._kernels.kernel import Operand, Scalar, Texture, TextureFormat
from wgattn._runtime.profile import Limits

FOLD = 13  # log2 of the tokens in a block of columns: every WebGPU device has textures of 8,192 texels a side
TEXEL = 16  # bytes
COPY_PITCH = 256  # the queue copies rows that lie a multiple of this apart
FEW_COPIES = 64  # commands that cost little beside a call
SHORT_COPY = 16 << 10  # bytes that a kernel gathers in about the time that the queue takes for one command


@dataclass(frozen=True, slots=True)
class Texels:
    """The layout of rows (batch, tokens, heads, dim) in a texture; `dim` is padded to whole texels with zeros.

    `copied`: the queue brings them. `side` tokens, a power of two, share a row of texels; with heads `apart`, those of
    one head lie together.
    """

    dtype: np.dtype  # uint8 is packed int4, two values an element
    dim: int
    batch: int
    tokens: int
    heads: int
    copied: bool = False
    side: int = 1
    apart: bool = False

    @property
    def each(self) -> int:
        """Elements a texel."""
        return TEXEL // self.dtype.itemsize

    @property
    def head_width(self) -> int:
        """Texels of a head's row."""
        return self.dim // self.each

    @property
    def head_step(self) -> int:
        """Texels from a head to the next."""
        return self.head_width * (self.side if self.apart else 1)

    @property
    def token_step(self) -> int:
        """Texels from a token to the next in a row of texels."""
        return self.head_width * (1 if self.apart else self.heads)

    @property
    def block_width(self) -> int:
        """Texels of a whole row in a block of columns."""
        return self.side * self.heads * self.head_width

    @property
    def entry_rows(self) -> int:
        """Rows of texels a batch entry."""
        return -(-self.tokens // self.side)

    @property
    def texture(self) -> Texture:
        rows = self.batch * self.entry_rows
        blocks = -(-rows // (1 << FOLD))
        # Heights grow in steps, so that a cache that grows by a token finds the texture it had.
        height = min(1 << FOLD, -(-rows // 64) * 64)
        return Texture(self.block_width * max(blocks, 1), max(height, 1), texel_format(self.dtype))

    def fits(self, limits: Limits) -> bool:
        return self.texture.width <= limits.texture_2d

    @property
    def nbytes(self) -> int:
        return self.texture.width * self.texture.height * TEXEL

    def broadcast(self, name: str) -> dict[str, int]:
        """What changes in `values` for a shader that indexes tokens and heads when the texture has one for all."""
        every_token = {f"{name}_side": 31, f"{name}_token": 0} if self.tokens == 1 else {}
        return every_token | ({f"{name}_head": 0} if self.heads == 1 else {})

    def values(self, name: str) -> dict[str, int]:
        """What a shader that reads the texture of `name` is told of it, by parameter: see texels.wgsl."""
        return {
            f"{name}_rows": self.entry_rows if self.batch > 1 else 0,
            f"{name}_side": self.side.bit_length() - 1,
            f"{name}_width": self.block_width,
            f"{name}_token": self.token_step,
            f"{name}_head": self.head_step,
        }


def texel_format(dtype: np.dtype) -> TextureFormat:
    """The format of a texture whose texels hold `dtype`."""
    return "rgba32float" if dtype == float32 else "rgba32uint"


def fields(name: str) -> tuple[tuple[str, Scalar], ...]:
    """The parameters that `Texels.values` fills."""
    return tuple((f"{name}_{field}", "u32") for field in ("rows", "side", "width", "token", "head"))


def lay(source: Operand, dtype: np.dtype, dim: int, rotated: bool = False) -> Texels:
    """The layout for `source` (B0, B1, L, heads, D), as elements of `dtype`, each row padded to `dim`."""
    size = source.itemsize
    b0, b1, tokens, heads, width = source.shape
    gathered = Texels(dtype, dim, b0 * b1, tokens, heads)
    strides = [s * size for s, n in zip(source.strides[:4], source.shape, strict=False) if n > 1]
    if rotated or source.dtype != dtype or width != dim or any(n % TEXEL for n in (source.offset * size, *strides)):
        return gathered
    apart = heads > 1 and source.strides[3] != dim
    run, pitch = dim * (1 if apart else heads), source.strides[2]
    copied = replace(gathered, copied=True, apart=apart)
    if tokens > 1 and not (pitch >= run and pitch * size % COPY_PITCH == 0):
        if pitch != run:
            return gathered
        copied = replace(copied, side=COPY_PITCH // math.gcd(COPY_PITCH, pitch * size))
    one, _, _ = entries_of(source, copied)
    copies = (1 if one else b0 * b1) * (heads if apart else 1)
    return gathered if copies > FEW_COPIES and tokens * run * size < SHORT_COPY else copied


def entries_of(source: Operand, texels: Texels) -> tuple[bool, int, int]:
    """Whether all batch entries lie one behind the other, so that they are one; how many there are; their tokens."""
    b0, b1, tokens, _, _ = source.shape
    s0, s1, pitch = source.strides[:3]
    one = tokens > 1 and tokens % texels.side == 0  # a token alone may have any pitch
    one = one and (b1 == 1 or s1 == tokens * pitch) and (b0 == 1 or s0 == b1 * tokens * pitch)
    return (True, 1, b0 * b1 * tokens) if one else (False, b0 * b1, tokens)
