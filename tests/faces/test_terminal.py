"""How wide what is printed is: the terminal's width, COLUMNS, or a width that every machine shares."""

import io
import os
import sys

import numpy as np
import pytest

import wgattn
from wgattn._terminal import columns


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("given", "width"), [("80", 80), ("", 120), ("0", 120), ("wide", 120)])
def test_a_pipe_is_as_wide_as_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch, given: str, width: int) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", given)
    assert columns(120) == width


def test_a_terminal_is_as_wide_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr("os.get_terminal_size", lambda *_: os.terminal_size((91, 30)))
    monkeypatch.delenv("COLUMNS", raising=False)
    assert columns(120) == 91


@pytest.mark.device
@pytest.mark.parametrize("width", [80, 120])
def test_the_table_of_a_check_fits(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 300, 4, 32), np.float32)
    report = wgattn.validate(x, x, x)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = str(report).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    names = [words[0] for line in lines if (words := line.replace("│", " ").split())]
    assert [name for name in names if name in ("out", "residual", "jax.nn")] == ["out", "residual", "jax.nn"]
    assert all(f"{one.given:.7g}" in str(report) for one in report.measures), "no number is cut"
