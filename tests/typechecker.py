"""beartype as the tests use it: on every function that states shapes; an int may stand for a float."""

from collections.abc import Callable
from typing import Any, get_args

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, checked at each call where an annotation of it is a jaxtyping shape."""
    annotations = getattr(function, "__annotations__", {})
    return _beartype(function) if any(states_shape(hint) for hint in annotations.values()) else function


def states_shape(hint: Any) -> bool:
    """Whether a jaxtyping array type stands anywhere in the annotation."""
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(
        states_shape(part) for part in get_args(hint)
    )
