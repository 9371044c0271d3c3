"""What is behind Arrays: recorded steps and values, and the Graph of the steps that a value needs."""

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from ._graph.graph import Aval, Graph, Node, Use, View
from ._graph.operations import Constant, Input
from ._graph.rules import infer, written

if TYPE_CHECKING:
    from ._runtime import Buffer

LONGEST_CHAIN = 512  # steps that may follow one another before they are computed

_serial = itertools.count()
_tracing = threading.local()


@dataclass(slots=True)
class Stored:
    """A value on the device. `shared`: another value is in the same buffer, so the buffer cannot be donated."""

    buffer: "Buffer"
    view: View
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Dead:
    """What is left of a donated value: the reason why it is gone."""

    reason: str


@dataclass(frozen=True, slots=True)
class Argument:
    """A traced argument: number `index` of the call that `trace` traces; `path` is how the user would write it."""

    trace: "Trace"
    index: int
    path: str


@dataclass(slots=True, eq=False)
class Trace:
    """One run of a function on arguments without values. `by` is the wgattn function that traces it.

    `checks` are tests to run at each call, if the host knows the values: the test and the results that it takes.
    """

    function: str
    by: str = "wgattn.jit"
    start: int = field(default_factory=lambda: next(_serial))
    active: bool = True
    checks: "list[tuple[Callable[..., None], tuple[tuple[Step, int], ...]]]" = field(default_factory=list)


Value = np.ndarray | Stored | Dead


@dataclass(slots=True, eq=False, weakref_slot=True)
class Step:
    """One recorded operation, or a value (then `operation` is None). Once all results have values it drops its parents.

    `owners` are weak references to the Arrays that hold a result, `together` to steps that are computed with this one.
    `known` caches the results that the host was asked for, None for those that it does not know.
    """

    operation: object | None
    parents: tuple[tuple["Step", int], ...]
    avals: tuple[Aval, ...]
    values: list[Value | None]
    depth: int = 0
    serial: int = field(default_factory=lambda: next(_serial))
    owners: list[ref[Any]] = field(default_factory=list)
    together: "tuple[ref[Step], ...]" = ()
    known: dict[int, np.ndarray | None] = field(default_factory=dict)

    def pending(self) -> int:
        """The length of the chain of steps without values that ends in this one."""
        return self.depth if self.operation is not None else 0

    def owned(self) -> bool:
        """Whether a result of this step is an Array that somebody still holds."""
        return any(owner() is not None for owner in self.owners)

    def settle(self, result: int, value: Value) -> None:
        self.values[result] = value
        if all(v is not None for v in self.values):
            self.operation, self.parents, self.together = None, (), ()

    def held_together(self) -> "list[Step]":
        """The steps that are computed with this one, have no values yet, and are still held by somebody."""
        steps = [other() for other in self.together]
        return [step for step in steps if step is not None and step.operation is not None and step.owned()]


def join(steps: Iterable[Step]) -> None:
    """Arrange that asking for any of these steps computes all of them in one submit, and what they share only once."""
    pending = {id(step): ref(step) for step in steps if step.operation is not None}
    for one in pending.values():
        step = one()
        assert step is not None
        step.together = tuple(pending.values())


def leaf(value: Value, aval: Aval, host: np.ndarray | None = None) -> Step:
    """A step that is a value. `host` is its value on the host, if known, for one that is on the device."""
    return Step(None, (), (aval,), [value], known={} if host is None else {0: host})


def record(operation: object, parents: Sequence[tuple[Step, int]], avals: tuple[Aval, ...] | None = None) -> Step:
    """A new step; `avals` are inferred unless given. Raises what the operation's rules raise."""
    known = infer(operation, [step.avals[result] for step, result in parents]) if avals is None else avals
    for step, result in parents:
        value = step.values[result]
        if isinstance(value, Dead):
            raise RuntimeError(value.reason)
    depth = 1 + max((step.pending() for step, _ in parents), default=0)
    return Step(operation, tuple(parents), known, [None] * len(known), depth)


