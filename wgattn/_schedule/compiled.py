"""A Schedule that can be run: prepared for the device when it first is."""

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from wgattn._graph.graph import Graph, View
from wgattn._runtime import Buffer, Executable, Read, current_profile, prepare

from .schedule import Output, Schedule, compile


class Compiled:
    """What a trace keeps: `schedule` says what will run, `run` runs it."""

    __slots__ = ("_executable", "_lock", "_outputs", "schedule")

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._executable: Executable | None = None
        self._lock = threading.Lock()
        self._outputs = [(output.buffer, output.view, output.layout.dtype) for output in schedule.outputs]

    def executable(self) -> Executable:
        """The program on the device; made at the first call. Raises what `prepare` raises."""
        if (made := self._executable) is not None:
            return made
        with self._lock:
            if self._executable is None:
                self._executable = prepare(self.schedule.program)
            return self._executable

    def run(self, buffers: Sequence[Buffer]) -> list[tuple[Buffer, View, np.dtype]]:
        """The graph's outputs, without waiting for them; `buffers` by argument number. Elements lie as each View says.

        Outputs may share a buffer, and a donated argument's buffer may be one of theirs.
        """
        made = self.run_all(buffers)
        return [(made[number], view, dtype) for number, view, dtype in self._outputs]

    def run_on_host(
        self, given: Sequence[np.ndarray | Buffer], places: Mapping[int, np.ndarray] | None = None
    ) -> list[np.ndarray]:
        """The graph's outputs as row-major NumPy arrays, from arguments that are NumPy arrays or buffers.

        `places` holds, by an output's number, an array of its shape and dtype to write it to.
        """
        landed = [_landing(output, (places or {}).get(n)) for n, output in enumerate(self.schedule.outputs)]
        inputs = [given[number] for number in self.schedule.arguments]
        self.executable().run_on_host(inputs, [read for _, _, read in landed if read is not None])
        for found, place, _ in landed:
            if found is not place:
                np.copyto(place, found)
        return [place for _, place, _ in landed]

    def run_all(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """All output buffers of the program, those of taps too: `Output.buffer` counts them."""
        made = self.executable().run([buffers[number] for number in self.schedule.arguments])
        return [buffer for buffer in made if isinstance(buffer, Buffer)]


def _landing(output: Output, into: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, Read | None]:
    """An output as it comes, the row-major array that it ends in (the same, where its rows lie so), and the read."""
    view, dtype = output.view, output.layout.dtype
    place = np.empty(view.shape, dtype) if into is None or not into.flags.c_contiguous else into
    if not place.size:
        return place, place, None
    low, high = (n * dtype.itemsize for n in output.layout.extent())
    if view == View.natural(view.shape) and place.nbytes % 4 == 0:
        return place, place, Read(output.buffer, 0, place.reshape(-1).view(np.uint8))
    start, end = low // 4 * 4, -(-high // 4) * 4
    raw = np.empty(end - start, np.uint8)
    strides = tuple(stride * dtype.itemsize for stride in view.strides)
    found = np.ndarray(view.shape, dtype, raw.data, view.offset * dtype.itemsize - start, strides)
    return found, place, Read(output.buffer, start, raw)


def load(graph: Graph, donated: frozenset[int] = frozenset(), *, taps: bool = False) -> Compiled:
    """`compile` for the process's device, made where there is none. Nothing is uploaded before the first run."""
    return Compiled(compile(graph, current_profile(), donated, taps=taps))
