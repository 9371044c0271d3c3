"""The generation example of docs/examples: it writes with a cache what it writes without one, and what docs show."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

from wgattn import _run

from .documents import ROOT
from .worked_example import worked_example

PAGE = ROOT / "docs" / "generation.md"
STEPS, LETTERS = 150, 40


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    with worked_example("generate") as module:
        yield module


@pytest.fixture(scope="module")
def params(example: ModuleType) -> Any:
    return example.train(jax.nn.dot_product_attention, STEPS)[0]


@pytest.mark.device
@pytest.mark.parametrize(("dtype", "layout"), [("float16", "dense"), ("float32", "paged"), ("int8", "paged")])
def test_letters_are_those_without_a_cache(
    example: ModuleType, params: Any, dtype: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of different lengths in chunks, then a letter at a time; once warm nothing is compiled."""
    step, compiled = example.step, []

    def counted(*given: Any) -> Any:
        found = jax.block_until_ready(step(*given))
        compiled.append(len(_run._compiled))
        return found

    monkeypatch.setattr(example, "step", counted)
    chunks = -(-max(map(len, example.PROMPTS)) // example.CHUNK)
    text, rate, traced = example.write(params, LETTERS, dtype=dtype, layout=layout)
    right, slow = example.write_again(params, LETTERS, dtype)
    assert text.shape == (len(example.PROMPTS), LETTERS)
    assert np.array_equal(text, right)
    assert traced == 0
    assert len(set(compiled[chunks:])) == 1
    assert min(rate, slow) > 0


@pytest.mark.device
def test_the_command_prints(
    example: ModuleType, params: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "train", lambda attention, steps: (params, np.array([0.5])))
    example.main(["--dtype", "int8", "--letters", "8"])
    trained, cached, computed, *text = capsys.readouterr().out.splitlines()
    assert trained.endswith("to a loss of 0.500")
    assert cached.startswith("int8, dense: ")
    assert cached.endswith(", traced 0 times once warm")
    assert computed.startswith("from all of the text each time: ")
    assert next(line for line in text if "|" in line).startswith(f"{example.PROMPTS[0]}|")


def test_the_page_shows_what_was_written(example: ModuleType) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "examples/generate.py" in page
    shown = page.rpartition("```text\n")[2].partition("\n```")[0]
    lines = [line for line in shown.splitlines() if "|" in line]
    assert [line.partition("|")[0] for line in lines] == example.PROMPTS
    written = shown[shown.index(example.PROMPTS[0]) :].replace("|", "").split("\n\n")
    assert all(part.strip() in sys.modules["train_char_lm"].TEXT for part in written)
