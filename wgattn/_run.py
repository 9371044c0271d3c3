"""Recorded steps computed in one Graph and one submit, and values brought back to NumPy. Graphs are compiled once."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ._errors import UnsupportedError
from ._graph.graph import Graph, View
from ._graph.operations import (
    Attention,
    AttentionGradient,
    CacheAppend,
    CacheMove,
    Concatenate,
    Elementwise,
    Merge,
    Sum,
)
from ._known import known
from ._record import Argument, Dead, Step, Stored, Value, ancestors, build, current_trace, traced_arguments

if TYPE_CHECKING:
    from ._schedule import Compiled, Output

CACHED = 256  # compiled graphs that are kept
COMPUTED = (Attention, AttentionGradient, CacheAppend, CacheMove, Concatenate, Elementwise, Merge, Sum)

# Called as hook(attention, operands by name, results by name, variant) after an attention launch, under validation.
AttentionHook = Callable[[Attention, dict[str, np.ndarray], dict[str, np.ndarray], str], None]

_lock = threading.RLock()
_compiled: "OrderedDict[Any, Compiled]" = OrderedDict()
_fused: "OrderedDict[Graph, Graph]" = OrderedDict()
_hooks: list[AttentionHook] = []


def on_attention(hook: AttentionHook) -> AttentionHook:
    """Call `hook` with NumPy copies for each attention node of a program that runs under validation."""
    _hooks.append(hook)
    return hook


def validating() -> bool:
    """Whether WGATTN_VALIDATE asks to check every attention call. Raises UnsupportedError for unknown settings."""
    given = os.environ.get("WGATTN_VALIDATE", "")
    if not given:
        return False
    given = given.strip().lower()
    if given not in ("", "0", "false", "no", "1", "true", "yes"):
        raise UnsupportedError(f"WGATTN_VALIDATE is {given!r}: it is 1, true or yes, or 0, false, no or not set")
    return given in ("1", "true", "yes")


def fused(graph: Graph) -> Graph:
    """The rewritten graph; the last 256 are kept."""
    from ._graph.rewrite import fuse

    return _kept(_fused, graph, lambda: fuse(graph))


def executable(graph: Graph, donated: frozenset[int] = frozenset(), taps: bool = False) -> "Compiled":
    """The compiled form of a recorded graph; the last 256 are kept. Makes the device if there is none.

    With `taps`, the operands and results of every attention node can be read after a run.
    """
    from ._schedule import load

    return _kept(_compiled, (graph, donated, taps), lambda: load(fused(graph), donated, taps=taps))


def _kept(cache: OrderedDict, key: Any, make: Callable[[], Any]) -> Any:
    with _lock:
        found = cache.get(key)
        if found is None:
            found = cache[key] = make()
            while len(cache) > CACHED:
                cache.popitem(last=False)
        else:
            cache.move_to_end(key)
        return found


def run(
    graph: Graph, inputs: Sequence[Stored], donated: frozenset[int] = frozenset(), validate: bool = False
) -> list[Stored]:
    """Run a recorded graph in one submit. The inputs must have the layouts of its input nodes."""
    if validate and _hooks:
        return _run_validated(executable(graph, taps=True), inputs)
    return results_of(executable(graph, donated), inputs, donated)


def results_of(program: "Compiled", inputs: Sequence[Stored], donated: frozenset[int] = frozenset()) -> list[Stored]:
    """Run a compiled graph. Values that share a buffer with another result, or with an input that stays, are marked."""
    outputs = [Stored(buffer, view) for buffer, view, _ in program.run([stored.buffer for stored in inputs])]
    alive = [stored for number, stored in enumerate(inputs) if number not in donated]
    alive += outputs
    if len({id(stored.buffer) for stored in alive}) < len(alive):
        seen: dict[int, Stored] = {}
        for stored in alive:
            first = seen.setdefault(id(stored.buffer), stored)
            if first is not stored:
                first.shared = stored.shared = True
    return outputs


def _run_validated(program: "Compiled", inputs: Sequence[Stored]) -> list[Stored]:
    """Run a program with taps and pass the operands and results of every attention node to the hooks."""
    schedule = program.schedule
    buffers = program.run_all([stored.buffer for stored in inputs])

    def read(output: "Output") -> np.ndarray:
        return download(buffers[output.buffer], output.view, output.layout.dtype)

    for tap in schedule.taps:
        operands = {name: read(output) for name, output in tap.operands.items()}
        results = {name: read(output) for name, output in tap.results.items()}
        variant = next((c.variant.name for c in schedule.chosen if c.node == tap.node), "")
        for hook in _hooks:
            hook(tap.attention, operands, results, variant)
    return [Stored(buffers[output.buffer], output.view, shared=True) for output in schedule.outputs]


def force(wanted: Sequence[tuple[Step, int]], use: str) -> None:
    """Compute these results unless they have values. `use` names what asks for them, for the error if one is traced."""
    if all(step.values[result] is not None for step, result in wanted):
        return
    if traced := traced_arguments(wanted):
        raise TypeError(traced_message(traced, use))
    with _lock:
        goals = dict.fromkeys(goal for goal in wanted if goal[0].values[goal[1]] is None)
        for step in ancestors(goals):
            # What somebody holds is kept, so that nothing is computed twice; views and casts are cheap to redo.
            if isinstance(step.operation, COMPUTED) and (step.owned() or any(step is goal for goal, _ in wanted)):
                goals.update(dict.fromkeys((step, result) for result in range(len(step.avals))))
            for other in step.held_together():
                goals.update(dict.fromkeys((other, result) for result in range(len(other.avals))))
        if not goals:
            return
        for step, result in goals:
            known(step, result)  # while the step still holds its parents
        recording = build(goals)
        inputs = [stored(step, result) for step, result in recording.leaves]
        for (step, result), value in zip(goals, run(recording.graph, inputs, validate=validating()), strict=True):
            step.settle(result, value)


def stored(step: Step, result: int) -> Stored:
    """A step's value on the device, uploaded first if need be. Raises RuntimeError for a donated one."""
    value = step.values[result]
    if isinstance(value, Stored):
        return value
    if isinstance(value, Dead):
        raise RuntimeError(value.reason)
    if value is None:
        force([(step, result)], "a call")
        return stored(step, result)
    known(step, result)  # a small integer array stays known on the host
    value = step.values[result] = upload(value)
    return value


