"""Gradients of attention calls on the device: option by option against float64, and against jax.grad of jax.nn."""

import itertools
from typing import Any

import jax
import numpy as np
import pytest

import wgattn as wa
from tests.cases import DTYPES, OPTIONS, Case, make
from tests.tolerance import check
from wgattn._reference import tolerance
from wgattn._reference_gradient import attention_gradient

pytestmark = pytest.mark.device
ARRAYS = ("bias", "sinks", "scale")  # options that have a gradient where they are arrays


def like(given: np.ndarray, right: Any, dtype: str) -> None:
    """Within the tolerance of the call's dtype, or of the gradient's own where that is coarser.

    A sum over many rows has a larger absolute bound than unit-normal data.
    """
    wanted = np.asarray(right).reshape(given.shape)
    size = max(1.0, float(np.abs(wanted.astype(np.float64)).max(initial=0)))
    coarser = max((DTYPES[dtype], given.dtype), key=lambda each: tolerance(each, 1, True).norm)
    check(given, wanted, coarser, gradient=True, magnitude=size)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "f32") for name in OPTIONS), *zip(OPTIONS, itertools.cycle(("f16", "bf16")), strict=False)],
)
def test_option(name, dtype):
    """query, key, value, and the option itself where it is a float array; recorded, compiled and run as one graph.

    https://github.com/jax-ml/jax/issues/30593 and https://github.com/jax-ml/jax/issues/24047
    """
    case = Case(B=2, T=9, S=11, K=2, G=2, H=8, Hv=4, dtype=dtype, options=(name,))
    made = make(case)
    arrays = dict(zip(("query", "key", "value"), made.operands(np.asarray), strict=True))
    options = {key: x for key, x in made.given.items() if key not in ("return_residual", "residual_dtype")}
    arrays |= {key: options.pop(key) for key in ARRAYS if isinstance(options.get(key), np.ndarray)}
    grad_out = np.random.default_rng(1).standard_normal((2, 9, 4, 4)).astype(DTYPES[dtype])

    @wa.jit
    def gradients(arrays: Any, grad_out: Any) -> Any:
        return wa.vjp(lambda given: wa.nn.dot_product_attention(**given, **options), arrays)[1](grad_out)[0]

    right = attention_gradient(grad_out, *made.operands(np.asarray), **made.right)
    for key, gradient in gradients(arrays, grad_out).items():
        assert gradient.dtype == arrays[key].dtype
        like(np.asarray(gradient), getattr(right, key), dtype)


JAX = ((), ("bias",), ("bias_heads",), ("mask",), ("causal", "window"), ("query_lengths", "key_lengths"), ("scale",))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", JAX, ids="-".join)
def test_as_jax(options, dtype):
    made = make(Case(B=2, T=12, S=7, K=1, G=3, H=16, Hv=16, dtype=dtype, options=options))
    query, key, value = made.operands(np.asarray)

    def loss(m: Any) -> Any:
        def f(query: Any, key: Any, value: Any) -> Any:
            return (m.nn.dot_product_attention(query, key, value, **made.given) * query).astype(np.float32).sum()

        return f

    mine = wa.grad(loss(wa), (0, 1, 2))(query, key, value)
    wide = [x.astype(np.float32) for x in (query, key, value)]
    for given, right in zip(mine, jax.grad(loss(jax), (0, 1, 2))(*wide), strict=True):
        assert given.dtype == DTYPES[dtype]
        like(np.asarray(given), right, dtype)


def test_training_moves_the_loss():
    """A step of a small GQA and RoPE layer, compiled as one program; two steps give the loss that jax's give."""
    r = np.random.default_rng(5)
    q, k = (r.standard_normal((1, 6, n, 8)).astype(np.float32) for n in (4, 2))
    goal = r.standard_normal((1, 6, 4, 8)).astype(np.float32)

    def loss(params: Any, goal: Any) -> Any:
        out = wa.nn.dot_product_attention(params["q"], params["k"], params["k"] * 2, is_causal=True, rope=wa.nn.Rope())
        off = out - goal
        return (off * off).mean()

    @wa.jit
    def step(params: Any, goal: Any) -> Any:
        value, gradient = wa.value_and_grad(loss)(params, goal)
        return value, {name: x - 5.0 * gradient[name] for name, x in params.items()}

    params, losses = {"q": q, "k": k}, []
    for _ in range(4):
        value, params = step(params, goal)
        losses.append(float(value))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]
