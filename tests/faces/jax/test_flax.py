"""flax_attention: what Flax NNX passes to an attention function, and what it may ask for that wgattn does not have."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.faces.jax.compare import THEIRS, normal
from tests.tolerance import check
from wgattn import masks
from wgattn.jax import flax_attention

Y = normal(0, 2, 10, 32)


def module(**options: Any) -> Any:
    return nnx.MultiHeadAttention(num_heads=4, in_features=32, decode=False, rngs=nnx.Rngs(0), **options)


@pytest.mark.device
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_a_module_gives_what_it_gave(causal: bool, masked: bool) -> None:
    ours, theirs = module(attention_fn=flax_attention), module()
    mask = jnp.asarray(np.random.default_rng(1).random((2, 1, 10, 10)) < 0.7).at[..., 0].set(True) if masked else None

    def loss(module: Any) -> Any:
        return (module(Y, mask=mask, is_causal=causal) ** 2).sum()

    check(np.asarray(ours(Y, mask=mask, is_causal=causal)), np.asarray(theirs(Y, mask=mask, is_causal=causal)))
    pairs = zip(*(jax.tree.leaves(nnx.grad(loss)(m)) for m in (ours, theirs)), strict=True)
    for mine, other in pairs:
        if np.abs(other).max() > 1e-3:  # the key's own bias has no gradient
            check(np.asarray(mine), np.asarray(other), gradient=True, magnitude=float(np.abs(other).max()))


@pytest.mark.device
def test_more_batch_axes() -> None:
    q, mask = normal(1, 2, 3, 8, 4, 16), normal(2, 3, 1, 8, 8) > -1
    found = flax_attention(q, q, q, mask=mask)
    right = jax.vmap(lambda x: THEIRS(x, x, x, mask=mask))(q)
    check(np.asarray(found), np.asarray(right))


@pytest.mark.device
@pytest.mark.parametrize("batch", [(2,), (2, 3)])
def test_a_mask_may_be_a_value(batch: tuple[int, ...]) -> None:
    x = normal(9, *batch, 12, 2, 8)
    window = masks.causal() & masks.local(3, 0)
    check(flax_attention(x, x, x, mask=window), np.asarray(flax_attention(x, x, x, mask=window.dense(12, 12))))


def test_what_wgattn_does_not_have_raises() -> None:
    with pytest.raises(ValueError, match="dropout"):
        module(attention_fn=flax_attention, dropout_rate=0.1)(Y, deterministic=False, rngs=nnx.Rngs(1))
    with pytest.raises(ValueError, match="weights"):
        module(attention_fn=flax_attention)(Y, sow_weights=True)
    x = np.ones((1, 3, 2, 8), np.float32)
    with pytest.raises(ValueError, match=r"return_residual=True .* call wgattn\.jax\.dot_product_attention"):
        flax_attention(x, x, x, return_residual=True)


@pytest.mark.device
def test_dropout_that_is_off_is_no_dropout() -> None:
    assert module(attention_fn=flax_attention, dropout_rate=0.1)(Y, deterministic=True).shape == Y.shape
