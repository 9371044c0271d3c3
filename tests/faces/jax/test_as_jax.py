"""What JAX tests of its own attention: dtypes, groups, vmap, the mask modes, the bias gradient, the residual."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import wgattn
from tests.faces.jax.compare import OURS, THEIRS, agree, normal
from tests.tolerance import check
from wgattn import masks

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

    arrays = operands(0, dtype, K)
    agree(lambda attention: jax.jit(jax.vmap(attention) if vmapped else attention), *arrays)
    agree(loss, *arrays, gradient=True)


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


def again(f: Any) -> Any:
    """The gradient of a gradient, jitted."""
    return jax.jit(jax.grad(lambda x: jax.grad(f)(x).sum()))


@pytest.mark.parametrize("twice", [jax.hessian, again])
def test_a_second_derivative_says_that_there_is_none(twice: Any) -> None:
    q, k, v = operands(13)

    def attended(q: jax.Array) -> jax.Array:
        return OURS(q, k, v).sum()

    def merged(q: jax.Array) -> jax.Array:
        return wgattn.jax.merge_attention([q, k], [q[..., 0], k[..., 0]]).sum()

    for loss in (attended, merged):
        with pytest.raises(wgattn.UnsupportedError, match="differentiated once"):
            twice(loss)(q)


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


def test_check_grads_of_what_jax_nn_does_not_have() -> None:
    from jax.test_util import check_grads

    q, k, v = (normal(i, 1, 6, 2, 8) for i in range(3))

    def call(q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array) -> jax.Array:
        given = {"softcap": 3.0, "query_offset": jnp.int32(2), "rope": wgattn.nn.Rope()}
        return OURS(q, k, v[..., :5], sinks=sinks, mask=masks.prefix(jnp.int32(3)) | masks.causal(), **given)

    check_grads(call, (q, k, v, normal(4, 2)), order=1, modes=["rev"], atol=2e-2, rtol=2e-2)


sizes = st.fixed_dictionaries(
    {
        "B": st.integers(1, 2),
        "T": st.sampled_from([1, 3, 16, 33]),
        "S": st.sampled_from([1, 5, 17, 40]),
        "K": st.integers(1, 2),
        "G": st.integers(1, 3),
        "H": st.sampled_from([1, 8, 20, 64]),
        "seed": st.integers(0, 2**20),
    }
)


@settings(max_examples=4, phases=[Phase.explicit, Phase.generate])
@given(sizes, st.booleans(), st.booleans(), st.booleans(), st.sampled_from([None, "BNTS", "NS", "T", "BS"]))
def test_gradients_over_a_grid(
    size: dict[str, int], causal: bool, window: bool, lengths: bool, bias: str | None
) -> None:
    B, T, S, K, H, seed = (size[letter] for letter in ("B", "T", "S", "K", "H", "seed"))
    N = K * size["G"]
    operands = [normal(seed + i, *shape) for i, shape in enumerate([(B, T, N, H), (B, S, K, H), (B, S, K, H)])]
    weight = normal(seed + 3, B, T, N, H)
    options: dict[str, Any] = {"is_causal": causal, "local_window_size": (4, 6) if window else None}
    if lengths:
        options["key_value_seq_lengths"] = np.random.default_rng(seed).integers(1, S + 1, B).astype(np.int32)
        options["query_seq_lengths"] = np.random.default_rng(seed + 1).integers(1, T + 1, B).astype(np.int32)
    if bias is not None:
        shape = [n if letter in bias else 1 for letter, n in zip("BNTS", (B, N, T, S), strict=True)]
        operands.append(normal(seed + 4, *shape))

    def gradient(attention: Any) -> Any:
        return jax.jit(jax.grad(lambda *x: (attention(*x, **options) * weight).sum(), tuple(range(len(operands)))))

    agree(gradient, *operands, gradient=True, exact=True)
