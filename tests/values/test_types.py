"""What wraps a function keeps its signature for a type checker: pyright reads this file too."""
# pyright: reportUnnecessaryTypeIgnoreComment=true

import inspect
from typing import Any, assert_type

import numpy as np
import pytest

import wgattn as wa
from wgattn._linearize import Pullback

ONES = np.ones(3, np.float32)


def scaled(x: wa.Array | np.ndarray, factor: int = 2) -> wa.Array:
    return wa.asarray(x) * factor


def loss(x: wa.Array | np.ndarray) -> tuple[wa.Array, dict[str, wa.Array]]:
    return scaled(x).sum(), {"x": wa.asarray(x)}


class Layer:
    @wa.jit(static_argnums=0)
    def call(self, x: np.ndarray) -> wa.Array:
        return wa.asarray(x) * 2


@pytest.mark.device
def test_jit_keeps_the_signature() -> None:
    for wrapped in (wa.jit(scaled), wa.jit(static_argnames="factor")(scaled)):
        assert_type(wrapped(ONES, factor=3), wa.Array)
        assert inspect.signature(wrapped) == inspect.signature(scaled)
        with pytest.raises(TypeError, match="other"):
            wrapped(ONES, other=3)  # pyright: ignore[reportCallIssue]
    assert_type(wa.jit(scaled).lower(ONES).out_info, Any)
    assert_type(Layer().call(ONES), wa.Array)
    assert_type(Layer.call(Layer(), ONES), wa.Array)


def test_gradients_keep_the_signature() -> None:
    both = wa.value_and_grad(lambda x: scaled(x).sum())
    assert_type(both(ONES)[0], wa.Array)
    gradient = wa.grad(loss, has_aux=True)
    assert inspect.signature(gradient) == inspect.signature(loss)
    assert_type(wa.value_and_grad(loss, has_aux=True)(ONES)[0], tuple[wa.Array, dict[str, wa.Array]])
    with pytest.raises(TypeError, match="other"):
        gradient(ONES, other=3)  # pyright: ignore[reportCallIssue]


def test_vjp_gives_what_the_function_returns() -> None:
    out, pull = wa.vjp(scaled, ONES)
    assert_type(out, wa.Array)
    assert isinstance(assert_type(pull, Pullback), Pullback)
    _, _, aux = wa.vjp(loss, ONES, has_aux=True)
    assert aux.keys() == {"x"}
    assert_type(aux, dict[str, wa.Array])


def test_what_an_array_lacks_a_type_checker_reports_too() -> None:
    x = wa.asarray(ONES)
    assert_type(2 * x == x, wa.Array)
    with pytest.raises(TypeError, match="no matrix product"):
        _ = x @ x  # pyright: ignore[reportOperatorIssue]
    with pytest.raises(AttributeError, match="no cumsum"):
        x.cumsum()  # pyright: ignore[reportAttributeAccessIssue]
