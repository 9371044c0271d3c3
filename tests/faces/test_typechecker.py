"""The suite checks the shapes that signatures state, and leaves other functions as they are."""

import jaxtyping
import numpy as np
import pytest
from jaxtyping import Float

from tests.typechecker import checked
from wgattn import nn


@jaxtyping.jaxtyped(typechecker=checked)
def scaled(x: Float[np.ndarray, "B T"], y: Float[np.ndarray, "B T"], by: int) -> Float[np.ndarray, "B T"]:
    return by * (x + y)


def test_shapes_that_do_not_fit_are_found() -> None:
    x = np.zeros((2, 3))
    assert scaled(x, x, by=2).shape == (2, 3)
    with pytest.raises(jaxtyping.TypeCheckError):
        scaled(x, np.zeros((2, 4)), by=2)


def test_a_function_without_shapes_is_left_alone() -> None:
    def plain(x: int) -> int:
        return x

    assert checked(plain) is plain


def test_shapes_of_the_package_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros((1, 2, 1, 4), np.float32)
    assert nn.rope(x).shape == x.shape
    monkeypatch.setattr(nn, "apply", lambda *operands: operands[1].astype(np.int32))
    with pytest.raises(jaxtyping.TypeCheckError, match="rope"):
        nn.rope(x)
