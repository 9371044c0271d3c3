"""What JAX tests of its own attention: dtypes, groups, vmap, the mask modes, the bias gradient, the residual."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.faces.jax.compare import OURS, THEIRS, agree, normal
from tests.tolerance import check

pytestmark = pytest.mark.device


def operands(seed: int, dtype: Any = np.float32, K: int = 4, B: int = 2) -> tuple[jax.Array, ...]:
    shapes = (B, 24, 4, 32), (B, 24, K, 32), (B, 24, K, 32)
    return tuple(normal(seed + i, *shape, dtype=dtype) for i, shape in enumerate(shapes))


@pytest.mark.parametrize("vmapped", [False, True])
@pytest.mark.parametrize("K", [4, 2, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
def test_dtypes_groups_and_vmap(dtype: Any, K: int, vmapped: bool) -> None:
    def loss(attention: Any) -> Any:
        def weighted(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            one = attention
            return (jax.vmap(one)(q, k, v) if vmapped else one(q, k, v)).astype(np.float32).mean()

        return jax.jit(jax.grad(weighted, (0, 1, 2)))

    given = operands(0, dtype, K)
    agree(lambda attention: jax.jit(jax.vmap(attention) if vmapped else attention), *given)
    agree(loss, *given, gradient=True)


def lower(T: int) -> jax.Array:
    return jnp.tril(jnp.ones((T, T), bool))[None, None]


MODES: dict[str, dict[str, Any]] = {
    "bias": {"bias": normal(9, 1, 4, 24, 24)},
    "bias of one head": {"bias": normal(9, 2, 1, 24, 24)},
    "causal": {"is_causal": True},
    "padding": {"query_seq_lengths": np.array([5, 24], np.int32), "key_value_seq_lengths": np.array([9, 17], np.int32)},
    "custom": {"mask": lower(24), "bias": normal(9, 2, 4, 24, 24)},
    "causal and padding": {"is_causal": True, "key_value_seq_lengths": np.array([9, 1], np.int32)},
    "sliding window": {"local_window_size": (6, 2)},
    "sliding window, one number": {"local_window_size": 5, "is_causal": True},
}


@pytest.mark.parametrize("mode", MODES)
def test_mask_modes(mode: str) -> None:
    given = operands(3, K=2)
    weight = normal(8, 2, 24, 4, 32)
    agree(lambda attention: jax.jit(lambda q, k, v: attention(q, k, v, **MODES[mode])), *given)

    def gradient(attention: Any) -> Any:
        return jax.jit(jax.grad(lambda *x: (attention(*x, **MODES[mode]) * weight).sum(), (0, 1, 2)))

    agree(gradient, *given, gradient=True)


@pytest.mark.parametrize("vmapped", [False, True])
@pytest.mark.parametrize("shape", [(1, 4, 24, 24), (2, 1, 24, 24), (2, 4, 1, 24), (1, 1, 1, 24)])
def test_bias_gradient(shape: tuple[int, ...], vmapped: bool) -> None:
    q, k, v = operands(5, K=2)
    weight = normal(8, 2, 24, 4, 32)
    many = 3 if vmapped else 1

    def gradient(attention: Any) -> Any:
        one = jax.grad(lambda bias: (attention(q, k, v, bias, is_causal=True) * weight).sum())
        return jax.jit(jax.vmap(one))

    agree(gradient, normal(7, many, *shape), gradient=True)


def test_residual() -> None:
    given = operands(11, K=2)
    agree(lambda attention: jax.jit(lambda *x: attention(*x, return_residual=True)), *given)
    for dtype in (np.float16, jnp.bfloat16):
        small = [x.astype(dtype) for x in given]
        _, mine = OURS(*small, return_residual=True)
        assert mine.dtype == dtype
        _, wide = OURS(*small, return_residual=True, residual_dtype=np.float32)
        assert wide.dtype == np.float32
        _, right = THEIRS(*(x.astype(np.float32) for x in small), return_residual=True)
        assert np.abs(np.asarray(wide) - np.asarray(right)).max() < 1e-5


def test_a_cotangent_of_the_residual_is_ignored() -> None:
    q, k, v = operands(12)

    def loss(attention: Any, factor: float) -> Any:
        def total(q: jax.Array) -> jax.Array:
            out, residual = attention(q, k, v, return_residual=True)
            return (out * out).sum() + factor * residual.sum()

        return jax.grad(total)

    check(np.asarray(loss(OURS, 5.0)(q)), np.asarray(loss(THEIRS, 0.0)(q)), gradient=True, magnitude=4.0)
    assert not np.asarray(jax.grad(lambda q: OURS(q, k, v, return_residual=True)[1].sum())(q)).any()


def test_forward_mode_raises_jax_own_error() -> None:
    q, k, v = operands(13)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda q: OURS(q, k, v), (q,), (q,))


def test_check_grads() -> None:
    from jax.test_util import check_grads

    q, k, v = (normal(i, 1, 6, 2, 8) for i in range(3))
    bias, scale = normal(4, 1, 2, 6, 6), jnp.float32(0.4)
    check_grads(
        lambda q, k, v, bias, scale: OURS(q, k, v, bias, scale=scale, is_causal=True),
        (q, k, v, bias, scale),
        order=1,
        modes=["rev"],
        atol=2e-2,
        rtol=2e-2,
    )
