"""The backward pass of a call as a recorded function. It uses what the forward pass kept and recomputes none of it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from wgattn._array import Array
from wgattn._gradient import vjp
from wgattn._graph.operations import Attention
from wgattn._jit import JitFunction, jit
from wgattn._linearize import Pullback

from ._batching import Batching
from ._callback import HostProgram
from ._recorded import Avals, Spec, attend, lowered

KEPT = 3  # arrays that follow the operands: out, its residual, and out's cotangent


@lru_cache(maxsize=1024)
def backward_program(spec: Spec, wanted: tuple[int, ...], batching: Batching, avals: Avals) -> HostProgram:
    """The program of the gradients of the operands numbered `wanted`. Each gradient has every mapped axis."""
    return HostProgram(lowered(_backward(spec, wanted, batching), avals))


@lru_cache(maxsize=1024)
def _backward(spec: Spec, wanted: tuple[int, ...], batching: Batching) -> JitFunction:
    def attention_gradient(*arrays: Array) -> tuple[Array, ...]:
        return gradients(spec, wanted, batching, arrays)

    return jit(attention_gradient)


def gradients(spec: Spec, wanted: tuple[int, ...], batching: Batching, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The gradients of the operands numbered `wanted`, per example, not summed over mapped axes an operand lacks."""
    count = len(spec.names)
    whole = {*wanted, *range(count, count + KEPT)}
    arrays = [batching.whole(i, x) if i in whole else x for i, x in enumerate(arrays)]
    every = (True,) * len(batching.sizes)
    mapped = tuple(every if i in whole else flags for i, flags in enumerate(batching.mapped[:count]))
    operands, (out, residual, cotangent) = arrays[:count], arrays[count:]

    def of_wanted(*chosen: Array) -> Array:
        given = dict(zip(wanted, chosen, strict=True))
        filled = [given.get(i, x) for i, x in enumerate(operands)]
        return attend(spec, Batching(batching.sizes, mapped), filled)[0]

    _, pull = vjp(of_wanted, *(operands[i] for i in wanted))
    return _kept(pull, out, residual)(cotangent)


def _kept(pull: Pullback, out: Array, residual: Array) -> Pullback:
    """The pullback with the attention call's known results put in, so that they are not computed again."""
    calls = [number for number, node in enumerate(pull.graph.nodes) if isinstance(node.operation, Attention)]
    if len(calls) != 1:
        return pull
    known = {(calls[0], result): x for result, x in enumerate((out, residual))}
    shapes = {result: x.shape for result, x in pull.saved.items()}
    return replace(pull, saved=pull.saved | {key: x.reshape(shapes[key]) for key, x in known.items() if key in shapes})
