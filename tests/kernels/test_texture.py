"""Rows of heads brought to textures: copied where they lie alike; gathered, padded, cast and rotated where not."""

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.kernels.run_plan import program_of
from wgattn import _reference, _runtime
from wgattn._dtypes import bfloat16, float8_e4m3fn, float16, float32, int8
from wgattn._errors import UnsupportedError
from wgattn._kernels.kernel import Bytes, CopyToTexture, Launch, Operand, Plan, natural_strides
from wgattn._kernels.rotation import Rope, tables
from wgattn._kernels.texture import FOLD, Texels, lay
from wgattn._kernels.texture_fill import Held, Rotation, fill
from wgattn._runtime import program as device
from wgattn._runtime.profile import Limits

LIMITS = Limits(texture_2d=16384)
READER = Path(__file__).with_name("read_texels.wgsl").read_text()


def operand(array: np.ndarray, base: np.ndarray) -> Operand:
    """A view of `base` as an Operand."""
    offset = (array.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // base.itemsize
    return Operand(base.dtype, array.shape, tuple(s // base.itemsize for s in array.strides), offset)


def filled(
    base: np.ndarray,
    view: np.ndarray,
    dim: int | None = None,
    limits: Limits = LIMITS,
    rotation: Rotation | None = None,
    held: Held | None = None,
    **others: np.ndarray,
) -> tuple[np.ndarray, tuple[Launch | CopyToTexture, ...]]:
    """What the texture holds afterwards, as (batch, tokens, heads, dim), and the steps that were taken."""
    source = operand(view, base)
    texels = lay(source, base.dtype if rotation is None else float32, dim or view.shape[4], rotation is not None)
    if held is not None and held.pages is not None:
        texels = replace(texels, copied=False, side=1, apart=False, tokens=held.tokens)
    steps = fill(source, "source", texels, "made", limits, rotation, held or Held())
    given = {"source": base, **others}
    sizes = {name: -(-array.nbytes // 4) * 4 for name, array in given.items()}
    texture = texels.texture
    sizes["words"] = 16 * texture.width * texture.height
    program = program_of(Plan(steps, {"made": texture}), sizes, tuple(given), ("words",), "wgpu")
    slot = next(n for n, s in enumerate(program.slots) if isinstance(s, device.TextureSlot))
    (words,) = program.outputs
    read = device.Shader(
        f"read-{texture.format}", READER.replace("FORMAT", texture.format), (f"read {texture.format}", "write")
    )  # type: ignore[arg-type]
    groups = (-(-texture.width // 8), -(-texture.height // 8), 1)
    everything = device.Range(words, 0, sizes["words"])
    parameters = struct.pack("<2I8x", texture.width, texture.height)
    command = device.Dispatch(read, (slot, everything), parameters, groups)
    program = replace(program, commands=(*program.commands, command))
    (out,) = _runtime.prepare(program).run([_runtime.upload(array) for array in given.values()])
    place = texels.values("made")
    texel = _runtime.download(out).view(texels.dtype).reshape(texture.height, texture.width, texels.each)
    b, token, n, x = np.ogrid[: texels.batch, : texels.tokens, : texels.heads, : texels.head_width]
    row = b * place["made_rows"] + (token >> place["made_side"])
    beside = token % (1 << place["made_side"])
    column = (row >> FOLD) * place["made_width"] + beside * place["made_token"] + n * place["made_head"] + x
    return texel[row % (1 << FOLD), column].reshape(*column.shape[:3], texels.dim), steps


def normal(*shape: int, dtype: np.dtype = float32) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32).astype(dtype)


def flat(view: np.ndarray) -> np.ndarray:
    return view.reshape(-1, *view.shape[2:])


def copied(steps: tuple[Launch | CopyToTexture, ...]) -> bool:
    return all(isinstance(step, CopyToTexture) for step in steps)


@pytest.mark.device
@pytest.mark.parametrize(
    ("shape", "axes", "dtype", "copies"),
    [
        ((1, 3, 20, 4, 16), (0, 1, 2, 3, 4), float32, 1),  # heads side by side, batch entries behind each other
        ((1, 2, 3, 20, 64), (0, 1, 3, 2, 4), float32, 6),  # heads before tokens: a copy a head
        ((2, 1, 5, 2, 64), (0, 1, 2, 3, 4), float16, 1),
        ((2, 20, 1, 4, 16), (1, 2, 0, 3, 4), float32, 20),  # batch entries between tokens: a copy each
        ((1, 2, 9, 4, 32), (0, 1, 2, 3, 4), bfloat16, 1),
        ((1, 2, 1, 3, 16), (0, 1, 2, 3, 4), float32, 2),  # one token needs no pitch
        ((1, 2, 20, 3, 16), (0, 1, 2, 3, 4), float32, 1),  # 192 bytes a token: four side by side
        ((1, 2, 21, 3, 16), (0, 1, 2, 3, 4), float32, 4),  # and one that is left
        ((1, 2, 3, 21, 16), (0, 1, 3, 2, 4), float16, 12),  # eight of one head side by side
        ((1, 2, 3, 5, 16), (0, 1, 3, 2, 4), float16, 6),  # no row is full
    ],
)
def test_copied(shape: tuple[int, ...], axes: tuple[int, ...], dtype: np.dtype, copies: int) -> None:
    """The bits arrive by the queue, in as few copies as it takes."""
    base = normal(*shape, dtype=dtype)
    view = base.transpose(axes)
    found, steps = filled(base, view)
    assert (len(steps), copied(steps)) == (copies, True)
    np.testing.assert_array_equal(found.view(np.uint8), flat(view).copy().view(np.uint8))


@pytest.mark.device
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16])
@pytest.mark.parametrize("D", [1, 13, 20, 32])
def test_padding(dtype: np.dtype, D: int) -> None:
    """Rows that start and end anywhere are padded with zeros, whatever lies beside them."""
    base = np.full((1, 2, 7, 3, D + 3), np.nan, dtype)
    view = base[:, :, 1:, :, 1 : D + 1]
    view[...] = normal(*view.shape, dtype=dtype)
    found, steps = filled(base, view, 32)
    assert not copied(steps)
    np.testing.assert_array_equal(found[..., :D], flat(view))
    assert not found[..., D:].any()


@pytest.mark.device
@pytest.mark.parametrize("heads", [1, 4])
def test_more_tokens_than_a_block_of_columns(heads: int) -> None:
    """Tokens go on in the block to the right, where batch entries need not start at its top."""
    base = normal(1, 3, (1 << FOLD) - 100, heads, 16)
    found, steps = filled(base, base)
    assert copied(steps)
    np.testing.assert_array_equal(found, flat(base))
    found, steps = filled(base, base, 32)
    assert not copied(steps)
    np.testing.assert_array_equal(found[..., :16], flat(base))


@pytest.mark.device
def test_broadcast_heads_and_reversed_tokens() -> None:
    """Any stride is taken: 0 for a head that is repeated, negative for tokens from the end."""
    base = normal(1, 2, 10, 1, 16)
    view = np.broadcast_to(base[:, :, ::-1], (1, 2, 10, 3, 16))
    found, _ = filled(base, view)
    np.testing.assert_array_equal(found, flat(view))


@pytest.mark.device
@pytest.mark.parametrize(("style", "rotary_dim"), [("half", 16), ("half", 6), ("interleaved", 10)])
@pytest.mark.parametrize("dtype", [float32, float16])
def test_rotation(style: str, rotary_dim: int, dtype: np.dtype) -> None:
    """Rows are rotated at first + token + offset[b], and stay in float32."""
    base = normal(1, 2, 12, 3, 20, dtype=dtype)
    rope = Rope(style=style, rotary_dim=rotary_dim)  # type: ignore[arg-type]
    word = "interleaved" if style == "interleaved" else "half4" if rotary_dim % 8 == 0 else "half"
    offsets = np.array([7, 3, 70_000], np.int32)
    rotation = Rotation(word, rotary_dim // 2, 5, (Bytes("offsets"), 1, 2, 1))
    others = {"rope_tables": tables(rope, 20), "offsets": offsets}
    found, _ = filled(base, base, 32, LIMITS, rotation, **others)
    positions = 5 + np.arange(12)[None] + offsets[1:, None]
    right = _reference.rope(flat(base), positions, rotary_dim=rotary_dim, style=style)
    np.testing.assert_allclose(found[..., :20], right, rtol=0, atol=3e-6)
    assert not found[..., 20:].any()


@pytest.mark.device
def test_source_larger_than_a_binding() -> None:
    """The kernel's source is bound in parts, each to its own place; positions go on."""
    base = normal(2, 2, 50, 3, 20)
    limits = replace(LIMITS, binding_bytes=8 * 1024)
    found, steps = filled(base, base, 32, limits)
    assert len(steps) > 4
    np.testing.assert_array_equal(found[..., :20], flat(base))
    rotation = Rotation("half", 10, 0)
    whole, _ = filled(base, base, 32, LIMITS, rotation, rope_tables=tables(Rope(), 20))
    parts, _ = filled(base, base, 32, limits, rotation, rope_tables=tables(Rope(), 20))
    np.testing.assert_array_equal(whole, parts)


@pytest.mark.device
@pytest.mark.parametrize("dtype", [int8, float8_e4m3fn])
@pytest.mark.parametrize(("D", "pad", "copies"), [(64, 0, True), (20, 0, False), (13, 3, False), (14, 1, False)])
def test_bytes(dtype: np.dtype, D: int, pad: int, copies: bool) -> None:
    """Sixteen a texel; rows that end inside a word, and that start inside one, beside anything."""
    base = normal(1, 2, 9, 4, D + pad, dtype=dtype)
    found, steps = filled(base, base[..., :D], -(-D // 16) * 16)
    assert copied(steps) == copies
    np.testing.assert_array_equal(found[..., :D].view(np.uint8), flat(base[..., :D]).view(np.uint8))
    assert not found[..., D:].view(np.uint8).any()


@pytest.mark.device
@pytest.mark.parametrize("binding_bytes", [1 << 20, 2048])
def test_pages(binding_bytes: int) -> None:
    """Tokens 3 … 12 of each sequence by its table, as far as its length goes, from a pool bound in parts."""
    pool = normal(1, 1, 7 * 4, 3, 20)
    table = np.array([[6, 0, 5, -1], [2, 3, 1, 4]], np.int32)
    lengths = np.array([11, 5], np.int32)
    rows = np.concatenate([lengths, table.ravel()])
    view = np.broadcast_to(pool, (1, 2, *pool.shape[2:]))
    held = Held(3, Bytes("rows"), lengths=(0, 0, 1), pages=(2, 0, 4), page_size=4, tokens=10)
    limits = replace(LIMITS, binding_bytes=binding_bytes)
    found, steps = filled(pool, view, 32, limits, held=held, rows=rows)
    assert (len(steps) > 1) == (binding_bytes < pool.nbytes)
    for b, length in enumerate(lengths):
        for token in range(3, min(length, 13)):
            page, at = table[b, token // 4], token % 4
            np.testing.assert_array_equal(found[b, token - 3, :, :20], pool[0, 0, 4 * page + at])


def test_row_that_cannot_be_bound() -> None:
    wide = Operand(float32, (1, 1, 2, 1, 2001), natural_strides((1, 1, 2, 1, 2001)))
    with pytest.raises(UnsupportedError, match="2,001 elements"):
        fill(wide, "source", Texels(float32, 2016, 1, 2, 1), "made", replace(LIMITS, binding_bytes=4096))


def test_fits() -> None:
    """Blocks of columns lie side by side up to the limit of a texture."""
    assert Texels(float32, 128, 1, 1 << 16, 64).texture.width == 8 * 64 * 32
    assert Texels(float32, 128, 1, 1 << 16, 64).fits(LIMITS)
    assert not Texels(float32, 128, 1, (1 << 16) + 1, 64).fits(LIMITS)
