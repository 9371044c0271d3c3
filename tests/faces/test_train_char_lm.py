"""The transformer of docs/examples: trained with wgattn it goes where it goes with jax.nn, and what the docs show."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from .documents import ROOT
from .worked_example import worked_example

PAGE = ROOT / "docs" / "training.md"
STEPS = 200  # all of them: about 15 s of two cores with either attention


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    with worked_example("train_char_lm") as module:
        yield module


@pytest.mark.device
def test_losses_are_those_with_jax_attention_and_the_weights_know_the_text(example: ModuleType) -> None:
    (_, theirs), (params, ours) = (example.train(example.ATTENTIONS[name], STEPS) for name in ("jax", "wgattn"))
    np.testing.assert_allclose(ours, theirs, atol=1e-3, rtol=0)
    assert ours[-1] < 0.3 < 4 < ours[0]
    written = example.write(params, example.ATTENTIONS["wgattn"])
    lines = written.splitlines()[:-1]
    assert len(lines) > 5
    assert set(lines) <= set(example.TEXT.splitlines())


@pytest.mark.device
def test_the_command_prints_and_draws(
    example: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "LETTERS", 5)
    drawn = tmp_path / "curves.png"
    example.main(["--steps", "2", "--plot", str(drawn)])
    jax, wgattn, difference, *text = capsys.readouterr().out.splitlines()
    assert (jax[:3], wgattn[:6], difference.split()[:2]) == ("jax", "wgattn", ["largest", "difference"])
    assert "\n".join(text).startswith(example.PROMPT)
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_the_page_shows_curves_and_text_that_reads_like_the_source(example: ModuleType) -> None:
    page = PAGE.read_text(encoding="utf-8")
    shown = page.partition("```text\n")[2].partition("\n```")[0]
    assert shown.startswith(example.PROMPT)
    assert len(shown) > 400
    assert shown in example.TEXT
    assert (PAGE.parent / "images" / "train_char_lm.png").exists()
    assert "](images/train_char_lm.png)" in page
