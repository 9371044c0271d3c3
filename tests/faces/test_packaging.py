"""The package as it is installed: built, put into a clean environment, and run from there, far from the checkout."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHADERS = sorted(p.relative_to(ROOT / "wgsl").as_posix() for p in (ROOT / "wgsl").rglob("*.wgsl"))
WHERE = """
import json, wgattn
from wgattn._runtime.source import wgsl_root
print(json.dumps([wgattn.__file__, str(wgsl_root())]))
"""
ATTEND = """
import numpy as np, wgattn
x = np.random.default_rng(0).standard_normal((1, 9, 2, 8), np.float32)
assert wgattn.validate(x, x, x, is_causal=True).ok
"""


def run(*command: str | Path, cwd: Path) -> str:
    env = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and with the wheel made from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


def clean_environment(folder: Path, *install: str | Path) -> Path:
    """The Python of a new environment that has of wgattn only what is installed, and borrows what wgattn needs."""
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (site / "zz_borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, "--ignore-installed", *install, cwd=folder)
    return python


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clean_environment(tmp_path_factory.mktemp("clean"), next(built.glob("*.whl")))


def shaders_in(names: list[str], folder: str) -> list[str]:
    """The WGSL files below `folder`, sorted."""
    return sorted(n.removeprefix(folder) for n in names if n.startswith(folder) and n.endswith(".wgsl"))


def test_every_shader_is_in_the_wheel_and_in_the_sdist(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    assert shaders_in(names, "wgattn/_wgsl/") == SHADERS
    assert not [name for name in names if not name.startswith(("wgattn/", "wgattn-"))]
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        packed = [name.partition("/")[2] for name in sdist.getnames()]
    assert shaders_in(packed, "wgsl/") == SHADERS


def test_shaders_are_found_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    package, shaders = json.loads(run(installed, "-c", WHERE, cwd=tmp_path))
    assert Path(package).is_relative_to(installed.parent.parent)
    assert Path(shaders) == Path(package).parent / "_wgsl"


def test_shaders_are_found_from_an_editable_install(tmp_path: Path) -> None:
    python = clean_environment(tmp_path / "clean", "--no-build-isolation", "--editable", ROOT)
    package, shaders = json.loads(run(python, "-c", WHERE, cwd=tmp_path))
    assert Path(package).parent == ROOT / "wgattn"
    assert sorted(p.relative_to(shaders).as_posix() for p in Path(shaders).rglob("*.wgsl")) == SHADERS


def test_a_shader_is_composed_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    from wgattn._runtime.profile import DeviceProfile

    (tmp_path / "profile.json").write_text(json.dumps(DeviceProfile().to_json()))
    command = installed.parent / "wgattn"
    options = ("--q", "1,64,4,32", "--causal", "--wgsl", "--profile", "profile.json")
    printed = run(command, "explain", *options, cwd=tmp_path)
    assert "@compute" in printed


@pytest.mark.device
def test_attention_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    run(installed, "-c", ATTEND, cwd=tmp_path)
