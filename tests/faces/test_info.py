"""`wgattn info`, and what the command line says where there is no adapter."""

import os

import pytest
from typer.testing import CliRunner

from tests.faces.command_line import NO_ADAPTER, refused, values, wgattn
from wgattn import __version__, _runtime
from wgattn._cli.app import app
from wgattn._cli.arguments import STORED
from wgattn._kernels.attention.choose import IMPLEMENTATIONS
from wgattn._runtime.profile import DeviceProfile


@pytest.mark.device
def test_the_suite_runs_on_the_adapter_that_is_expected() -> None:
    """CI sets WGATTN_EXPECT_ADAPTER, so that a run on another adapter than it was meant for is not green."""
    name = _runtime.current_profile().name
    assert name
    assert os.environ.get("WGATTN_EXPECT_ADAPTER", "") in name


@pytest.mark.device
def test_the_json_holds_a_profile() -> None:
    report = values("info", "--json")
    assert DeviceProfile.from_json(report["profile"]) == _runtime.current_profile()
    assert report["profile"]["name"] in [adapter["name"] for adapter in report["adapters"]]


@pytest.mark.device
def test_software_is_called_software() -> None:
    done = wgattn("info")
    assert done.returncode == 0, done.stderr
    assert _runtime.current_profile().name in done.stdout
    assert ("this adapter is software" in done.stdout) == _runtime.current_profile().is_cpu


@pytest.mark.parametrize("command", ["info", "demo", "validate", "explain"])
def test_a_missing_adapter_is_one_message(command: str) -> None:
    done = wgattn(command, **NO_ADAPTER)
    assert done.returncode == 1
    assert "Install" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_adapter_is_one_message() -> None:
    done = wgattn("info", WGATTN_ADAPTER="no such thing")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("platform", "release", "told"),
    [
        ("linux", "ID=debian", "nvidia-driver"),
        ("linux", "ID=ubuntu\nID_LIKE=debian", "ubuntu-drivers"),
        ("linux", "ID=fedora", "dnf"),
        ("linux", "", "maker's package"),
        ("win32", "", "Direct3D 12"),
        ("darwin", "", "Metal"),
    ],
)
def test_the_driver_for_a_gpu_is_named(platform: str, release: str, told: str) -> None:
    from wgattn._runtime import gpu_driver

    text = gpu_driver(platform, release)
    assert told in text
    assert "mesa-vulkan-drivers" not in text, "the software adapter comes with it"


def test_the_version_is_printed() -> None:
    done = wgattn("--version", **NO_ADAPTER)
    assert (done.returncode, done.stdout) == (0, f"wgattn {__version__}\n")


def test_help_names_every_command() -> None:
    done = wgattn("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("info", "demo", "validate", "explain", "bench", "tune"))


def test_help_names_every_family_and_stored_type_and_flags_take_no_value() -> None:
    shown = CliRunner(env={"COLUMNS": "1000"}).invoke(app, ["bench", "decode", "--help"]).output
    assert all(name in shown for name in (*IMPLEMENTATIONS, *STORED))
    assert "bool" not in next(line for line in shown.splitlines() if "--json" in line)
    assert refused("bench", "decode", "--q", "1,1,8,64", "--cache", "int2")[0] == "--cache"
