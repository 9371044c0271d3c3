"""The programs of docs/examples as modules."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

import pytest

from .documents import ROOT

EXAMPLES = ROOT / "docs" / "examples"


@contextmanager
def worked_example(name: str) -> Iterator[ModuleType]:
    """The module, and beside it those that it imports from its folder; forgotten afterwards."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield import_module(name)
    for each in {path.stem for path in EXAMPLES.glob("*.py")} & (set(sys.modules) - before):
        del sys.modules[each]
