"""What every test shares: types checked as the package is imported, hypothesis profiles, and which tests run."""

import importlib
import os
import zlib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import hypothesis
import pytest
from jaxtyping import install_import_hook

from tests import typechecker

os.environ["WGATTN_TUNED"] = "0"  # what the user tuned is no part of a test; subprocesses inherit it

install_import_hook("wgattn", f"{typechecker.__name__}.checked")
with typechecker.known_kinds():
    importlib.import_module("wgattn")

hypothesis.settings.register_profile("ci", max_examples=20, deadline=None)
hypothesis.settings.register_profile("thorough", max_examples=10_000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

GRID_SAMPLE = 24  # without --grid, one case in so many of each grid test runs


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--grid", action="store_true", help="run the heavy grids whole, not a sample of them")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What needs no adapter runs first; of each grid test a sample is kept unless --grid is given."""
    if not config.getoption("--grid"):
        left_out = _outside_the_sample(items)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]
    items.sort(key=lambda item: item.get_closest_marker("device") is not None)


def _outside_the_sample(items: list[pytest.Item]) -> set[str]:
    """Node ids of the grid cases to leave out: the choice hangs on names alone, and each grid test keeps a case."""
    grids: dict[str, list[str]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("grid"):
            grids[item.nodeid.partition("[")[0]].append(item.nodeid)
    return {
        name
        for cases in grids.values()
        for place, name in enumerate(sorted(cases, key=lambda case: zlib.crc32(case.encode())))
        if place >= max(1, len(cases) // GRID_SAMPLE)
    }


@cache
def _no_adapter() -> bool:
    """Whether no device test can run here. Makes no device: tests may choose one first."""
    from wgattn import _runtime

    return not _runtime.list_adapters()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A missing adapter is a failure, never a skip: a green run means that kernels ran."""
    if item.get_closest_marker("device") and _no_adapter():
        pytest.fail(
            "this test needs a WebGPU adapter, and there is none: the README says what to install", pytrace=False
        )


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Scratch and outputs hold NaN before every launch, so that what a kernel forgets to write shows."""
    from wgattn import _runtime

    _runtime.set_poison(True)
    yield
    _runtime.set_poison(False)
