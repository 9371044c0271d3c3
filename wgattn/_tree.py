"""Pytrees are those of jax.tree_util. It is loaded when the first tree is walked and then told of wgattn's classes."""

import sys
from typing import Any

_loaded: Any = None
_waiting: list[tuple[type, tuple[str, ...], tuple[str, ...]]] = []


def tree_class(cls: type, arrays: tuple[str, ...], static: tuple[str, ...]) -> None:
    """Make the dataclass `cls` a pytree: its fields `arrays` are children, those in `static` part of the structure."""
    _waiting.append((cls, arrays, static))


def register() -> None:
    """Tell jax.tree_util of the classes now, if jax is loaded."""
    if "jax" in sys.modules:
        util()


def util() -> Any:
    """jax.tree_util, which then knows wgattn's classes."""
    global _loaded
    if _loaded is None:
        from jax import tree_util

        _loaded = tree_util
    while _waiting:
        _loaded.register_dataclass(*_waiting.pop())
    return _loaded
