"""Where the WGSL files are: inside the installed package, or beside it in a source checkout."""

from functools import cache
from pathlib import Path


@cache
def wgsl_root() -> Path:
    """The folder that holds the shaders: `wgattn/_wgsl` of a wheel, else `wgsl` beside the package.

    Raises FileNotFoundError where neither is there, which means a broken installation.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_wgsl", package.parent / "wgsl"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"wgattn's shaders are neither in {package / '_wgsl'} nor in {package.parent / 'wgsl'}: install wgattn again"
    )


def runtime_wgsl(*names: str) -> str:
    """The text of the runtime's own shaders, one file after the other."""
    return "\n".join((wgsl_root() / "runtime" / f"{name}.wgsl").read_text(encoding="utf-8") for name in names)
