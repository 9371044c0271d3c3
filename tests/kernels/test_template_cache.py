"""Compiled templates on disk: taken where they are right, made again where they are not, and never in the way."""

import subprocess
import sys
from pathlib import Path

import jinja2
import platformdirs
import pytest

from wgattn._kernels.template_cache import TemplateCache

TEXT = "{% for i in range(n) %}{{ i }};{% endfor %}"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *_, **__: tmp_path)
    return tmp_path


def rendered(text: str = TEXT, settings: str = "") -> str:
    environment = jinja2.Environment(loader=jinja2.DictLoader({"t": text}), bytecode_cache=TemplateCache(settings))
    return environment.get_template("t").render(n=3)


def only_file(folder: Path) -> Path:
    (file,) = (path for path in folder.rglob("*") if path.is_file())
    return file


def test_a_later_environment_compiles_nothing(folder, monkeypatch):
    assert rendered() == "0;1;2;"
    monkeypatch.setattr(jinja2.Environment, "compile", None)
    assert rendered() == "0;1;2;"


@pytest.mark.parametrize(("text", "settings"), [("{{ n }}", ""), (TEXT, "trim_blocks")])
def test_another_text_or_syntax_is_compiled_again(folder, monkeypatch, text, settings):
    rendered()
    before = only_file(folder).read_bytes()
    rendered(text, settings)
    assert only_file(folder).read_bytes() != before
    monkeypatch.setattr(jinja2.Environment, "compile", None)
    rendered(text, settings)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:20],
        lambda content: content[:-1],
        lambda content: content[:100] + bytes([content[100] ^ 1]) + content[101:],
        lambda content: bytes(len(content)),
    ],
)
def test_a_damaged_file_is_made_again(folder, damage):
    rendered()
    file = only_file(folder)
    right = file.read_bytes()
    file.write_bytes(damage(right))
    assert rendered() == "0;1;2;"
    assert file.read_bytes() == right


@pytest.mark.parametrize("blocked", ["", "templates", f"templates/{sys.implementation.cache_tag}"])
def test_a_folder_that_cannot_be_made_is_done_without(tmp_path, monkeypatch, blocked):
    place = tmp_path / "cache"
    (place / blocked).parent.mkdir(parents=True, exist_ok=True)
    (place / blocked).write_text("a file in the folder's place")
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *_, **__: place)
    assert rendered() == "0;1;2;"


def test_a_file_that_cannot_be_replaced_is_done_without(folder):
    rendered()
    file = only_file(folder)
    file.unlink()
    file.mkdir()
    assert rendered() == "0;1;2;"


def test_processes_may_write_at_once(tmp_path):
    script = f"""
import pathlib, platformdirs
platformdirs.user_cache_path = lambda *_, **__: pathlib.Path({str(tmp_path)!r})
from wgattn._kernels.array import copy
from wgattn._kernels.compose import compose
from wgattn._kernels.kernel import Operand
from wgattn._runtime.profile import DeviceProfile
import numpy
source, result = (Operand(numpy.dtype("float32"), (64,), (stride,)) for stride in (2, 1))
print(compose(copy.plan(source, result, DeviceProfile()).steps[0].variant))
"""
    command = [sys.executable, "-c", script]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    first, *others = [process.communicate(timeout=120)[0] for process in started]
    assert "@compute" in first
    assert others == [first, first]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert all(len(path.name) == 40 for path in files), "each file of a template, none half written"
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120).stdout == first
