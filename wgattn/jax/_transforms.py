"""How jax transforms a recorded call: custom_vjp outside, and in its forward and backward pass a batching rule each."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from ._batching import Batching
from ._callback import HostProgram, run_in_jax
from ._recorded import Avals, Spec, avals_of, forward_program

Programs = Callable[[Batching, Avals], HostProgram]


@lru_cache(maxsize=512)
def attention(spec: Spec) -> Callable[..., tuple[jax.Array, ...]]:
    """The call as a function of its operands in order: out, and the float32 residual where it is kept."""
    return batched(lambda batching, avals: forward_program(spec, batching, avals), Batching.none(len(spec.names)))


def batched(programs: Programs, batching: Batching) -> Callable[..., tuple[jax.Array, ...]]:
    """A function of arrays with mapped axes in front, which vmap turns into one with an axis more."""

    @custom_vmap
    def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        return run_in_jax(programs(batching, avals_of(arrays)), *arrays)

    @run.def_vmap
    def rule(size: int, mapped: Sequence[bool], *arrays: jax.Array) -> Any:
        more = batching.mapped_again(size, mapped)
        if size == 0:
            own = [(x.shape[has:], x.dtype) for x, has in zip(arrays, mapped, strict=True)]
            results = programs(batching, tuple(own)).results
            found = tuple(jnp.zeros((0, *aval.shape), aval.dtype) for aval in results)
        else:
            found = batched(programs, more)(*arrays)
        return found, (True,) * len(found)

    return run
