"""Callbacks in JAX's threads: many at once, in loops, with errors, at a process's end, and where there can be none."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest

import wgattn
from tests.faces.jax.compare import OURS, THEIRS, normal
from tests.faces.jax.programs import check
from tests.tolerance import check as near
from wgattn import _runtime


@pytest.mark.device
def test_concurrent_jitted_calls() -> None:
    """Operands large enough for JAX to move with threads of the pool that callbacks wait in."""
    x = normal(0, 1, 300, 8, 64)
    call = jax.jit(lambda x: OURS(x, x, x))
    started = threading.Barrier(8)

    def one(i: int) -> np.ndarray:
        if i < 8:
            started.wait()
        return np.asarray(call(x * (1 + i % 3)))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(24)))
    right = [np.asarray(THEIRS(x * n, x * n, x * n)) for n in (1, 2, 3)]
    for i, out in enumerate(found):
        near(out, right[i % 3], magnitude=3.0)


@pytest.mark.device
@pytest.mark.parametrize("count", [pytest.param(100, id="100"), pytest.param(1000, id="1000", marks=pytest.mark.grid)])
def test_callbacks_in_a_loop(count: int) -> None:
    """https://github.com/jax-ml/jax/issues/24255, https://github.com/jax-ml/jax/issues/24219 and
    https://github.com/pasteurlabs/tesseract-jax/pull/177"""
    q, k, v = normal(1, 1, 8, 2, 16), normal(2, 1, 9, 2, 16), normal(3, 1, 9, 2, 16)

    def total(attention: Any) -> Any:
        return jax.jit(lambda q: jax.lax.scan(lambda x, _: (attention(x, k, v),) * 2, q, None, length=count)[1].sum(0))

    near(np.asarray(total(OURS)(q)) / count, np.asarray(total(THEIRS)(q)) / count)


@pytest.mark.device
def test_calls_that_are_not_waited_for() -> None:
    x = normal(4, 1, 64, 2, 16)
    call = jax.jit(lambda x: OURS(x, x, x))
    found = [call(x * n) for n in range(1, 9)]
    for n, out in enumerate(found, 1):
        near(np.asarray(out), np.asarray(THEIRS(x * n, x * n, x * n)), magnitude=float(n))


@pytest.mark.device
def test_a_failure_carries_the_type_and_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise wgattn.OutOfDeviceMemoryError("3 bytes could not be had")

    x = normal(5, 1, 8, 2, 16)
    monkeypatch.setattr(_runtime.Executable, "run_on_host", full)
    with pytest.raises(Exception, match="OutOfDeviceMemoryError: 3 bytes could not be had"):
        jax.block_until_ready(jax.jit(lambda x: OURS(x, x, x))(x))
    assert isinstance(wgattn.jax.last_error(), wgattn.OutOfDeviceMemoryError)
    monkeypatch.undo()
    near(np.asarray(OURS(x, x, x)), np.asarray(THEIRS(x, x, x)))


@pytest.mark.device
def test_a_family_that_cannot_serve_raises_when_it_runs() -> None:
    x = normal(6, 1, 8, 2, 16)
    with pytest.raises(Exception, match=r"UnsupportedError.*decode"):
        jax.block_until_ready(OURS(x, x, x, implementation="decode"))
    assert isinstance(wgattn.jax.last_error(), wgattn.UnsupportedError)


@pytest.mark.device
def test_a_process_may_end_right_after_a_call() -> None:
    code = "x = normal(1, 512, 4, 64)\njax.jit(lambda x: ours(x, x, x))(x)\nprint('called')"
    assert "called" in check(code)


@pytest.mark.device
def test_a_forked_child_is_told() -> None:
    code = """
import os, sys, warnings
warnings.simplefilter("ignore")
x = normal(1, 8, 2, 16)
ours(x, x, x).block_until_ready()
child = os.fork()
if child == 0:
    try:
        ours(x, x, x)
    except wgattn.WgattnError as error:
        print("told:", "spawn" in str(error), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    assert "told: True" in check(code)


def test_away_from_the_cpu_the_callback_is_the_pure_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """https://github.com/jax-ml/jax/issues/38173: buffers of a GPU are none that NumPy can read"""
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *arrays, cpu, default: default(*arrays))
    x = normal(8, 1, 11, 2, 24)  # of a shape that no other test traces
    text = str(jax.make_jaxpr(jax.grad(lambda x: OURS(x, x, x).sum()))(x))
    assert "pure_callback[" in text
    assert "buffer_callback[" not in text


def test_a_backend_that_cannot_call_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """https://github.com/gbionics/jaxsim/pull/327"""
    monkeypatch.setattr(jax, "default_backend", lambda: "METAL")
    x = normal(7, 1, 8, 2, 16)
    with pytest.raises(wgattn.UnsupportedError, match=r"METAL.*JAX_PLATFORMS=cpu"):
        OURS(x, x, x)


@pytest.mark.device
def test_values_are_checked_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """WGATTN_VALIDATE compares the call with the reference inside the callback too."""
    from wgattn import _run

    heard: list[Any] = []
    monkeypatch.setattr(_run, "_hooks", [*_run._hooks, lambda *given: heard.append(given)])
    monkeypatch.setenv("WGATTN_VALIDATE", "1")
    x = normal(8, 1, 8, 2, 16)
    near(np.asarray(OURS(x, x, x)), np.asarray(THEIRS(x, x, x)))
    assert len(heard) == 1
