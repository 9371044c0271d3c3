"""Pytrees are those of jax.tree_util, which is loaded when one is first walked and then learns wgattn's own classes."""

import sys
from typing import Any

_loaded: Any = None
_waiting: list[tuple[type, tuple[str, ...], tuple[str, ...]]] = []


def tree_class(cls: type, arrays: tuple[str, ...], static: tuple[str, ...]) -> None:
    """Have pytrees hold dataclasses of type `cls`: its `arrays` are children, `static` fields part of the tree."""
    _waiting.append((cls, arrays, static))


def register() -> None:
    """Have jax.tree_util know the classes now, if it is loaded."""
    if "jax" in sys.modules:
        util()


def util() -> Any:
    """jax.tree_util."""
    global _loaded
    if _loaded is None:
        from jax import tree_util

        _loaded = tree_util
    while _waiting:
        _loaded.register_dataclass(*_waiting.pop())
    return _loaded