def upload(value: np.ndarray) -> Stored:
    """A NumPy value on the device, row-major."""
    from . import _runtime

    return Stored(_runtime.upload(value), View.natural(value.shape))


def to_numpy(step: Step, result: int, use: str) -> np.ndarray:
    """A result as NumPy, computed first if need be."""
    force([(step, result)], use)
    value = step.values[result]
    if isinstance(value, Dead):
        raise RuntimeError(value.reason)
    if isinstance(value, Stored):
        return download(value.buffer, value.view, step.avals[result].dtype)
    assert value is not None
    return value


def download(buffer: Any, view: View, dtype: np.dtype) -> np.ndarray:
    """The elements that `view` sees in `buffer`, row-major."""
    from . import _runtime

    if 0 in view.shape:
        return np.empty(view.shape, dtype)
    reach = [stride * (size - 1) for stride, size in zip(view.strides, view.shape, strict=True)]
    low = view.offset + sum(r for r in reach if r < 0)
    high = view.offset + sum(r for r in reach if r > 0) + 1
    found = _runtime.download(buffer, low * dtype.itemsize, (high - low) * dtype.itemsize)
    strides = tuple(stride * dtype.itemsize for stride in view.strides)
    start = (view.offset - low) * dtype.itemsize
    return np.ascontiguousarray(np.ndarray(view.shape, dtype, found.data, start, strides)).reshape(view.shape)


def wait(value: Value | None) -> None:
    """Wait until the work that computes `value` is done. Raises DeviceLostError for a value on a lost device."""
    if isinstance(value, Dead):
        raise RuntimeError(value.reason)
    if isinstance(value, Stored):
        value.buffer.alive()
        value.buffer.device.wait()


def is_ready(value: Value | None) -> bool:
    if isinstance(value, Stored):
        value.buffer.alive()
        return value.buffer.device.is_idle()
    if isinstance(value, Dead):
        raise RuntimeError(value.reason)
    return value is not None


def traced_message(arguments: Sequence[Argument], use: str) -> str:
    """The error text for asking a traced Array for its value."""
    first = arguments[0].trace
    named = ", ".join(dict.fromkeys(argument.path for argument in arguments[:4]))
    named += ", …" if len(arguments) > 4 else ""
    if not first.active or first is not current_trace():
        return (
            f"an Array that depends on {named} of {first.function} left the function while it was traced: it has no "
            "value outside. Return it from the function instead of keeping it in a variable or an object"
        )
    asked = (
        f"{use} asks for the value of an Array that depends on {named} of {first.function}, which {first.by} traces "
        "without values. Choose with wgattn.where, a mask, a length or an offset; "
    )
    if first.by != "wgattn.jit":
        return f"{asked}or have the function return the value, beside its result with has_aux=True"
    return (
        f"{asked}or, if it is a plain Python value that may be compiled in, name it in static_argnums or "
        "static_argnames; or call the function without jit"
    )
