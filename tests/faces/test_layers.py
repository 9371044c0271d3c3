"""The house's floors hold: a module imports from its own floor and from those below, and from nowhere else."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "wgattn"
EXAMPLES = sorted((PACKAGE.parent / "docs" / "examples").glob("*.py"))

# The longest name that fits a module gives its floor; a module with no floor fails the test below.
FLOORS = {
    "_errors": 0,
    "_terminal": 0,
    "_version": 0,
    "_dtypes": 0,
    "_reference": 0,
    "_reference_gradient": 0,
    "_reference_cache": 0,
    "_runtime": 1,
    "_kernels": 2,
    "masks": 2,
    "_graph": 3,
    "_schedule": 4,
    "_host": 5,
    "_record": 5,
    "_known": 5,
    "_tree": 5,
    "_trace": 5,
    "_array": 5,
    "_ufunc": 5,
    "_functions": 5,
    "_run": 5,
    "_signature": 5,
    "_jit": 5,
    "_make_graph": 5,
    "_linearize": 5,
    "_gradient": 5,
    "nn": 6,
    "_attend": 6,
    "_options": 6,
    "_bind": 6,
    "_cache": 6,
    "_cache_bind": 6,
    "_cache_checks": 6,
    "_cache_form": 6,
    "_cache_pages": 6,
    "_merge": 6,
    "_validate": 6,
    "jax": 7,
    "bench": 7,
    "_cli": 7,
    "__main__": 7,
}
KERNELS_MAY_SEE = {
    "wgattn._runtime.profile",
    "wgattn._runtime.source",
}  # what is known of a device, and where the WGSL is
SIDE_BY_SIDE = ("wgattn._kernels.attention", "wgattn._kernels.array")


def modules() -> dict[str, Path]:
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


MODULES = modules()


def imports(source: str, module: str, is_package: bool) -> Iterator[str]:
    """Every module of wgattn that `source` imports, wherever the import stands in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "wgattn")
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: len(module.split(".")) + is_package - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base.split(".")[0] == "wgattn":
                names = [f"{base}.{alias.name}" for alias in node.names]
                yield from (name if name in MODULES else base for name in names)


def floor(module: str) -> int | None:
    """None is the package itself, which re-exports from every floor."""
    inner = module.partition(".")[2]
    return FLOORS[inner.split(".")[0]] if inner else None


def fault(module: str, target: str) -> str | None:
    """What is wrong with `module` importing `target`, or None."""
    below, own = floor(target), floor(module)
    if own is None:
        return None
    if below is None:
        return None if own == 7 else "only the faces may go through the package's public names"
    if below > own:
        return f"floor {own} reaches up to floor {below}"
    if module.startswith("wgattn._reference"):
        if target.startswith("wgattn._reference"):
            return None
        return "the reference stands apart from everything else"
    if target.startswith("wgattn._reference") and own < 6:
        return "only checking and timing may use the reference"
    if own == 2 and target.startswith("wgattn._runtime") and target not in KERNELS_MAY_SEE:
        return "kernels are pure functions: of the runtime they see the profile and the place of the WGSL"
    for here, there in (SIDE_BY_SIDE, SIDE_BY_SIDE[::-1]):
        if module.startswith(here) and target.startswith(there):
            return "array and attention kernels stand side by side"
    return None


@pytest.mark.parametrize("module", MODULES)
def test_module_keeps_to_its_floor(module: str) -> None:
    path = MODULES[module]
    found = set(imports(path.read_text(encoding="utf-8"), module, path.name == "__init__.py"))
    faults = [
        f"{target}: {reason}" for target in sorted(found) if target != module and (reason := fault(module, target))
    ]
    assert not faults, f"{module} imports " + "; ".join(faults)


def test_every_module_has_a_floor_and_every_floor_a_module() -> None:
    there = {name.split(".")[1] for name in MODULES if "." in name}
    assert not there - set(FLOORS), f"give {sorted(there - set(FLOORS))} a floor"
    assert not set(FLOORS) - there, f"{sorted(set(FLOORS) - there)} are gone"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("wgattn._kernels.compose", "from wgattn._graph import graph"),
        ("wgattn._kernels.compose", "from .._graph.graph import Graph"),
        ("wgattn._kernels.compose", "def late():\n    import wgattn._schedule"),
        ("wgattn._kernels.compose", "from wgattn import _graph"),
        ("wgattn._kernels.compose", "import wgattn"),
        ("wgattn._kernels.compose", "from wgattn._runtime import program"),
        ("wgattn._kernels.attention.problem", "from wgattn._kernels import array"),
        ("wgattn._kernels.array.__init__", "from ..attention import problem"),
        ("wgattn._runtime.profile", "from wgattn._kernels.kernel import Variant"),
        ("wgattn._reference", "from wgattn._dtypes import short_name"),
        ("wgattn._graph.graph", "from wgattn import _reference"),
    ],
)
def test_an_arrow_the_wrong_way_is_found(module: str, source: str) -> None:
    assert any(fault(module, target) for target in imports(source, module, is_package=False)), source


@pytest.mark.parametrize("module", [name for name in FLOORS if name.startswith("_reference")])
def test_only_numpy_and_the_standard_library_serve_the_reference(module: str) -> None:
    tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
    assert {name.split(".")[0] for name in names} - {"wgattn"} <= {  # what of wgattn, `fault` says
        "numpy",
        "ml_dtypes",
        "math",
        "dataclasses",
        "typing",
        "collections",
        "functools",
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_use_public_names(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {part for node in nodes if isinstance(node, ast.alias) for part in node.name.split(".")}
    names |= {part for node in nodes if isinstance(node, ast.ImportFrom) for part in (node.module or "").split(".")}
    assert not {name for name in names if name.startswith("_") and not name.startswith("__")}
