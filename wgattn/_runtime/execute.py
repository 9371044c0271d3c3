"""Programs made runnable, and bytes brought to the device and back."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .current import device
from .encode import BoundProgram, Read
from .memory import Buffer, Texture
from .program import Program


class Executable:
    """A compiled Program. After a loss of the device it is compiled again for the new one at its next run."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._bound = BoundProgram(program, device())

    def run(self, inputs: Sequence[Buffer | Texture]) -> tuple[Buffer | Texture, ...]:
        """Submit all commands at once and give the outputs, a Buffer for each buffer slot, without waiting for them.

        An input that is an output too comes back as it is. Raises DeviceLostError where an input's device is gone,
        OutOfDeviceMemoryError, WgattnError for what the device refuses.
        """
        return self._current().run(inputs)

    def run_on_host(self, given: Sequence[NDArray[Any] | Buffer], reads: Sequence[Read]) -> None:
        """Upload the arrays among the inputs, run, and bring parts of the outputs back, as each of `reads` says.

        On a device with memory of its own all of it is one submit, unless it is much.
        """
        self._current().run_on_host(given, reads)

    def gpu_seconds(self, inputs: Sequence[Buffer | Texture], repeat: int = 5) -> float | None:
        """The median time of `repeat` runs by the device's clock, copies included; None without timestamps."""
        return self._current().gpu_seconds(inputs, repeat)

    def memory(self) -> dict[str, int]:
        """Bytes by use: inputs, outputs, constants, parameters, scratch, textures."""
        return self._bound.memory()

    def wait(self) -> None:
        """Return when all that was submitted to the device is done."""
        self._bound.device.wait()

    def _current(self) -> BoundProgram:
        now = device()
        if self._bound.device is not now:
            self._bound = BoundProgram(self.program, now)
        return self._bound


def prepare(program: Program) -> Executable:
    """Compile `program` for the device and upload its constants and parameters.

    Raises ValueError for a program that breaks the device's limits, UnsupportedError for a feature that it lacks,
    WgattnError for WGSL that does not compile.
    """
    return Executable(program)


def upload(content: bytes | bytearray | memoryview | NDArray[Any]) -> Buffer:
    """A Buffer with the bytes of `content`, row-major, padded with zeros to a multiple of 4.

    The bytes are taken before this returns. Raises OutOfDeviceMemoryError.
    """
    return device().upload(content)


def download(
    buffer: Buffer, offset: int = 0, nbytes: int | None = None, into: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """A copy of bytes [offset, offset + nbytes), all of them unless given, after the work submitted so far is done.

    With offset and nbytes multiples of 4 it may be made in `into`, which has nbytes bytes.
    """
    return buffer.device.download(buffer, offset, nbytes, into)


def wait() -> None:
    """Return when all that was submitted is done."""
    device().wait()


def is_idle() -> bool:
    """Whether all that was submitted is done, without waiting for it."""
    return device().is_idle()


def set_poison(on: bool) -> None:
    """For tests: fill memory with 0xFF bytes (NaN in every float type) each time the pool hands it out."""
    device().memory.poison = on
