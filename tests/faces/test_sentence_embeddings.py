"""The sentence encoder of docs/examples: right tokens, right embeddings, and wgattn's equal to jax.nn's."""

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from .documents import ROOT
from .worked_example import worked_example

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    with worked_example("sentence_embeddings") as module:
        yield module


def test_tokens_are_those_of_the_models_own_tokenizer(example: ModuleType) -> None:
    tokens, lengths = example.tokenize(["Hello, world!", "unbelievablenesses", "naïve"])
    assert lengths.tolist() == [6, 5, 3]
    assert tokens.tolist() == [
        [101, 7592, 1010, 2088, 999, 102],
        [101, 23653, 2791, 2229, 102, 0],
        [101, 15743, 102, 0, 0, 0],
    ]


@pytest.mark.device
def test_embeddings_equal_those_with_jax_attention(example: ModuleType) -> None:
    import jax

    ours = example.embed(example.SENTENCES)
    theirs = example.embed(example.SENTENCES, jax.nn.dot_product_attention)
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.device
def test_padding_changes_nothing(example: ModuleType) -> None:
    together = example.embed(example.SENTENCES)
    np.testing.assert_allclose(together[4], example.embed(example.SENTENCES[4:5])[0], atol=1e-4, rtol=0)


@pytest.mark.device
def test_each_sentence_is_closest_to_its_partner(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    example.main()
    out = capsys.readouterr().out
    assert out in README.read_text(encoding="utf-8"), "the README shows what the example prints"
    printed = out.splitlines()
    asked, answered = printed[::2], [line[8:] for line in printed[1::2]]
    assert asked == example.SENTENCES
    assert answered == [example.SENTENCES[place ^ 1] for place in range(len(asked))]
