"""wgattn.jax.merge_attention under jax's transforms, against the same sums in jax.numpy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import wgattn
from tests.faces.jax.compare import normal
from tests.tolerance import check

PARTS = normal(0, 3, 2, 4, 2, 5), normal(1, 3, 2, 4, 2), normal(2, 2)


def ours(*arrays: Any) -> Any:
    return wgattn.jax.merge_attention(*arrays, return_residual=True)


def theirs(outputs: Any, residuals: Any, sinks: Any = None) -> Any:
    total = jax.nn.logsumexp(residuals, axis=0)
    total = total if sinks is None else jnp.logaddexp(total, sinks)
    return (jnp.exp(residuals - total)[..., None] * outputs).sum(0), total


def loss(merge: Any) -> Any:
    def of_parts(*arrays: Any) -> Any:
        out, residual = merge(*arrays)
        return jnp.sin(3 * out).sum() + jnp.cos(residual).sum()

    return of_parts


def agree(transform: Any, *arrays: Any, gradient: bool = False) -> None:
    found, right = (jax.tree.leaves(transform(merge)(*arrays)) for merge in (ours, theirs))
    for mine, wanted in zip(found, right, strict=True):
        magnitude = max(1.0, float(np.abs(wanted).max())) if gradient else 1.0
        check(np.asarray(mine), np.asarray(wanted), gradient=gradient, magnitude=magnitude)


@pytest.mark.device
@pytest.mark.parametrize("count", [2, 3], ids=["plain", "sinks"])
def test_values_and_gradients_under_jit(count: int) -> None:
    arrays = PARTS[:count]
    agree(jax.jit, *arrays)
    agree(lambda merge: jax.jit(jax.grad(loss(merge), range(count))), *arrays, gradient=True)
    agree(lambda merge: jax.grad(loss(merge), count - 1), *arrays, gradient=True)


@pytest.mark.device
def test_vmap_over_any_axes() -> None:
    outputs, residuals, sinks = (jnp.stack([x, 2 * x, -x]) for x in PARTS)
    agree(jax.vmap, outputs, residuals, sinks)
    agree(lambda merge: jax.vmap(merge, (1, None, None), 1), outputs.swapaxes(0, 1), residuals[0], sinks[0])
    gradient = lambda merge: jax.vmap(jax.grad(loss(merge), (0, 1, 2)), (None, 0, 0))  # noqa: E731
    agree(gradient, outputs[0], residuals, sinks, gradient=True)
    nested = lambda merge: jax.vmap(jax.vmap(merge, (0, 0, None)), (None, None, 0))  # noqa: E731
    agree(nested, outputs, residuals, sinks)


@pytest.mark.device
def test_a_vmapped_merge_is_one_callback() -> None:
    parts = jnp.stack([PARTS[0]] * 3), jnp.stack([PARTS[1]] * 3)
    text = str(jax.make_jaxpr(jax.vmap(ours))(*parts))
    assert text.count("buffer_callback[") == 1
    assert "f32[3,2,4,2,5]" in text
    assert "scan[" not in text


@pytest.mark.device
def test_gradients_of_finite_differences() -> None:
    check_grads(ours, PARTS, order=1, modes=["rev"], atol=1e-2, rtol=1e-2)


@pytest.mark.device
def test_parts_of_a_sequence_with_one_that_keeps_no_key() -> None:
    outputs, residuals = (
        [PARTS[0][0], jnp.full_like(PARTS[0][0], jnp.nan)],
        [PARTS[1][0], jnp.full((2, 4, 2), -jnp.inf)],
    )
    out = wgattn.jax.merge_attention(outputs, residuals)
    np.testing.assert_array_equal(np.asarray(out), np.asarray(outputs[0]))
    gradient = jax.grad(lambda *given: wgattn.jax.merge_attention(*given).sum(), (0, 1))(outputs, residuals)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    assert not np.asarray(gradient[0][1]).any()


@pytest.mark.device
def test_parts_of_attention_are_its_whole() -> None:
    query, kv = normal(3, 1, 6, 4, 16), normal(4, 1, 12, 2, 16)
    options = {"return_residual": True, "residual_dtype": np.float32}
    attend = wgattn.jax.dot_product_attention

    def in_parts(query: Any, kv: Any) -> Any:
        return wgattn.jax.merge_attention(
            *zip(*(attend(query, x, x, **options) for x in jnp.split(kv, 3, 1)), strict=True)
        )

    check(np.asarray(jax.jit(in_parts)(query, kv)), np.asarray(jax.nn.dot_product_attention(query, kv, kv)))


def test_shapes_and_dtypes_are_refused_while_jax_traces() -> None:
    outputs, residuals, _ = PARTS
    with pytest.raises(ValueError, match="these look like BNT"):
        jax.eval_shape(wgattn.jax.merge_attention, outputs, residuals.swapaxes(2, 3))
    with pytest.raises(TypeError, match="residuals must be float32"):
        jax.eval_shape(wgattn.jax.merge_attention, outputs, residuals.astype(jnp.bfloat16))
    with pytest.raises(ValueError, match=r"sinks hold one logit a query head: shape \(N,\) = \(2,\)"):
        jax.eval_shape(wgattn.jax.merge_attention, outputs, residuals, jnp.ones(3))
    with pytest.raises(ValueError, match=r"outputs\[1\] has shape \(1, 4, 2, 5\)"):
        jax.eval_shape(wgattn.jax.merge_attention, [outputs[0], outputs[1, :1]], residuals[:2])


def test_empty_axes_need_no_device() -> None:
    out, residual = ours(jnp.zeros((2, 0, 3, 4, 8), jnp.float16), jnp.zeros((2, 0, 3, 4)))
    assert (out.shape, out.dtype, residual.shape) == ((0, 3, 4, 8), jnp.float16, (0, 3, 4))
