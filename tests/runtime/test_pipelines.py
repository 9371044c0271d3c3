"""Pipelines of one program: compiled together, each once, kept while they are used, and errors name the shader."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.runtime.programs import SCALE_ADD, chain
from wgattn._errors import WgattnError
from wgattn._runtime import Program, Shader, device, download, pipelines, prepare, upload

pytestmark = pytest.mark.device


def named(*names: str) -> list[Shader]:
    """Shaders that no other test has compiled."""
    return [replace(SCALE_ADD, name=name, source=f"// {name}\n{SCALE_ADD.source}") for name in names]


def with_shaders(*shaders: Shader) -> Program:
    program = chain(64, len(shaders))
    commands = [replace(run, shader=each) for run, each in zip(program.commands, shaders, strict=True)]
    return replace(program, commands=tuple(commands))


@pytest.fixture
def compiled(monkeypatch) -> list[str]:
    """The names of the shaders that are compiled."""
    device()  # which compiles its own, if it is the first
    names: list[str] = []
    make = pipelines.Pipelines._make

    def counted(cache, shader):
        names.append(shader.name)
        return make(cache, shader)

    monkeypatch.setattr(pipelines.Pipelines, "_make", counted)
    return names


def test_each_of_several_is_compiled_once(compiled):
    one, two, three = named("together_1", "together_2", "together_3")
    program = prepare(with_shaders(one, two, one, three))
    assert sorted(compiled) == ["together_1", "together_2", "together_3"]
    (out,) = program.run([upload(np.ones(64, np.float32))])
    assert np.array_equal(download(out).view(np.float32), np.full(64, 31, np.float32))
    prepare(with_shaders(three, two))
    assert len(compiled) == 3


def test_one_of_several_that_does_not_compile_is_named():
    right, also = named("right_1", "right_2")
    with pytest.raises(WgattnError, match="broken_among_others did not compile"):
        prepare(with_shaders(right, replace(also, name="broken_among_others", source="fn broken("), also))
    prepare(with_shaders(right, also))


def test_those_used_last_are_kept(compiled, monkeypatch):
    monkeypatch.setattr(pipelines, "KEPT", 2)
    first, second, third = named("kept_1", "kept_2", "kept_3")
    prepare(with_shaders(first, second))
    prepare(with_shaders(first))
    prepare(with_shaders(third))
    assert len(device().pipelines._pipelines) == 2
    compiled.clear()
    prepare(with_shaders(first, third))
    assert compiled == []
    prepare(with_shaders(second))
    assert compiled == ["kept_2"]


def test_a_program_may_have_more_than_are_kept(monkeypatch):
    monkeypatch.setattr(pipelines, "KEPT", 1)
    program = prepare(with_shaders(*named("more_1", "more_2", "more_3")))
    (out,) = program.run([upload(np.zeros(64, np.float32))])
    assert np.array_equal(download(out).view(np.float32), np.full(64, 7, np.float32))


def test_a_thread_that_outlives_the_main_one_compiles():
    """Executors take no work once the main thread has ended."""
    script = """
import threading
import numpy as np
import wgattn

def attend():
    threading.main_thread().join()
    x = np.ones((1, 5, 2, 8), np.float32)
    print(np.asarray(wgattn.nn.rope(wgattn.nn.dot_product_attention(x, x, x))).shape)

threading.Thread(target=attend).start()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.returncode) == ("(1, 5, 2, 8)\n", 0), done.stderr
