"""A function run once and recorded with the values that its backward pass reads, and that pass, recorded on Arrays."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import _run, _tree
from ._array import Array, asarray, broadcast, of
from ._dtypes import FLOATS, float32
from ._errors import AdapterNotFoundError
from ._graph.backward import Result, passed, pull_back, saved
from ._graph.graph import Aval, Graph, describe
from ._graph.operations import Attention, BroadcastTo, Cast, Constant, Elementwise, Input, Reshape
from ._record import LONGEST_CHAIN, Argument, Step, Trace, constant, current_trace, join, leaf, record, tracing
from ._signature import positional
from ._trace import Traced, finish


class ArrayRecorder:
    """Records a backward pass on Arrays, folding constants."""

    def do(self, operation: object, *operands: Array) -> tuple[Array, ...]:
        known = _known(operation, operands)
        if known is not None:
            return (known,)
        step = record(operation, [(x._step, x._result) for x in operands])
        return tuple(of(step, result) for result in range(len(step.avals)))

    def constant(self, value: float, dtype: np.dtype) -> Array:
        return of(constant(value, dtype, False))

    def aval(self, value: Array) -> Aval:
        return value._aval


RECORD = ArrayRecorder()


@dataclass(frozen=True, slots=True, eq=False)
class Pullback:
    """The pullback that `vjp` returns: called with the cotangents of `out`, it records those of the primals."""

    name: str
    out: Any
    aux: Any
    graph: Graph
    passed: frozenset[Result]
    saved: dict[Result, Array]
    sources: tuple[tuple[str, Any], ...]  # of each leaf of out, as `Traced.sources`
    primals: tuple[Aval, ...]
    tree: Any

    def __call__(self, cotangent: Any) -> tuple[Any, ...]:
        tree_util = _tree.util()
        returned: dict[int, Array] = {}
        computed: list[tuple[Result, Array]] = []
        for (kind, source), given in zip(self.sources, self._cotangents(cotangent), strict=True):
            if given is None:
                continue
            if kind == "computed":
                use = self.graph.outputs[source]
                computed.append(((use.node, use.result), given))
            elif kind == "argument":
                returned[source] = _added(returned.get(source), given)
        found = pull_back(self.graph, self.passed, self.saved, computed, RECORD)
        for place, given in returned.items():
            found[place] = _added(found.get(place), given)
        gradients = [found[i] if i in found else _zeros(aval) for i, aval in enumerate(self.primals)]
        finished(gradients)
        return tree_util.tree_unflatten(self.tree, gradients)

    def _cotangents(self, cotangent: Any) -> list[Array | None]:
        """The cotangents of out's arrays, checked against them; None for zeros."""
        tree_util = _tree.util()
        outs, tree = tree_util.tree_flatten(self.out, is_leaf=_is_none)
        given, given_tree = tree_util.tree_flatten(cotangent, is_leaf=_is_none)
        if tree != given_tree:
            raise ValueError(
                f"the cotangent of {self.name} must be a tree like its result, {tree}; got {given_tree}. "
                "None may stand for an array of zeros"
            )
        pairs = [(x, out) for x, out in zip(given, outs, strict=True) if out is not None]
        return [None if x is None else _cotangent(x, out, self.name) for x, out in pairs]


def linearize(
    fn: Callable[..., Any],
    named: Callable[..., Any],
    primals: Sequence[Any],
    places: Sequence[int],
    has_aux: bool,
    by: str,
) -> Pullback:
    """Run `fn` on `primals` and record it. They are the arguments at `places` of `named`, which errors refer to."""
    tree_util = _tree.util()
    name = getattr(named, "__name__", type(named).__name__)
    with_paths, tree = tree_util.tree_flatten_with_path(tuple(primals))
    parameters, _ = positional(named)

    def path(keys: Any) -> str:
        place = places[keys[0].idx]
        top = parameters[place] if place < len(parameters) else str(place)
        return f"argument {top}{tree_util.keystr(keys[1:])}"

    arrays = [_primal(x, f"{path(keys)} of {name}", by) for keys, x in with_paths]
    trace = Trace(name, by=by)
    steps = [
        Step(Argument(trace, i, path(keys)), (), (array._aval,), [None])
        for i, ((keys, _), array) in enumerate(zip(with_paths, arrays, strict=True))
    ]
    with tracing(trace):
        result = fn(*tree_util.tree_unflatten(tree, [of(step) for step in steps]))
        if has_aux and not (isinstance(result, tuple | list) and len(result) == 2):
            raise TypeError(f"with has_aux=True {name} must return (out, aux); it returned a {type(result).__name__}")
        traced = finish(tuple(result) if has_aux else (result, None), steps, trace)
    graph = traced.graph
    on_path = passed(graph, range(len(arrays)))
    values = _recorded(traced, arrays, on_path)
    known = {"argument": arrays, "computed": [values[use.node, use.result] for use in graph.outputs]}
    leaves = [source if kind == "value" else known[kind][source] for kind, source in traced.sources]
    finished(leaves)
    out, aux = tree_util.tree_unflatten(traced.tree, leaves)
    return Pullback(
        name,
        out,
        aux,
        graph,
        on_path,
        {result: values[result] for result in saved(graph, on_path)},
        traced.sources[: len(tree_util.tree_leaves(out))],
        tuple(array._aval for array in arrays),
        tree,
    )


