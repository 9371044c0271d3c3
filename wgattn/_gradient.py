"""vjp, grad and value_and_grad: the backward pass is recorded on Arrays, as any other operation is."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, overload

from . import _tree
from ._array import of
from ._dtypes import FLOATS
from ._graph.graph import describe
from ._linearize import Pullback, finished, linearize
from ._record import constant

P = ParamSpec("P")
R = TypeVar("R")
Aux = TypeVar("Aux")


@overload
def vjp(fn: Callable[..., R], *primals: Any, has_aux: Literal[False] = False) -> tuple[R, Pullback]: ...
@overload
def vjp(fn: Callable[..., tuple[R, Aux]], *primals: Any, has_aux: Literal[True]) -> tuple[R, Pullback, Aux]: ...
@overload
def vjp(fn: Callable[..., Any], *primals: Any, has_aux: bool) -> tuple[Any, ...]: ...
def vjp(fn: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """fn(*primals) and the function that pulls cotangents of the result back to cotangents of `primals`, as `jax.vjp`.

    Primals and results are pytrees of float32, float16 or bfloat16 arrays. The pullback takes a tree like fn's result,
    in which None stands for zeros, and returns a tuple with one tree for each primal; it may be called more than once.
    Both passes are recorded, whether eagerly or within `jit`. With `has_aux`, fn returns (out, aux) and aux is returned
    third.

    Gradients flow through arithmetic, exp, sums, views, casts, `nn.rope` and `nn.merge_attention`, and to the query,
    key, value, bias, sinks and array scale of an attention call, whose residual counts as constant.

    Raises TypeError for primals that are not float, and if fn asks for the value of an Array.

    Example:
        >>> out, pull = wgattn.vjp(lambda x: x * x, np.full(3, 2.0, np.float32)); np.asarray(pull(out)[0]).tolist()
        [16.0, 16.0, 16.0]
    """
    if not callable(fn):
        raise TypeError(f"vjp differentiates a function; got {type(fn).__name__}")
    pull = linearize(fn, fn, primals, range(len(primals)), has_aux, "wgattn.vjp")
    return (pull.out, pull, pull.aux) if has_aux else (pull.out, pull)


def grad(fn: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[P, Any]:
    """A function that returns the gradient of `fn` with respect to the arguments `argnums`, as `jax.grad`.

    It is called as fn is, which must return one float. The gradient has the tree, shapes and dtypes of the argument; if
    argnums is a sequence, it is a tuple of them. With `has_aux`, fn returns (out, aux) and the function returns
    (gradient, aux).

    Raises TypeError for arguments that are not float and for a result that is not one float.

    Example:
        >>> np.asarray(wgattn.grad(lambda x: (x * x).sum())(np.full(3, 2.0, np.float32))).tolist()
        [4.0, 4.0, 4.0]
    """
    both = value_and_grad(fn, argnums, has_aux)

    @functools.wraps(fn)
    def gradient(*args: P.args, **kwargs: P.kwargs) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


def value_and_grad(
    fn: Callable[P, R], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[P, tuple[R, Any]]:
    """As `grad`, but returns (value, gradient); with `has_aux`, ((value, aux), gradient).

    Example:
        >>> value, gradient = wgattn.value_and_grad(lambda x: (x * x).sum())(np.full(3, 2.0, np.float32)); float(value)
        12.0
    """
    if not callable(fn):
        raise TypeError(f"grad differentiates a function; got {type(fn).__name__}")
    called: Callable[..., Any] = fn

    @functools.wraps(fn)
    def both(*args: P.args, **kwargs: P.kwargs) -> Any:
        tree_util = _tree.util()
        places = _places(argnums, len(args))

        def of_chosen(*chosen: Any) -> Any:
            filled = dict(zip(places, chosen, strict=True))
            return called(*(filled.get(i, x) for i, x in enumerate(args)), **kwargs)

        pull = linearize(of_chosen, fn, [args[i] for i in places], places, has_aux, "wgattn.grad")
        found = pull(of(constant(1.0, _one_float(pull), False)))
        value = (pull.out, pull.aux) if has_aux else pull.out
        finished(tree_util.tree_leaves((value, found)))
        return value, found if isinstance(argnums, tuple | list) else found[0]

    return both


def _places(argnums: int | Sequence[int], count: int) -> list[int]:
    """The positions, among `count` arguments, that argnums names."""
    numbers = [argnums] if isinstance(argnums, int) else argnums
    if not isinstance(numbers, list | tuple) or not all(isinstance(number, int) for number in numbers):
        raise TypeError(f"argnums is an integer or a sequence of them; got {argnums!r}")
    for number in numbers:
        if not -count <= number < count:
            raise TypeError(f"argnums names argument {number}, and {count} were given by position")
    places = [number % count for number in numbers]
    if len(set(places)) < len(places):
        raise ValueError(f"argnums names an argument twice: {argnums}")
    return places


def _one_float(pull: Pullback) -> Any:
    """The dtype of the result, which must be one float."""
    tree_util = _tree.util()
    if tree_util.tree_structure(pull.out) != tree_util.tree_structure(0):
        raise TypeError(
            f"grad differentiates one float; {pull.name} returned {tree_util.tree_structure(pull.out)}. Return the "
            "loss alone, or (loss, aux) with has_aux=True; wgattn.vjp takes any tree"
        )
    if pull.out.shape or pull.out.dtype not in FLOATS:
        raise TypeError(
            f"grad differentiates one float; {pull.name} returned {describe(pull.out._aval)}: "
            "sum it, as in .sum(), or use wgattn.vjp"
        )
    return pull.out.dtype
