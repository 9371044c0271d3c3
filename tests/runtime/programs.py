"""Small programs that the runtime's tests run."""

from pathlib import Path

import numpy as np

from wgattn._runtime import BufferSlot, CopyBuffer, CopyToTexture, Dispatch, Program, Range, Shader, TextureSlot

HERE = Path(__file__).parent


def shader(name: str, *resources: str) -> Shader:
    return Shader(name, (HERE / f"{name}.wgsl").read_text(encoding="utf-8"), resources)  # type: ignore[arg-type]


SCALE_ADD = shader("scale_add", "read", "write")
SUM_ROWS = shader("sum_rows", "read rgba32float", "write")


def scale_add(source: int, destination: int, n: int, scale: float, shift: float) -> Dispatch:
    ranges = Range(source, 0, 4 * n), Range(destination, 0, 4 * n)
    return Dispatch(SCALE_ADD, ranges, np.array([scale, shift], np.float32).tobytes(), (-(-n // 64), 1, 1))


def affine(n: int, scale: float = 3.0, shift: float = 1.0) -> Program:
    """out = x · scale + shift over n floats."""
    slot = BufferSlot(4 * n)
    return Program((slot, slot), (0,), (1,), (scale_add(0, 1, n, scale, shift),))


def chain(n: int, steps: int) -> Program:
    """`steps` times x ↦ 2x + 1 through scratch slots."""
    slots = (BufferSlot(4 * n),) * (steps + 1)
    return Program(slots, (0,), (steps,), tuple(scale_add(i, i + 1, n, 2.0, 1.0) for i in range(steps)))


def row_sums(width: int, height: int) -> Program:
    """A buffer copied to a texture, 256-byte rows, then summed over each row."""
    pitch = -(-width * 16 // 256) * 256
    slots = BufferSlot(pitch * height), TextureSlot(width, height, "rgba32float"), BufferSlot(16 * height)
    copy = CopyToTexture(Range(0, 0, pitch * height), pitch, 1, 0, 0, width, height)
    run = Dispatch(SUM_ROWS, (1, Range(2, 0, 16 * height)), np.uint32(width).tobytes(), (height, 1, 1))
    return Program(slots, (0,), (2,), (copy, run))


def join(n: int, m: int) -> Program:
    """Two buffers one after the other, by copies."""
    slots = BufferSlot(4 * n), BufferSlot(4 * m), BufferSlot(4 * (n + m))
    copies = CopyBuffer(Range(0, 0, 4 * n), 2, 0), CopyBuffer(Range(1, 0, 4 * m), 2, 4 * n)
    return Program(slots, (0, 1), (2,), copies)
