"""beartype as the tests use it: on the shapes that signatures state, and nothing else."""

import builtins
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, get_args

import jaxtyping
from beartype import beartype

_KINDS = ("Bool", "Float", "Int", "Num", "Shaped", "UInt")


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with its jaxtyping shapes checked at each call. Other types are its own business."""
    shapes = {name: hint for name, hint in getattr(function, "__annotations__", {}).items() if states_shape(hint)}
    if not shapes:
        return function
    function.__annotations__ = shapes
    return beartype(function)


def states_shape(hint: Any) -> bool:
    """Whether a jaxtyping array type stands anywhere in the annotation."""
    parts = any(states_shape(part) for part in get_args(hint))
    return parts or (isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray))


@contextmanager
def known_kinds() -> Iterator[None]:
    """Within it, `Float` and its like have a meaning in modules that import them for type checkers only."""
    for kind in _KINDS:
        setattr(builtins, kind, getattr(jaxtyping, kind))
    yield
    for kind in _KINDS:
        delattr(builtins, kind)
