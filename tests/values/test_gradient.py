"""vjp, grad and value_and_grad: what they take, give and refuse. Values are those of tests/graph/test_adjoints.py."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest

import wgattn as wa
from wgattn._dtypes import float16

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def loss(x: Any, y: Any = 1.0) -> Any:
    return (x * x * y).sum()


def test_the_gradient_looks_like_the_argument():
    @jax.tree_util.register_dataclass
    @dataclass
    class Layer:
        weight: Any
        bias: Any

    def f(layer: Any, scale: Any, *, shift: Any) -> Any:
        return (layer.weight * scale + layer.bias["b"][0]).sum() * shift

    layer = Layer(X, {"b": [X[0].astype(float16)]})
    gradient = wa.grad(f)(layer, 2.0, shift=3.0)
    assert isinstance(gradient, Layer)
    assert (gradient.weight.shape, gradient.weight.dtype) == (X.shape, X.dtype)
    assert (gradient.bias["b"][0].shape, gradient.bias["b"][0].dtype) == ((3,), float16)
    assert wa.grad(f, -1)(layer, 2.0, shift=3.0).shape == ()
    by_both = wa.grad(f, argnums=(1, 0))(layer, 2.0, shift=3.0)
    assert isinstance(by_both, tuple)
    assert by_both[1].bias["b"][0].shape == (3,)
    assert wa.grad(f).__name__ == "f"


def test_what_the_result_does_not_use_has_zeros():
    unused, none, empty = wa.grad(lambda x, y, z: (x["a"] * 2).sum(), (0, 1, 2))({"a": X, "b": None}, X, X[:0])
    assert unused["b"] is None
    assert none.shape == X.shape
    assert np.asarray(empty).shape == (0, 3)


def test_other_arguments_may_be_anything():
    def f(how: str, x: Any, n: Any) -> Any:
        return x.sum() if how == "sum" else (x * n).mean()

    assert wa.grad(f, 1)("sum", X, np.int32(3)).shape == X.shape
    assert wa.grad(lambda x: wa.jit(f, static_argnums=0)("mean", x, 3))(X).shape == X.shape


def test_aux():
    (value, aux), gradient = wa.value_and_grad(lambda x: (x.sum(), {"twice": x * 2, "n": 3}), has_aux=True)(X)
    assert (value.shape, gradient.shape, aux["twice"].shape) == ((), X.shape, X.shape)
    assert int(aux["n"]) == 3
    gradient, aux = wa.grad(lambda x: [x.sum(), x], has_aux=True)(X)
    assert aux.shape == gradient.shape == X.shape
    _, pull, aux = wa.vjp(lambda x: (x * 2, x > 0), X, has_aux=True)
    assert aux.dtype == bool
    assert pull(X)[0].shape == X.shape


def test_vjp_takes_none_and_numbers():
    out, pull = wa.vjp(lambda x, y: {"product": x * y, "sum": x.sum(), "which": x > y, "none": None}, X, X)
    assert out["none"] is None
    given = {"product": None, "sum": 2.0, "which": None, "none": None}
    for gradients in (pull(given), pull(given)):
        assert [g.shape for g in gradients] == [X.shape, X.shape]


def test_arguments_are_told_apart():
    """The same Array twice, and once more from outside, which is constant."""
    x = wa.asarray(X)
    text = wa.jit(lambda x: wa.grad(lambda a, b: (a * a * b * x).sum())(x, x)).lower(X).as_text()
    once = wa.jit(lambda x: wa.grad(lambda a: (a * x).sum())(x)).lower(X).as_text()
    assert text != once
    assert "multiply" not in once
    first, second = wa.vjp(lambda a, b: a - b, x, x)[1](X)
    assert first.shape == second.shape == X.shape


def test_the_backward_pass_is_a_graph_like_any_other():
    shared = wa.make_graph(wa.value_and_grad(lambda x: (wa.exp(x) * 2).mean()))(X)
    assert repr(shared).count("exp") == 1, "the backward pass reads what the forward pass computed"
    assert wa.jit(wa.grad(loss, (0, 1))).lower(X, X).out_info[1].shape == X.shape
    with pytest.raises(TypeError, match="argument x of loss: asarray takes"):
        wa.jit(wa.grad(loss))("x")


REFUSED = {
    "vector": (lambda: wa.grad(lambda x: x * 2)(X), TypeError, r"<lambda> returned f32\[2,3\]: sum it"),
    "tree": (lambda: wa.grad(lambda x: (x.sum(), x))(X), TypeError, r"returned .*has_aux=True"),
    "integer": (lambda: wa.grad(lambda x: (x > 0).sum())(X), TypeError, "sum adds up float"),
    "bool": (lambda: wa.grad(lambda x: (x > 0)[0, 0])(X), TypeError, r"returned bool\[\]"),
    "int": (lambda: wa.grad(loss)(X.astype(np.int32)), TypeError, "argument x of loss is int32: cast it"),
    "in_tree": (
        lambda: wa.grad(lambda p: p["w"][0].sum())({"w": [np.ones(2, np.int32)]}),
        TypeError,
        r"argument p\['w'\]\[0\] of <lambda> is int32",
    ),
    "word": (lambda: wa.vjp(loss, "x"), TypeError, "argument x of loss: asarray takes"),
    "missing": (lambda: wa.grad(loss, 2)(X, X), TypeError, "argnums names argument 2, and 2 were given"),
    "twice": (lambda: wa.grad(loss, (0, -2))(X, X), ValueError, "names an argument twice"),
    "name": (lambda: wa.grad(loss, "x")(X), TypeError, "argnums is an integer"),
    "no_aux": (lambda: wa.grad(loss, has_aux=True)(X), TypeError, r"must return \(out, aux\); it returned a Array"),
    "no_function": (lambda: wa.grad(X), TypeError, "grad differentiates a function; got ndarray"),
    "value": (lambda: wa.grad(lambda x: x.sum() if x[0, 0] > 0 else 0)(X), TypeError, "wgattn.grad traces without"),
    "shape": (lambda: wa.vjp(lambda x: x * 2, X)[1](X[0]), ValueError, r"must have its shape; got \(3,\)"),
    "dtype": (lambda: wa.vjp(lambda x: x * 2, X)[1](X.astype(float16)), TypeError, "must have its dtype; got float16"),
    "no_tree": (lambda: wa.vjp(lambda x: (x, x), X)[1](X), ValueError, "must be a tree like its result"),
    "of_bool": (lambda: wa.vjp(lambda x: x > 0, X)[1](X > 0), TypeError, "has no cotangent: give None"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        call()


@pytest.mark.device
def test_values_eagerly_and_jitted():
    x, y = wa.asarray(X), wa.asarray(X + 1) * 2

    def f(x: Any, y: Any) -> Any:
        return (wa.exp(x * 0.1)[::-1, ::2] * y[:, 1:]).mean()

    def right(x: Any, y: Any) -> Any:
        return (jax.numpy.exp(x * 0.1)[::-1, ::2] * y[:, 1:]).mean()

    wanted = jax.value_and_grad(right, (0, 1))(X, (X + 1) * 2)
    for made in (wa.value_and_grad(f, (0, 1))(x, y), wa.jit(wa.value_and_grad(f, (0, 1)))(x, y)):
        for given, expected in zip(jax.tree.leaves(made), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(np.asarray(given), expected, rtol=4e-6)


@pytest.mark.device
def test_zeros_and_what_is_forced_in_between():
    out, pull = wa.vjp(lambda x, y: wa.exp(x).sum(1), X, X)
    np.asarray(out)
    by_x, by_y = pull(np.ones(2, np.float32))
    np.testing.assert_allclose(np.asarray(by_x), np.exp(X), rtol=4e-6)
    assert not np.asarray(by_y).any()


@pytest.mark.device
def test_a_long_training_runs():
    """Hundreds of lazy steps, none of them read, stay bounded chains."""
    w = wa.asarray(np.full(3, 4.0, np.float32))
    for _ in range(300):
        w = w - 0.01 * wa.grad(loss)(w)
        assert w._step.pending() < 2000
    np.testing.assert_allclose(np.asarray(w), 4 * 0.98**300, rtol=1e-4)


@pytest.mark.device
def test_gradients_of_one_call_are_computed_at_once():
    """Whichever is read first; the forward pass that was read before is not run again."""
    q = np.random.default_rng(0).standard_normal((1, 4, 2, 8)).astype(np.float32)
    out, pull = wa.vjp(wa.nn.dot_product_attention, q, q, q)
    np.asarray(out)
    saved = [x for x in pull.saved.values() if x.shape == (1, 4, 2)]
    assert [x._step.operation for x in saved] == [None], "the residual is kept with the result"
    by_query, by_key, by_value = pull(out)
    np.asarray(by_key)
    assert by_query._step.operation is by_value._step.operation is None


@pytest.mark.device
def test_value_and_gradients_are_computed_at_once():
    value, gradients = wa.value_and_grad(lambda p: (wa.exp(p["a"]) * p["b"]).sum())({"a": X, "b": X})
    moved = gradients["b"] * 2
    del gradients["b"]
    float(value)
    assert gradients["a"]._step.operation is None
    assert moved._step.operation is not None, "what nobody asked for stays recorded"
    np.testing.assert_allclose(np.asarray(moved), np.exp(X) * 2, rtol=4e-6)
