"""Any wgattn.jit function inside a JAX program: shapes come from tracing it, gradients from its own backward pass."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
from jax.custom_derivatives import SymbolicZero

from wgattn._array import Array
from wgattn._dtypes import FLOATS
from wgattn._gradient import vjp
from wgattn._graph.graph import Aval
from wgattn._host import is_scalar
from wgattn._jit import Arguments, JitFunction, jit

from ._callback import HostProgram, check_backend, operand, run_in_jax, vary, varying_axes
from ._recorded import Avals, avals_of, lowered
from ._transforms import Arrays, Wanted


def call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """fn(*args, **kwargs) as part of a JAX program, where fn is a `wgattn.jit` function.

    Arguments and results are pytrees of JAX arrays; static arguments are those declared to `wgattn.jit`. fn is traced
    once per signature, without a device, and runs as one callback. Gradients flow to float arguments through fn's own
    backward pass, which computes the forward pass again. Under vmap, fn runs once per entry. JAX keeps its buffers, so
    `donate_argnums` has no effect here.

    Raises TypeError if fn is not a `wgattn.jit` function, and whatever tracing fn raises.

    Example:
        >>> double = wgattn.jit(lambda x: x * 2); jax.jit(lambda x: wgattn.jax.call(double, x))(jnp.ones(3)).shape
        (3,)
    """
    if not isinstance(fn, JitFunction):
        raise TypeError(f"call takes a function of wgattn.jit; got {type(fn).__name__}: give wgattn.jit(fn)")
    check_backend()
    bound = fn._bind(args, kwargs)
    arrays, avals = [], []
    for place, x in enumerate(bound.leaves):
        try:
            arrays.append(operand(x))
        except TypeError as error:
            raise TypeError(f"argument {fn._path(bound, place)} of {fn._name}: {error}") from None
        weak = is_scalar(x) and not isinstance(x, bool)
        avals.append(Aval(arrays[-1].shape, np.dtype(arrays[-1].dtype), weak))
    program = HostProgram(fn._traced(bound, avals), fn._validate)
    varying = varying_axes(arrays)
    found = _transformable(fn, bound.tree, bound.static, tuple(avals))(*(vary(x, varying) for x in arrays))
    return jax.tree_util.tree_unflatten(program.tree, found)


@lru_cache(maxsize=256)
def _transformable(fn: JitFunction, tree: Any, static: Any, avals: tuple[Aval, ...]) -> Callable[..., Arrays]:
    """The calls of one signature as a function of their leaves, with a backward pass."""
    signature = Arguments(tree, [None] * len(avals), static)
    program = HostProgram(fn._traced(signature, list(avals)), fn._validate)
    run = partial(run_in_jax, program)

    @lru_cache(maxsize=64)
    def gradient(wanted: tuple[int, ...], given: tuple[int, ...], shapes: Avals) -> HostProgram:
        def call_gradient(*arrays: Array) -> tuple[Array, ...]:
            leaves, cotangents = arrays[: len(avals)], dict(zip(given, arrays[len(avals) :], strict=True))

            def of_wanted(*chosen: Array) -> list[Array]:
                filled = dict(zip(wanted, chosen, strict=True))
                return jax.tree_util.tree_leaves(fn._apply(signature, [filled.get(i, x) for i, x in enumerate(leaves)]))

            out, pull = vjp(of_wanted, *(leaves[i] for i in wanted))
            return pull([cotangents.get(place) for place in range(len(out))])

        return HostProgram(lowered(jit(call_gradient), shapes), fn._validate)

    def forward(*leaves: Any) -> tuple[Arrays, Any]:
        values = tuple(x.value for x in leaves)
        float_places = (i for i, x in enumerate(leaves) if x.perturbed and avals[i].dtype in FLOATS)
        return run(*values), (Wanted(tuple(float_places)), values)

    def backward(kept: Any, cotangents: Sequence[Any]) -> tuple[jax.Array | None, ...]:
        wanted, values = kept
        given = {
            place: x
            for place, (x, aval) in enumerate(zip(cotangents, program.results, strict=True))
            if aval.dtype in FLOATS and not isinstance(x, SymbolicZero)
        }
        if not wanted.operands or not given:
            return (None,) * len(avals)
        arrays = (*values, *given.values())
        found = run_in_jax(gradient(wanted.operands, tuple(given), avals_of(arrays)), *arrays)
        by_place = dict(zip(wanted.operands, found, strict=True))
        return tuple(by_place.get(i) for i in range(len(avals)))

    function = jax.custom_vjp(run)
    function.defvjp(forward, backward, symbolic_zeros=True)
    return jax.jit(function)
