"""Every example of a docstring runs and gives what it shows."""

import doctest
import importlib
import pkgutil

import jax
import numpy as np
import pytest

import wgattn

NAMES = {"np": np, "wgattn": wgattn, "jax": jax, "jnp": jax.numpy}  # what every example may use
MODULES = [
    module.name for module in pkgutil.walk_packages(wgattn.__path__, "wgattn.") if not module.name.endswith("__main__")
]


def examples(module: str) -> list[doctest.DocTest]:
    found = doctest.DocTestFinder().find(importlib.import_module(module), extraglobs=NAMES)
    return [test for test in found if test.examples]


@pytest.mark.device
@pytest.mark.parametrize("module", [name for name in MODULES if examples(name)])
def test_examples_of_a_module(module: str) -> None:
    for test in examples(module):
        runner = doctest.DocTestRunner()
        printed: list[str] = []
        runner.run(test, out=printed.append)
        assert not runner.failures, "".join(printed)


def test_the_calls_that_users_make_have_examples() -> None:
    named = {test.name for module in ("wgattn.nn", "wgattn._cache") for test in examples(module)}
    for name in ("wgattn.nn.dot_product_attention", "wgattn.nn.cached_attention", "wgattn._cache.KVCache.append"):
        assert name in named
