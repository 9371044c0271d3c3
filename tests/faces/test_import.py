"""`import wgattn` does no work: it is quick, opens no device, prints nothing, and leaves heavy libraries alone."""

import json
import os
import subprocess
import sys

import pytest

import wgattn

PROBE = """
import json, sys, time
start = time.process_time()  # of this process alone: what else the machine does is not counted
import numpy
numpy_alone = time.process_time() - start
import wgattn
seconds = time.process_time() - start
print(json.dumps({"times_numpy": seconds / numpy_alone, "modules": sorted(sys.modules)}))
"""


def imported() -> dict:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, env=dict(os.environ), check=True
    )
    assert done.stderr == ""
    return json.loads(done.stdout)  # which fails where the import itself printed something


def test_neither_jax_nor_the_command_lines_libraries_are_loaded() -> None:
    roots = {name.split(".")[0] for name in imported()["modules"]}
    assert not roots & {"jax", "jaxlib", "typer", "click", "rich", "matplotlib", "beartype"}


def test_no_webgpu_library_is_loaded_before_it_is_needed() -> None:
    assert not [name for name in imported()["modules"] if name.startswith(("wgpu.backends.", "wgpudawn"))]


def test_what_only_tests_need_is_not_loaded() -> None:
    """jaxtyping and beartype are no dependencies: every module can do without."""
    script = """
import importlib, pkgutil, sys
sys.modules["jaxtyping"] = sys.modules["beartype"] = None
import wgattn
names = [module.name for module in pkgutil.walk_packages(wgattn.__path__, "wgattn.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_the_import_is_quick() -> None:
    """With all that it loads, it takes some 2.5 times what NumPy takes alone, however slow the machine is."""
    imported()  # bytecode is written
    assert min(imported()["times_numpy"] for _ in range(5)) < 3.5


def test_names_that_load_late_are_listed() -> None:
    assert {"jax", "validate", "nn"} <= set(dir(wgattn))
    assert all(getattr(wgattn, name) is not None for name in dir(wgattn))
    with pytest.raises(AttributeError, match="wgattn has no softmax"):
        wgattn.softmax  # noqa: B018


@pytest.mark.parametrize("module", ["nn", "masks"])
def test_a_public_module_lists_what_is_public(module: str) -> None:
    part = getattr(wgattn, module)
    assert dir(part) == part.__all__ == sorted(part.__all__)
