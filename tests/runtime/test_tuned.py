"""The file of tuned constants: whose it is, what is kept in it, and what happens where it is broken."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.test_device import run_alone
from wgattn._errors import WgattnError
from wgattn._runtime import tuned
from wgattn._runtime.profile import DeviceProfile
from wgattn._version import __version__

DEVICE = DeviceProfile(name="a GPU", driver="1.0", provider="dawn")
ENTRY = {
    "device": "a GPU",
    "backend": "Vulkan",
    "driver": "1.0",
    "provider": "dawn",
    "version": __version__,
    "constants": {"workgroups": 64},
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "a folder" / "tuned.json"
    monkeypatch.setenv("WGATTN_TUNED", str(path))
    return path


def write(file: Path, *entries: Any, **other: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"format": 1, "entries": entries, **other}))


def test_tests_never_see_the_users_file() -> None:
    assert tuned.path() is None
    assert tuned.entries() == ()


@pytest.mark.parametrize("setting", ["", "1", "true", "YES"])
def test_the_users_cache_folder(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WGATTN_TUNED", setting)
    path = tuned.path()
    assert path is not None
    assert path.is_absolute()
    assert (path.parent.name, path.name) == ("wgattn", "tuned.json")


@pytest.mark.parametrize("setting", ["0", "false", "No"])
def test_switched_off(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WGATTN_TUNED", setting)
    assert tuned.constants_for(DEVICE) == ()
    with pytest.raises(WgattnError, match="WGATTN_TUNED switches"):
        tuned.keep(DEVICE, {"workgroups": 64}, ["workgroups"])


def test_what_is_kept_is_found_again(file: Path) -> None:
    assert tuned.constants_for(DEVICE) == ()
    assert tuned.keep(DEVICE, {"workgroups": 64, "decode_keys": 1}, ["workgroups", "decode_keys"]) == file
    assert tuned.constants_for(DEVICE) == (("decode_keys", 1), ("workgroups", 64))
    assert os.listdir(file.parent) == ["tuned.json"]


def test_only_what_was_tried_is_replaced(file: Path) -> None:
    tuned.keep(DEVICE, {"workgroups": 64, "decode_keys": 1}, ["workgroups", "decode_keys"])
    tuned.keep(DEVICE, {"flash_tiled_h64": 2}, ["flash_tiled_h64", "workgroups"])
    assert dict(tuned.constants_for(DEVICE)) == {"decode_keys": 1, "flash_tiled_h64": 2}
    tuned.keep(DEVICE, {}, ["decode_keys", "flash_tiled_h64"])
    assert tuned.entries() == ()


@pytest.mark.parametrize(
    "other", [{"name": "another GPU"}, {"driver": "2.0"}, {"provider": "wgpu"}, {"backend": "Metal"}], ids=str
)
def test_another_device_or_driver_has_its_own(file: Path, other: dict[str, Any]) -> None:
    tuned.keep(DEVICE, {"workgroups": 64}, ["workgroups"])
    there = replace(DEVICE, **other)
    assert tuned.constants_for(there) == ()
    tuned.keep(there, {"workgroups": 8}, ["workgroups"])
    assert tuned.constants_for(DEVICE) == (("workgroups", 64),)
    assert tuned.constants_for(there) == (("workgroups", 8),)


def test_another_version_is_not_read_and_not_lost(file: Path) -> None:
    write(file, {**ENTRY, "version": "0.0.1"})
    assert tuned.constants_for(DEVICE) == ()
    assert [entry.is_read for entry in tuned.entries()] == [False]
    tuned.keep(DEVICE, {"workgroups": 8}, ["workgroups"])
    assert [entry.is_read for entry in tuned.entries()] == [False, True]


BROKEN = {
    "no JSON": "{",
    "not text": b"\xff\xfe\x00",
    "another's": '{"format": 2, "entries": []}',
    "a list": "[]",
    "no entries": '{"format": 1}',
    "a number": '{"format": 1, "entries": 3}',
    **{
        name: json.dumps({"format": 1, "entries": [entry]})
        for name, entry in {
            "no constants": {name: value for name, value in ENTRY.items() if name != "constants"},
            "constants in a list": {**ENTRY, "constants": ["workgroups"]},
            "a float": {**ENTRY, "constants": {"workgroups": 1.5}},
            "a truth": {**ENTRY, "constants": {"workgroups": True}},
            "no name": {**ENTRY, "device": None},
            "one field more": {**ENTRY, "colour": "red"},
        }.items()
    },
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_named_and_left_alone(file: Path, content: str | bytes) -> None:
    """Calls are served without it, and are told so; to write over it is refused."""
    file.parent.mkdir()
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.warns(UserWarning, match=r"tuned\.json holds no .*wgattn tune --forget.*built-in rules serve"):
        assert tuned.constants_for(DEVICE) == ()
    before = file.read_bytes()
    with pytest.raises(ValueError, match=r"tuned\.json holds no .*--forget.*WGATTN_TUNED"):
        tuned.keep(DEVICE, {"workgroups": 8}, ["workgroups"])
    assert file.read_bytes() == before
    assert tuned.forget() == file
    assert tuned.forget() is None
    assert tuned.constants_for(DEVICE) == ()


def test_a_folder_in_its_place_is_named(file: Path) -> None:
    file.mkdir(parents=True)
    with pytest.warns(UserWarning, match="Is a directory"):
        assert tuned.constants_for(DEVICE) == ()


def test_a_folder_that_cannot_be_is_named_before_a_search(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.parent.write_text("a file in its folder's place")
    with pytest.raises(WgattnError, match=r"a folder cannot be written to: .* another file in WGATTN_TUNED"):
        tuned.check_writable()
    file.parent.unlink()
    tuned.check_writable()
    monkeypatch.setattr(os, "access", lambda *given: False)
    with pytest.raises(WgattnError, match="cannot be written to"):
        tuned.check_writable()


@pytest.mark.device
def test_the_file_is_read_once_for_each_device(tmp_path: Path) -> None:
    """Not at import, not for a device that stands in for another, and again after a loss."""
    run_alone(
        """
        from pathlib import Path
        from wgattn._runtime import tuned
        file = Path(os.environ["WGATTN_TUNED"])
        made = rt.device()
        assert made.profile.tuned == ()
        tuned.keep(made.profile, {"workgroups": 64}, ["workgroups"])
        assert rt.current_profile().tuned == ()
        made.lose()
        assert rt.current_profile().tuned == (("workgroups", 64),)
        """,
        WGATTN_TUNED=str(tmp_path / "tuned.json"),
    )
    run_alone(
        """
        assert "platformdirs" not in sys.modules
        assert rt.current_profile().tuned == (("workgroups", 64),)
        """,
        WGATTN_TUNED=str(tmp_path / "tuned.json"),
    )
    run_alone(
        "assert rt.current_profile().tuned == ()",
        WGATTN_TUNED=str(tmp_path / "tuned.json"),
        WGATTN_LIMITS="minimum",
    )
