"""What the device is told: a Program of slots and commands, free of any device object, testable anywhere."""

from dataclasses import dataclass
from typing import Literal

TextureFormat = Literal["rgba32float", "rgba32uint"]
Resource = Literal["read", "write", "read rgba32float", "read rgba32uint", "write rgba32float", "write rgba32uint"]


@dataclass(frozen=True, slots=True)
class BufferSlot:
    """A storage buffer of `nbytes` (a multiple of 4)."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class TextureSlot:
    """A 2-D storage texture; 16 bytes a texel."""

    width: int
    height: int
    format: TextureFormat


Slot = BufferSlot | TextureSlot


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes [offset, offset + nbytes) of a buffer slot; `offset` is a multiple of 256 where a shader binds it."""

    slot: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Shader:
    """One compute shader. `resources` gives binding 0, 1, …; the parameters are a uniform buffer at the next one."""

    name: str
    source: str
    resources: tuple[Resource, ...]
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Run `shader` over `workgroups`; `resources` are ranges of buffers or texture slots in binding order."""

    shader: Shader
    resources: tuple[Range | int, ...]
    parameters: bytes
    workgroups: tuple[int, int, int]
    label: str = ""


@dataclass(frozen=True, slots=True)
class CopyBuffer:
    """Copy `source` to byte `offset` of slot `destination`; offsets and sizes are multiples of 4."""

    source: Range
    destination: int
    offset: int


@dataclass(frozen=True, slots=True)
class CopyToTexture:
    """Copy `height` rows of `width` texels, `bytes_per_row` (a multiple of 256) apart, to (x, y) of a texture slot."""

    source: Range
    bytes_per_row: int
    destination: int
    x: int
    y: int
    width: int
    height: int


Command = Dispatch | CopyBuffer | CopyToTexture


@dataclass(frozen=True, slots=True)
class Program:
    """Slots and the commands over them, in order. `inputs` are filled by the caller, `outputs` handed back to it.

    `constants` are slots whose bytes are known when the program is made: uploaded once for all programs that hold equal
    bytes, so no command writes them and none is an output. Every other slot is scratch.
    A slot may be an input and an output (a donated argument); `reuse` is decided before a Program is made: two values
    that never live together have one slot.
    """

    slots: tuple[Slot, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    commands: tuple[Command, ...]
    constants: tuple[tuple[int, bytes], ...] = ()
