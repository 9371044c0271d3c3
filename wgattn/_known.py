"""Values that the host knows without reading them back from the device, and the checks that use them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ._graph.graph import Aval
from ._graph.host_values import evaluated, evaluator, kept, needs
from ._record import Step, Trace, traces

Test = Callable[..., None]
Goal = tuple[Step, int]
_NOT_ASKED = object()


def known(step: Step, result: int = 0) -> np.ndarray | None:
    """The value of a small integer result if the host knows it, else None. Nothing is computed on the device."""
    if (found := step.known.get(result, _NOT_ASKED)) is not _NOT_ASKED:
        return found  # type: ignore[return-value]
    stack = [(step, result)]
    while stack:
        at, which = stack[-1]
        if which in at.known:
            stack.pop()
            continue
        parents = _parents(at, which)
        if parents is None:
            at.known[which] = _given(at, which)
        elif missing := [(p, r) for p, r in parents if r not in p.known]:
            stack.extend(missing)
            continue
        else:
            operands = [p.known[r] for p, r in parents]
            at.known[which] = _computed(at.operation, at.avals[which], operands, _operands(at))
        stack.pop()
    return step.known[result]


def require(test: Test, *arrays: Any) -> None:
    """Run test(*values), which raises for values that do not fit: now, if the host knows the Arrays' values.

    If they depend on the arguments of a function that jit is tracing, the test runs at each call of that function
    instead, before anything is dispatched. Arrays whose values the host does not know are not tested.
    """
    goals = [(array._step, array._result) for array in arrays]
    values = [known(step, result) for step, result in goals]
    if all(value is not None for value in values):
        test(*values)
        return
    for trace in reversed(traces()):
        if trace.by == "wgattn.jit":
            trace.checks.append((test, tuple(goals)))
            return


@dataclass(slots=True)
class Foreknown:
    """What a traced function yields on the host: it runs the checks and computes the small integer results.

    Values are held in slots: first the arguments that matter, then `constants`, with None for the slots that
    `instructions` fill.
    """

    arguments: list[int] = field(default_factory=list)
    constants: list[np.ndarray | None] = field(default_factory=list)
    instructions: list[tuple[int, Callable[..., np.ndarray], tuple[int, ...]]] = field(default_factory=list)
    checks: list[tuple[Test, tuple[int, ...]]] = field(default_factory=list)
    outputs: list[int | None] = field(default_factory=list)

    def run(self, argument: Callable[[int], np.ndarray | None]) -> list[np.ndarray | None]:
        """The outputs, None for those that the host does not know, as of `argument(i)`. Raises what a check raises."""
        slots = [argument(index) for index in self.arguments]
        slots += self.constants
        for slot, compute, operands in self.instructions:
            if there := _all_of(slots, operands):
                slots[slot] = compute(*there)
        for test, operands in self.checks:
            if there := _all_of(slots, operands):
                test(*there)
        return [None if n is None else slots[n] for n in self.outputs]


def foreknown(outputs: Sequence[Goal], arguments: Sequence[Step], trace: Trace) -> Foreknown:
    """How the host computes the `outputs` of a trace, and runs its checks, from the arguments that it knows."""
    numbers = {id(step): i for i, step in enumerate(arguments)}
    wanted = [*outputs, *(goal for _, goals in trace.checks for goal in goals)]
    order, able = _order(wanted, numbers)
    plan, slots = Foreknown(), {}
    for step, result in order:
        if able[id(step), result] and id(step) in numbers:
            slots[id(step), result] = len(plan.arguments)
            plan.arguments.append(numbers[id(step)])
    count = len(plan.arguments)
    for step, result in order:
        key = id(step), result
        if not able[key] or key in slots:
            continue
        slots[key] = count
        value = None if _parents(step, result) else known(step, result)
        plan.constants.append(value)
        if value is None:
            parents = tuple(slots[id(p), r] for p, r in _parents(step, result) or ())
            compute = evaluator(step.operation, step.avals[result], _operands(step))
            plan.instructions.append((count, compute, parents))
        count += 1
    plan.outputs = [slots.get((id(step), result)) for step, result in outputs]
    for test, goals in trace.checks:
        places = [slots.get((id(step), result)) for step, result in goals]
        if None not in places:
            plan.checks.append((test, tuple(n for n in places if n is not None)))
    return plan


def _order(wanted: Sequence[Goal], numbers: dict[int, int]) -> tuple[list[Goal], dict[tuple[int, int], bool]]:
    """The results that `wanted` need on the host, parents first, and whether the host can compute each."""
    order: list[Goal] = []
    able: dict[tuple[int, int], bool] = {}
    stack = list(reversed(wanted))
    while stack:
        step, result = stack[-1]
        key = id(step), result
        if key in able:
            stack.pop()
            continue
        parents = _parents(step, result)
        if id(step) in numbers:
            able[key] = kept(step.avals[result])
        elif parents is None:
            able[key] = known(step, result) is not None
        elif missing := [(p, r) for p, r in parents if (id(p), r) not in able]:
            stack.extend(missing)
            continue
        else:
            able[key] = all(able[id(p), r] for p, r in parents)
        order.append((step, result))
        stack.pop()
    return order, able


def _parents(step: Step, result: int) -> list[Goal] | None:
    """The results from which the host computes this one; None if it already has a value or cannot be computed."""
    if not kept(step.avals[result]) or step.values[result] is not None or step.operation is None:
        return None
    places = needs(step.operation, result, len(step.parents))
    return None if places is None else [step.parents[place] for place in places]


def _given(step: Step, result: int) -> np.ndarray | None:
    """A value that came from the host, if it did. One that its owner may still change is copied."""
    value = step.values[result]
    if not isinstance(value, np.ndarray) or not kept(step.avals[result]):
        return None
    return value.copy() if value.flags.writeable else value


def _all_of(slots: Sequence[np.ndarray | None], operands: tuple[int, ...]) -> list[np.ndarray] | None:
    """The values in these slots; None if one of them is not known."""
    found = [value for n in operands if (value := slots[n]) is not None]
    return found if len(found) == len(operands) else None


def _computed(
    operation: object, aval: Aval, operands: Sequence[np.ndarray | None], avals: Sequence[Aval]
) -> np.ndarray | None:
    there = [x for x in operands if x is not None]
    return evaluated(operation, aval, there, avals) if len(there) == len(operands) else None


def _operands(step: Step) -> list[Aval]:
    return [parent.avals[result] for parent, result in step.parents]