def _recorded(traced: Traced, arrays: Sequence[Array], on_path: frozenset[Result]) -> dict[Result, Array]:
    """The traced graph recorded on `arrays`. Attention through which a gradient flows keeps a float32 residual."""
    graph, values = traced.graph, {}
    weak = {(use.node, use.result) for use, aval in zip(graph.outputs, traced.avals, strict=True) if aval.weak}
    for number, node in enumerate(graph.nodes):
        operation, avals = node.operation, node.avals
        if isinstance(operation, Input):
            given = operation.index < len(arrays)
            values[number, 0] = arrays[operation.index] if given else of(*traced.recording.leaves[operation.index])
            continue
        if isinstance(operation, Attention) and operation.call.residual is None and (number, 0) in on_path:
            operation = replace(operation, call=replace(operation.call, residual=float32))
            avals = (*avals, Aval(avals[0].shape[:-1], float32))
        avals = tuple(replace(aval, weak=(number, result) in weak) for result, aval in enumerate(avals))
        parents = [values[use.node, use.result] for use in node.uses]
        step = record(operation, [(x._step, x._result) for x in parents], avals)
        values |= {(number, result): of(step, result) for result in range(len(avals))}
    return values


def _primal(given: Any, path: str, by: str) -> Array:
    try:
        array = asarray(given)
    except (TypeError, OverflowError) as error:
        raise type(error)(f"{path}: {error}") from None
    if array.dtype not in FLOATS:
        raise TypeError(
            f"{by} differentiates by float32, float16 and bfloat16 arrays; {path} is {array.dtype.name}: "
            "cast it with .astype(np.float32), or leave it out of what is differentiated"
        )
    return array


def _cotangent(given: Any, out: Array, name: str) -> Array:
    array = asarray(given)
    if out.dtype not in FLOATS:
        raise TypeError(f"{name} returned {describe(out._aval)}, which has no cotangent: give None for it")
    if array.shape != out.shape:
        raise ValueError(f"the cotangent of {describe(out._aval)} from {name} must have its shape; got {array.shape}")
    if array.dtype != out.dtype and not array.weak_type:
        raise TypeError(
            f"the cotangent of {describe(out._aval)} from {name} must have its dtype; got {array.dtype.name}: "
            "cast it with .astype"
        )
    return array.astype(out.dtype)


def _known(operation: object, operands: tuple[Array, ...]) -> Array | None:
    """The result if it takes no operation: it depends on constants alone, or is a product with ones."""
    if isinstance(operation, Cast) and (value := _number(operands[0])) is not None and not operands[0].shape:
        return RECORD.constant(value, operation.dtype)
    if operation != Elementwise("multiply"):
        return None
    for x, other in (operands, operands[::-1]):
        value, factor = _number(x), _number(other)
        if value is not None and factor is not None and not (x.shape or other.shape):
            return RECORD.constant(value * factor, x.dtype)
        if value == 1.0:
            return broadcast(other, np.broadcast_shapes(x.shape, other.shape))
    return None


def _number(x: Array) -> float | None:
    """The number that every element equals, if it was recorded as a constant."""
    step = x._step
    while isinstance(step.operation, BroadcastTo | Reshape):
        step = step.parents[0][0]
    return float(step.operation.value) if isinstance(step.operation, Constant) else None


def _added(x: Array | None, y: Array) -> Array:
    return y if x is None else RECORD.do(Elementwise("add"), x, y)[0]


def _zeros(aval: Aval) -> Array:
    if not aval.size:
        return of(leaf(np.zeros(aval.shape, aval.dtype), Aval(aval.shape, aval.dtype)))
    zero = RECORD.constant(0.0, aval.dtype)
    return RECORD.do(BroadcastTo(aval.shape), zero)[0] if aval.shape else zero


def finished(arrays: Sequence[Array]) -> None:
    """Arrange that asking for one of `arrays` computes all; if chains are long and there is a device, do it now."""
    if current_trace() is not None:
        return
    join(x._step for x in arrays)
    if any(x._step.pending() >= LONGEST_CHAIN for x in arrays):
        with suppress(AdapterNotFoundError):
            _run.force([(x._step, x._result) for x in arrays], "a long chain")


def _is_none(x: object) -> bool:
    return x is None
