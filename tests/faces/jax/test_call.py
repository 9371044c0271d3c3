"""wgattn.jax.call: recorded functions as parts of JAX programs, with their gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import wgattn
from tests.faces.jax.compare import THEIRS, normal
from tests.tolerance import check


@wgattn.jit
def block(parameters: Any, x: Any, n: Any) -> Any:
    out = wgattn.nn.dot_product_attention(x * parameters["gain"], x, x, is_causal=True)
    return {"out": out * n, "positive": x > 0, "same": x}


def right(parameters: Any, x: Any, n: Any) -> Any:
    return {"out": THEIRS(x * parameters["gain"], x, x, is_causal=True) * n, "positive": x > 0, "same": x}


def ours(parameters: Any, x: Any) -> Any:
    return wgattn.jax.call(block, parameters, x, 2)


PARAMETERS = {"gain": jnp.float32(1.5)}
X = normal(0, 1, 8, 2, 16)


@pytest.mark.device
def test_trees_go_in_and_come_out() -> None:
    found, expected = jax.jit(ours)(PARAMETERS, X), right(PARAMETERS, X, 2)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    check(np.asarray(found["out"]), np.asarray(expected["out"]), magnitude=2.0)
    assert (found["positive"] == expected["positive"]).all()
    assert (found["same"] == X).all()


@pytest.mark.device
@pytest.mark.parametrize("mapped", [False, True])
def test_gradients_flow_through_its_own_backward_pass(mapped: bool) -> None:
    def gradient(call: Any) -> Any:
        def loss(parameters: Any, x: Any) -> Any:
            found = call(parameters, x)
            return (found["out"] * normal(2, *X.shape)).sum() + found["same"].sum()

        one = jax.grad(loss, (0, 1))
        return jax.jit(jax.vmap(one, (None, 0)) if mapped else one)

    x = jnp.stack([X, normal(1, *X.shape)]) if mapped else X
    found = gradient(ours)(PARAMETERS, x)
    expected = gradient(lambda parameters, x: right(parameters, x, 2))(PARAMETERS, x)
    for mine, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        check(np.asarray(mine), np.asarray(other), gradient=True, magnitude=float(np.abs(other).max()))


@pytest.mark.device
def test_static_arguments_are_those_of_jit() -> None:
    scaled = wgattn.jit(lambda x, *, factor: x * factor, static_argnames="factor")
    for factor in (2, 3):
        assert (wgattn.jax.call(scaled, X, factor=factor) == X * factor).all()


def test_errors_come_while_tracing() -> None:
    with pytest.raises(TypeError, match=r"wgattn\.jit"):
        wgattn.jax.call(lambda x: x, X)
    with pytest.raises(TypeError, match="argument x of block"):
        jax.jit(lambda p: wgattn.jax.call(block, p, "text", 2)).trace(PARAMETERS)
    with pytest.raises(ValueError, match="broadcast"):
        jax.jit(lambda x: wgattn.jax.call(wgattn.jit(lambda a, b: a + b), x, x[:, :3])).trace(X)
