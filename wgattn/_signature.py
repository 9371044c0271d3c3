"""A function's signature: which arguments are positional, and which of them a name or number in an option means."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any


def positional(fn: Callable[..., Any]) -> tuple[list[str], bool]:
    """The names of the positional parameters, and whether further arguments may be given by position."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return [], True
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, parameter in signature.parameters.items() if parameter.kind in positional]
    return names, inspect.Parameter.VAR_POSITIONAL in kinds


def argnum(number: int, count: int, variadic: bool, option: str) -> int:
    """The position that `number`, given in `option`, refers to. Raises ValueError if there is no such argument."""
    if not variadic and not -count <= number < count:
        raise ValueError(f"{option} holds {number}, and the function takes {count} arguments by position")
    return number % count if number < 0 and count else number


def check_names(fn: Callable[..., Any], names: Sequence[str], option: str) -> None:
    """Raise ValueError for a name, given in `option`, of which `fn` has no parameter."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in names:
        if name not in parameters:
            raise ValueError(f"{option} holds {name!r}; the function's parameters are: {', '.join(parameters)}")


def as_tuple(given: Any, kind: type) -> tuple[Any, ...]:
    """One value of type `kind`, or a sequence of them, as a tuple."""
    return (given,) if isinstance(given, kind) else tuple(given)
