"""How jax transforms a recorded call: a custom_vjp whose forward and backward passes each have a batching rule."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from ._backward import KEPT, backward_program
from ._batching import Batching
from ._callback import HostProgram, run_in_jax
from ._recorded import DIFFERENTIABLE, Avals, Spec, avals_of, forward_program

Programs = Callable[[Batching, Avals], HostProgram]
Arrays = tuple[jax.Array, ...]


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True)
class Wanted:
    """The numbers of the operands whose gradients are wanted: static, but kept with the forward pass's residuals."""

    operands: tuple[int, ...]


@lru_cache(maxsize=512)
def attention(spec: Spec) -> Callable[..., Arrays]:
    """The call as a function of its operands in order. It returns out, and the float32 residual if that is kept."""
    count = len(spec.names)
    keeping = replace(spec, residual=True)

    @jax.custom_vjp
    def wgattn_attention(*operands: jax.Array) -> Arrays:
        return batched(partial(forward_program, spec), Batching.none(count))(*operands)

    def forward(*operands: Any) -> tuple[Arrays, Any]:
        values = tuple(x.value for x in operands)
        wanted = Wanted(tuple(i for i, x in enumerate(operands) if x.perturbed and spec.names[i] in DIFFERENTIABLE))
        out, residual = batched(partial(forward_program, keeping), Batching.none(count))(*values)
        return (out, residual) if spec.residual else (out,), (wanted, values, out, residual)

    def backward(kept: Any, cotangents: tuple[Any, ...]) -> tuple[jax.Array | None, ...]:
        wanted, values, out, residual = kept
        given = cotangents[0]  # the residual is constant, as in jax
        if isinstance(given, SymbolicZero) or not wanted.operands:
            return (None,) * count
        programs = partial(backward_program, spec, wanted.operands)
        found = batched(programs, Batching.none(count + KEPT))(*values, out, residual, given)
        by_place = dict(zip(wanted.operands, found, strict=True))
        return tuple(by_place.get(i) for i in range(count))

    wgattn_attention.defvjp(forward, backward, symbolic_zeros=True)
    return jax.jit(wgattn_attention)


def batched(programs: Programs, batching: Batching) -> Callable[..., Arrays]:
    """A function of arrays with mapped axes in front; vmap turns it into one with one more mapped axis."""

    @custom_vmap
    def run(*arrays: jax.Array) -> Arrays:
        return run_in_jax(programs(batching, avals_of(arrays)), *arrays)

    @run.def_vmap
    def rule(size: int, mapped: Sequence[bool], *arrays: jax.Array) -> Any:
        if size == 0:
            one = tuple((x.shape[has:], x.dtype) for x, has in zip(arrays, mapped, strict=True))
            found = tuple(jnp.zeros((0, *aval.shape), aval.dtype) for aval in programs(batching, one).results)
        else:
            found = batched(programs, batching.mapped_again(size, mapped))(*arrays)
        return found, (True,) * len(found)

    return run
