"""A function that was run once on arguments without values: what it recorded, and how to run that on values."""

from dataclasses import dataclass, field, replace
from typing import Any
from weakref import ref

import numpy as np

from . import _run, _tree
from ._array import Array, asarray, of
from ._graph.graph import Aval, Graph, View
from ._graph.operations import Input
from ._host import is_scalar
from ._known import Foreknown, foreknown, known
from ._record import Dead, Recording, Step, Stored, Trace, build, leaf


@dataclass(slots=True, eq=False)
class Traced:
    """What a trace recorded, and where each leaf of the function's result comes from.

    `sources` holds ("argument", i), ("value", Array) or ("computed", the number of the graph's output); `avals` are
    those of the computed leaves.
    """

    recording: Recording
    arguments: int
    tree: Any
    sources: tuple[tuple[str, Any], ...]
    avals: tuple[Aval, ...]
    host: Foreknown
    laid_out: dict[tuple[View, ...], Graph] = field(default_factory=dict)
    programs: dict[tuple[tuple[View, ...], frozenset[int]], Any] = field(default_factory=dict)
    remains: dict[int, Step] = field(default_factory=dict)  # of donated arguments
    _last: tuple[list[View], frozenset[int], Any] | None = None  # the last run: input layouts, donated, program

    @property
    def graph(self) -> Graph:
        return self.recording.graph

    @property
    def results(self) -> Any:
        """The function's result with an Aval in place of each leaf."""
        tree_util = _tree.util()
        inputs = {n.operation.index: n.avals[0] for n in self.graph.nodes if isinstance(n.operation, Input)}
        avals = [
            x._aval if kind == "value" else self.avals[x] if kind == "computed" else inputs[x]
            for kind, x in self.sources
        ]
        return tree_util.tree_unflatten(self.tree, avals)

    @property
    def told(self) -> tuple[tuple[str, Any], ...]:
        """The `sources`, as the text of a graph takes them."""
        return tuple((kind, x._aval if kind == "value" else x) for kind, x in self.sources)

    @property
    def captured(self) -> tuple[tuple[Step, int], ...]:
        """The values from outside the function that are not arguments of it."""
        return self.recording.leaves[self.arguments :]

    def captured_layouts(self) -> tuple[View, ...]:
        """The layouts of captured values when the function was traced."""
        inputs = {n.operation.index: n.layouts[0] for n in self.graph.nodes if isinstance(n.operation, Input)}
        return tuple(inputs[i] for i in range(self.arguments, len(inputs)))

    def graph_for(self, layouts: tuple[View, ...]) -> Graph:
        """The graph for inputs of these layouts."""
        graph = self.laid_out.get(layouts)
        if graph is None:
            nodes = tuple(
                replace(node, layouts=(layouts[node.operation.index],)) if isinstance(node.operation, Input) else node
                for node in self.graph.nodes
            )
            graph = self.laid_out[layouts] = Graph(nodes, self.graph.outputs)
        return graph

    def run(self, inputs: list[Stored], donated: frozenset[int], validate: bool) -> list[Stored]:
        """Run, compiling first if the layouts of the inputs are new."""
        lie = [stored.view for stored in inputs]
        if validate:
            return _run.run(self.graph_for(tuple(lie)), inputs, donated, validate=True)
        last = self._last
        if last is None or last[0] != lie or last[1] != donated:
            last = self._last = lie, donated, self._program(tuple(lie), donated)
        return _run.results_of(last[2], inputs, donated)

    def _program(self, layouts: tuple[View, ...], donated: frozenset[int]) -> Any:
        program = self.programs.get((layouts, donated))
        if program is None:
            program = self.programs[layouts, donated] = _run.executable(self.graph_for(layouts), donated)
        return program


def finish(result: Any, steps: list[Step], trace: Trace) -> Traced:
    """The Traced of a function that returned `result` for the arguments `steps`."""
    tree_util = _tree.util()
    leaves, tree = tree_util.tree_flatten(result)
    numbers = {id(step): i for i, step in enumerate(steps)}
    sources: list[tuple[str, Any]] = []
    outputs: dict[tuple[Step, int], int] = {}
    for x in leaves:
        if not isinstance(x, Array):
            if not (is_scalar(x) or hasattr(x, "__array__")):
                raise TypeError(f"{trace.function} returned a {type(x).__name__}: results are arrays in a pytree")
            sources.append(("value", asarray(x)))
        elif id(x._step) in numbers:
            sources.append(("argument", numbers[id(x._step)]))
        elif x._step.operation is None or x._step.serial < trace.start:
            sources.append(("value", x))
        else:
            sources.append(("computed", outputs.setdefault((x._step, x._result), len(outputs))))
    # What was recorded before the trace is computed once, separately, and enters as a value.
    recording = build(outputs, steps, is_leaf=lambda step: step.serial < trace.start)
    avals = tuple(step.avals[result] for step, result in outputs)
    return Traced(recording, len(steps), tree, tuple(sources), avals, foreknown(list(outputs), steps, trace))


def call(traced: Traced, arrays: list[Array], name: str, donated: list[int], validate: bool) -> Any:
    """The function's result for these arguments, by one submit and without waiting for it."""
    tree_util = _tree.util()
    computed: list[Array] = []
    hosts = traced.host.run(lambda i: known(arrays[i]._step, arrays[i]._result))
    if traced.graph.outputs:
        inputs = [
            value if type(value := a._step.values[a._result]) is Stored else _run.stored(a._step, a._result)
            for a in arrays
        ]
        inputs += [_run.stored(step, result) for step, result in traced.captured]
        free = _give_up(arrays, inputs, donated, name, traced) if donated else frozenset()
        results = traced.run(inputs, free, validate or _run.validating())
        computed = list(map(of, map(leaf, results, traced.avals, hosts)))
    leaves = [
        x if kind == "value" else computed[x] if kind == "computed" else _kept(arrays[x]) for kind, x in traced.sources
    ]
    return tree_util.tree_unflatten(traced.tree, leaves)


def _kept(argument: Array) -> Array:
    """A new Array for an argument that is returned, so that it survives if the argument is donated.

    A NumPy value that its owner may still change is copied.
    """
    value = argument._step.values[argument._result]
    if isinstance(value, np.ndarray) and value.flags.writeable:
        return asarray(value)
    return of(argument._step, argument._result)


def _give_up(
    arrays: list[Array], inputs: list[Stored], donated: list[int], name: str, traced: Traced
) -> frozenset[int]:
    """Mark donated Arrays as dead. Returns the numbers of those that nothing else needs, which may be overwritten."""
    held: list[tuple[int, ref[Step]]] = []
    returned = [x for kind, x in traced.sources if kind == "argument"]
    buffers = [id(stored.buffer) for stored in inputs]
    some_twice = len(set(buffers)) < len(buffers)
    for i in donated:
        array = arrays[i]
        if i in returned:
            arrays[i] = of(array._step, array._result)  # the same step, which others may hold as well
        elif not (inputs[i].shared or (some_twice and buffers.count(buffers[i]) > 1)):
            held.append((i, ref(array._step)))
        dead = traced.remains.get(i)
        if dead is None:
            dead = traced.remains[i] = leaf(_dead(name), array._aval)
        array._step, array._result = dead, 0
    # Steps still to be computed and functions that captured the value keep its old step alive.
    return frozenset([i for i, step in held if step() is None])


def _dead(name: str) -> Dead:
    return Dead(
        f"this Array was donated to {name}, which may have written over its memory. Use what {name} returned, or leave "
        "its argument out of donate_argnums"
    )
