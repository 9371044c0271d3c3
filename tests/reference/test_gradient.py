"""The float64 gradient against central differences of the reference, and against jax.grad of jax.nn."""

from typing import Any

import jax
import numpy as np
import pytest

from tests.kernels.attention.test_families import options_of
from wgattn import _reference
from wgattn._kernels.rotation import Rope
from wgattn._reference_gradient import attention_gradient

STEP = 1e-5
SIZES = {"B": 2, "T": 4, "S": 6, "N": 4}
NAMES = {
    "query_lengths": "query_seq_lengths",
    "key_value_lengths": "key_value_seq_lengths",
    "window": "local_window_size",
}


def drawn(option: str) -> tuple[list[np.ndarray], dict[str, Any]]:
    r = np.random.default_rng(3)
    B, T, S, N = SIZES.values()
    arrays = [r.standard_normal(shape) for shape in ((B, T, N, 5), (B, T, N, 8), (B, S, 2, 8), (B, S, 2, 5))]
    given = {NAMES.get(name, name): value for name, value in options_of(B, T, S, N)[option].items()}
    ids = given.pop("query_segments", None), given.pop("key_segments", None)
    if ids[0] is not None:
        given["mask"] = _reference.segments(np.arange(T), *ids)
    if "sinks" in given or "bias" in given:
        given |= {name: given[name].astype(np.float64) for name in ("sinks", "bias") if name in given}
    return arrays, given


@pytest.mark.parametrize("option", sorted(set(options_of(1, 1, 4, 1)) - {"bias_low"}))
def test_central_differences(option: str) -> None:
    """Along a random direction of each operand, the change of sum(grad_out · out) is the gradient's share of it."""
    (grad_out, *arrays), options = drawn(option)
    mine = attention_gradient(grad_out, *arrays, **options)
    r = np.random.default_rng(5)
    operands = dict(zip(("query", "key", "value"), arrays, strict=True))
    operands |= {name: np.asarray(options[name], np.float64) for name in ("bias", "sinks") if name in options}
    operands["scale"] = np.float64(options.get("scale", 8**-0.5))
    for name, value in operands.items():
        way = r.standard_normal(value.shape)
        if name == "bias":
            way = np.where(np.isneginf(value), 0, way)

        def at(sign: int, name: str = name, value: np.ndarray = value, way: np.ndarray = way) -> float:
            moved = operands | {name: value + sign * STEP * way}
            rest = {n: v for n, v in options.items() if n not in operands}
            return float((_reference.attention(**moved, **rest).out * grad_out).sum())

        right = (at(1) - at(-1)) / (2 * STEP)
        found = float((getattr(mine, name) * way).sum())
        assert found == pytest.approx(right, rel=1e-6, abs=1e-7), name


@pytest.mark.parametrize(
    "option", ["full", "causal", "window", "bias", "mask", "mask_none", "key_lengths", "query_lengths", "scale"]
)
def test_jax(option: str) -> None:
    (grad_out, *arrays), options = drawn(option)
    grad_out = grad_out[..., :1] * np.ones(8)
    arrays[2] = np.random.default_rng(1).standard_normal(arrays[1].shape)
    bias = options.pop("bias", None)
    mine = attention_gradient(grad_out, *arrays, bias=bias, **options)
    single = [x.astype(np.float32) for x in arrays] + ([] if bias is None else [bias.astype(np.float32)])

    def loss(*operands: jax.Array) -> jax.Array:
        return (jax.nn.dot_product_attention(*operands, **options) * grad_out.astype(np.float32)).sum()

    right = jax.grad(loss, tuple(range(len(single))))(*single)
    for name, gradient in zip(("query", "key", "value", "bias"), right, strict=False):
        np.testing.assert_allclose(getattr(mine, name), gradient, rtol=2e-5, atol=1e-5, err_msg=name)


def test_a_row_of_the_lowest_bias_shares_alike() -> None:
    (grad_out, *arrays), options = drawn("bias_low")
    mine = attention_gradient(grad_out, *arrays, **options)
    mean = grad_out.reshape(2, 4, 2, 2, 5).sum((1, 3)) / SIZES["S"]
    np.testing.assert_allclose(mine.value, np.broadcast_to(mean[:, None], mine.value.shape), rtol=1e-12)


def test_nothing_past_the_lengths_is_read() -> None:
    (grad_out, query, key, value), _ = drawn("full")
    options = {"query_seq_lengths": np.array([2, 3]), "key_value_seq_lengths": np.array([4, 1]), "is_causal": True}
    clean = attention_gradient(grad_out, query, key, value, **options)
    for array, lengths in ((grad_out, (2, 3)), (query, (2, 3)), (key, (4, 1)), (value, (4, 1))):
        for b, length in enumerate(lengths):
            array[b, length:] = np.nan
    wild = attention_gradient(grad_out, query, key, value, **options, rope=None)
    for name in ("query", "key", "value"):
        np.testing.assert_array_equal(getattr(wild, name), getattr(clean, name))
    turned = attention_gradient(grad_out, query, key, value, **options, rope=Rope())
    assert np.isfinite(turned.query).all()
    assert np.isfinite(turned.key).all()