def constant(value: float | int | bool, dtype: np.dtype, weak: bool) -> Step:
    """A step for a known scalar. One that WGSL has no literal for (NaN, infinities, -0.0) becomes a value."""
    aval = Aval((), dtype, weak)
    with np.errstate(over="ignore"):
        rounded = np.asarray(value).astype(dtype)
    plain = rounded.item()
    if dtype.kind in "fV" and (not np.isfinite(float(plain)) or (plain == 0 and np.signbit(rounded))):
        return leaf(rounded, aval)
    return record(Constant(float(plain) if dtype.kind == "V" else plain), (), (aval,))


def traces() -> Sequence[Trace]:
    """The traces of this thread, innermost last."""
    return getattr(_tracing, "stack", ())


def current_trace() -> Trace | None:
    """The innermost trace of this thread."""
    stack = traces()
    return stack[-1] if stack else None


class tracing:
    """A context in which everything recorded belongs to `trace`."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def __enter__(self) -> Trace:
        if not hasattr(_tracing, "stack"):
            _tracing.stack = []
        _tracing.stack.append(self.trace)
        return self.trace

    def __exit__(self, *_: object) -> None:
        _tracing.stack.pop()
        self.trace.active = False


@dataclass(frozen=True, slots=True)
class Recording:
    """A Graph and the (step, result) that fills each of its inputs; the inputs of Arguments come first."""

    graph: Graph
    leaves: tuple[tuple[Step, int], ...]


def build(
    outputs: Iterable[tuple[Step, int]],
    arguments: Sequence[Step] = (),
    is_leaf: Callable[[Step], bool] = lambda step: False,
) -> Recording:
    """The Graph of `outputs`. Its first inputs are all `arguments` in order; steps with a value become further inputs.

    The walk is not recursive, so a chain may have any length.
    """
    outputs = list(outputs)
    nodes: list[Node] = []
    numbers: dict[tuple[int, int], Use] = {}
    leaves: list[tuple[Step, int]] = []

    def add_input(step: Step, result: int) -> None:
        value, aval = step.values[result], step.avals[result]
        lies = value.view if isinstance(value, Stored) else natural(aval)
        numbers[id(step), result] = Use(len(nodes))
        nodes.append(Node(Input(len(leaves)), (), (plain(aval),), (lies,)))
        leaves.append((step, result))

    for step in arguments:
        add_input(step, 0)
    for goal in outputs:
        stack = [goal]
        while stack:
            step, result = stack[-1]
            if (id(step), result) in numbers:
                stack.pop()
                continue
            if step.values[result] is not None or step.operation is None or is_leaf(step):
                add_input(step, result)
                stack.pop()
                continue
            missing = [parent for parent in step.parents if (id(parent[0]), parent[1]) not in numbers]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            uses = tuple(numbers[id(parent), which] for parent, which in step.parents)
            for which in range(len(step.avals)):
                numbers[id(step), which] = Use(len(nodes), which)
            nodes.append(written(step.operation, uses, tuple(map(plain, step.avals))))
    return Recording(Graph(tuple(nodes), tuple(numbers[id(step), result] for step, result in outputs)), tuple(leaves))


def plain(aval: Aval) -> Aval:
    """The aval without its weak flag, which matters only while recording: graphs that differ only in it are equal."""
    return Aval(aval.shape, aval.dtype) if aval.weak else aval


def natural(aval: Aval) -> View:
    """The row-major layout, which an uploaded NumPy value has."""
    return View.natural(aval.shape)


def ancestors(outputs: Iterable[tuple[Step, int]]) -> list[Step]:
    """The steps without values that these results need, including their own; nearest first."""
    found: dict[int, Step] = {}
    stack = [step for step, _ in outputs]
    while stack:
        step = stack.pop()
        if id(step) not in found and step.operation is not None:
            found[id(step)] = step
            stack.extend(parent for parent, _ in step.parents)
    return list(found.values())


def traced_arguments(outputs: Iterable[tuple[Step, int]]) -> list[Argument]:
    """The traced arguments that these results depend on, in order."""
    found = [step.operation for step in ancestors(outputs) if isinstance(step.operation, Argument)]
    return sorted(found, key=lambda argument: argument.index)
