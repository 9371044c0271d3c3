"""The command line run in a process of its own, as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer import BadParameter
from typer.testing import CliRunner

from wgattn._cli.app import app
from wgattn._runtime.profile import DeviceProfile, Limits

ROOT = Path(__file__).resolve().parents[2]
NO_ADAPTER = {"VK_DRIVER_FILES": os.devnull, "VK_ICD_FILENAMES": os.devnull, "WGPU_BACKEND_TYPE": "Vulkan"}
LAPTOP = DeviceProfile(
    name="a laptop's GPU", kind="integrated", subgroups=True, f16=True, limits=Limits(workgroup_bytes=32768)
)


def wgattn(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python -m wgattn` with these arguments and variables; its exit code, stdout and stderr."""
    command = [sys.executable, "-m", "wgattn", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)


def values(*arguments: str | Path, **environment: str) -> Any:
    """What a command that has to succeed prints, as JSON."""
    done = wgattn(*arguments, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def here(*arguments: str | Path) -> Any:
    """What a command that has to succeed prints, as JSON; run in this process, which is quicker."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    if done.exception:
        raise done.exception
    return json.loads(done.stdout)


def refused(*arguments: str | Path) -> tuple[str | None, str]:
    """The option that a command refuses, and what it says."""
    done = CliRunner().invoke(app, list(map(str, arguments)), standalone_mode=False)
    assert isinstance(done.exception, BadParameter), done.output
    return done.exception.param_hint, done.exception.message


def profile_file(folder: Path, profile: DeviceProfile = LAPTOP) -> Path:
    """A file as `wgattn info --json` writes it on a machine with that device."""
    path = folder / "info.json"
    path.write_text(json.dumps({"provider": profile.provider, "profile": profile.to_json()}))
    return path
