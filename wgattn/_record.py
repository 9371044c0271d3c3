"""What Arrays stand for: recorded steps, values that exist, and the Graph made of what a value needs."""

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
    """A value on the device. `shared`: another value lies in the same buffer, so it is not donated."""

    buffer: "Buffer"
    view: View
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Dead:
    """What is left of a donated value: how it went."""

    reason: str


@dataclass(frozen=True, slots=True)
class Argument:
    """A traced argument: number `index` of the call that `trace` traces, `path` as its user would write it."""

    trace: "Trace"
    index: int
    path: str


@dataclass(slots=True, eq=False)
class Trace:
    """One run of a function on arguments without values, `by` a call of wgattn.

    `checks` are tests of values that the host may know at each call: what to call, and the results it is given.
    """

    function: str
    by: str = "wgattn.jit"
    start: int = field(default_factory=lambda: next(_serial))
    active: bool = True
    checks: "list[tuple[Callable[..., None], tuple[tuple[Step, int], ...]]]" = field(default_factory=list)


Value = np.ndarray | Stored | Dead


@dataclass(slots=True, eq=False, weakref_slot=True)
class Step:
    """One recorded operation, or a value (then `operation` is None). With all its results known it forgets its parents.

    `owners` are weak references to the Arrays that hold a result, `together` to steps that are computed with this one.
    `known` holds results that were asked of the host, None where it does not know them.
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
        """How many steps follow one another up to this one, without values."""
        return self.depth if self.operation is not None else 0

    def owned(self) -> bool:
        """Whether an Array that somebody holds is a result of this step."""
        return any(owner() is not None for owner in self.owners)

    def settle(self, result: int, value: Value) -> None:
        self.values[result] = value
        if all(v is not None for v in self.values):
            self.operation, self.parents, self.together = None, (), ()

    def held_together(self) -> "list[Step]":
        """The steps without values that go with this one and that somebody holds."""
        steps = [other() for other in self.together]
        return [step for step in steps if step is not None and step.operation is not None and step.owned()]


def join(steps: Iterable[Step]) -> None:
    """Have these steps computed in one submit, whichever is asked for: what they share is computed once."""
    pending = {id(step): ref(step) for step in steps if step.operation is not None}
    for one in pending.values():
        step = one()
        assert step is not None
        step.together = tuple(pending.values())


def leaf(value: Value, aval: Aval, host: np.ndarray | None = None) -> Step:
    """A step that is a value; `host` is the same where the host knows what lies on the device."""
    return Step(None, (), (aval,), [value], known={} if host is None else {0: host})


def record(operation: object, parents: Sequence[tuple[Step, int]], avals: tuple[Aval, ...] | None = None) -> Step:
    """A new step. Raises what the rules of the operation raise. `avals` are inferred unless given."""
    known = infer(operation, [step.avals[result] for step, result in parents]) if avals is None else avals
    for step, result in parents:
        value = step.values[result]
        if isinstance(value, Dead):
            raise RuntimeError(value.reason)
    depth = 1 + max((step.pending() for step, _ in parents), default=0)
    return Step(operation, tuple(parents), known, [None] * len(known), depth)


def constant(value: float | int | bool, dtype: np.dtype, weak: bool) -> Step:
    """A step for a scalar known now. What WGSL cannot write as a literal (NaN, infinities, -0.0) becomes a value."""
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
    """Within it, what is recorded belongs to `trace`."""

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
    """A Graph and the values that fill its inputs: (step, result) each, an Argument's own index first."""

    graph: Graph
    leaves: tuple[tuple[Step, int], ...]


def build(
    outputs: Iterable[tuple[Step, int]],
    arguments: Sequence[Step] = (),
    is_leaf: Callable[[Step], bool] = lambda step: False,
) -> Recording:
    """The Graph of `outputs`. Steps with a value become inputs, after `arguments`, which are all inputs in order.

    Walks without recursion, so that a chain may be of any length.
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
    """Without weakness, which is for recording only: graphs that differ in nothing else are one."""
    return Aval(aval.shape, aval.dtype) if aval.weak else aval


def natural(aval: Aval) -> View:
    """Row-major, as a NumPy value lies once it is uploaded."""
    return View.natural(aval.shape)


def ancestors(outputs: Iterable[tuple[Step, int]]) -> list[Step]:
    """The steps without values that these results need, themselves included; nearest first."""
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
