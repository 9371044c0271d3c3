"""The values that every kernel of the package deals in: tables for both sides, a Variant chosen, Launches planned.

All of it is values: no device, no buffer. The schedule gives names of operands slots; the runtime runs what comes out.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from wgattn._dtypes import float32

FAR = 1 << 30  # positions and bounds stay within it: adding two of them stays within int32
Scalar = Literal["u32", "i32", "f32"]
_PACK = {"u32": "I", "i32": "i", "f32": "f"}


@dataclass(frozen=True, slots=True)
class Binding:
    """One resource of a kernel: its name in the shader, how it is used, and the WGSL element type of its array."""

    name: str
    access: Literal["read", "write", "texture", "write_texture"]
    element: str  # "f32", "vec4<f32>", "u32", … ; for textures "rgba32float" or "rgba32uint"


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameter struct of a kernel, scalars only, so that Python and WGSL lay it out alike."""

    fields: tuple[tuple[str, Scalar], ...]

    def pack(self, **values: float) -> bytes:
        """The struct's bytes. Every field must be given, and nothing else."""
        names = [name for name, _ in self.fields]
        if set(values) != set(names):
            raise KeyError(
                f"parameters {sorted(set(values) ^ set(names))} are missing or unknown; the struct has {names}"
            )
        code = "<" + "".join(_PACK[kind] for _, kind in self.fields)
        packed = struct.pack(code, *(values[name] for name in names))
        return packed + bytes(-len(packed) % 16)


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a family can serve a problem, and the reason where it cannot. True in a condition when it can."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


SUPPORTED = Support(True)


def unsupported(reason: str) -> Support:
    return Support(False, reason)


@dataclass(frozen=True, slots=True)
class Variant:
    """A shader and its constants. Equal names mean equal WGSL: the name is pipeline label, cache key and test id."""

    family: str
    name: str
    template: str  # path below wgsl/, e.g. "attention/flash_tiled.wgsl"
    constants: tuple[tuple[str, object], ...]  # what the template sees; UPPER_CASE scalars become WGSL consts
    bindings: tuple[Binding, ...]
    parameters: Parameters
    workgroup_bytes: int = 0
    features: frozenset[str] = frozenset()
    reason: str = field(default="", compare=False)
    passed: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    def because(self, passed: tuple[tuple[str, str], ...], reason: str = "") -> "Variant":
        """This variant with the families that were passed over, and why."""
        return replace(self, passed=passed, reason=reason or self.reason)


@dataclass(frozen=True, slots=True)
class Operand:
    """How an array lies in its buffer: offset and strides count elements of `dtype`. No buffer: that is its name's."""

    dtype: np.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def extent(self) -> tuple[int, int]:
        """The first element that is touched, and one past the last."""
        if 0 in self.shape:
            return self.offset, self.offset
        reach = [stride * (size - 1) for stride, size in zip(self.strides, self.shape, strict=True)]
        return self.offset + sum(r for r in reach if r < 0), self.offset + sum(r for r in reach if r > 0) + 1

    def contiguous(self) -> bool:
        return self.strides == natural_strides(self.shape)


def natural_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes [offset, offset + nbytes) of the buffer that the schedule knows as `name`; nbytes None: to its end."""

    name: str
    offset: int = 0
    nbytes: int | None = None


def bound_bytes(operand: Operand, name: str, alignment: int) -> tuple[Bytes, int]:
    """The aligned byte range that holds what an operand touches, and its first element's index in it."""
    first, end = operand.extent()
    start = first * operand.itemsize // alignment * alignment
    stop = -(-end * operand.itemsize // 4) * 4
    return Bytes(name, start, stop - start), operand.offset - start // operand.itemsize


def storage_element(dtype: np.dtype, quads: bool) -> str:
    """The WGSL element type of an array that holds `dtype`; `quads`: four elements are read at a time."""
    if dtype.itemsize == 1:
        return "u32"
    if dtype == float32:
        return "vec4<f32>" if quads else "f32"
    return "vec2<u32>" if quads else "u32"


@dataclass(frozen=True, slots=True)
class Scratch:
    """A buffer that lives for the launch plan only."""

    nbytes: int


TextureFormat = Literal["rgba32float", "rgba32uint"]


@dataclass(frozen=True, slots=True)
class Texture:
    """A texture that lives for the launch plan only; 16 bytes a texel."""

    width: int
    height: int
    format: TextureFormat


@dataclass(frozen=True, slots=True)
class Launch:
    """One dispatch: a resource for each binding of the variant, the packed parameters, and the workgroups."""

    variant: Variant
    resources: Mapping[str, Bytes | str]  # binding name → bytes of a buffer, or a texture's name
    parameters: bytes
    workgroups: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Copy:
    """Buffer to buffer; offsets and size in bytes, multiples of 4."""

    source: Bytes
    destination: str
    offset: int


@dataclass(frozen=True, slots=True)
class CopyToTexture:
    """Rows of a buffer, `bytes_per_row` (a multiple of 256) apart, to `width` × `height` texels at (x, y)."""

    source: Bytes
    bytes_per_row: int
    destination: str
    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of one kernel call in order, and the scratch they share. Other names are operands or results."""

    steps: tuple[Launch | Copy | CopyToTexture, ...]
    scratch: Mapping[str, Scratch | Texture] = field(default_factory=dict)
    constants: Mapping[str, bytes] = field(default_factory=dict)


def fold_workgroups(count: int, limit: int = 65535) -> tuple[int, int, int]:
    """A grid of at least `count` workgroups with no side above `limit`; shaders rebuild the index and test it.

    Example: fold_workgroups(70_000) is (35_000, 2, 1).
    """
    if count <= limit:
        return max(count, 1), 1, 1
    rows = -(-count // limit)
    if rows <= limit:
        return -(-count // rows), rows, 1
    layers = -(-rows // limit)
    rows = -(-rows // layers)
    return -(-count // (rows * layers)), rows, layers
