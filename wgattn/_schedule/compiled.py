"""A Schedule that can be run: prepared for the device when it first is."""

import threading
from collections.abc import Sequence

import numpy as np

from wgattn._graph.graph import Graph, View
from wgattn._runtime import Buffer, Executable, current_profile, prepare

from .schedule import Schedule, compile


class Compiled:
    """What a trace keeps: `schedule` says what will run, `run` runs it."""

    __slots__ = ("_executable", "_lock", "schedule")

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._executable: Executable | None = None
        self._lock = threading.Lock()

    def executable(self) -> Executable:
        """The program on the device; made at the first call. Raises what `prepare` raises."""
        with self._lock:
            if self._executable is None:
                self._executable = prepare(self.schedule.program)
            return self._executable

    def run(self, buffers: Sequence[Buffer]) -> list[tuple[Buffer, View, np.dtype]]:
        """The graph's outputs, without waiting for them; `buffers` by argument number. Elements lie as each View says.

        Outputs may share a buffer, and a donated argument's buffer may be one of theirs.
        """
        made = self.run_all(buffers)
        return [(made[o.buffer], o.view, o.layout.dtype) for o in self.schedule.outputs]

    def run_all(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """All output buffers of the program, those of taps too: `Output.buffer` counts them."""
        made = self.executable().run([buffers[number] for number in self.schedule.arguments])
        return [buffer for buffer in made if isinstance(buffer, Buffer)]


def load(graph: Graph, donated: frozenset[int] = frozenset(), *, taps: bool = False) -> Compiled:
    """`compile` for the process's device, made where there is none. Nothing is uploaded before the first run."""
    return Compiled(compile(graph, current_profile(), donated, taps=taps))
