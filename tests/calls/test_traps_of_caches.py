"""Caches and gradients: mistakes that other attention code made with them, each with the report that it comes from."""

from functools import partial
from typing import Any

import numpy as np
import pytest

import wgattn as wa
from tests.calls.measured import normal, qkv
from tests.tolerance import check
from wgattn import KVCache, nn

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("poisoned")]


def test_a_row_without_keys_does_not_poison_gradients():
    """https://github.com/pytorch/pytorch/pull/196170: a causal band and a length leave the last row without a key"""
    query, key, value = qkv(T=6, S=6)
    kept = {"is_causal": True, "local_window_size": (1, 0), "key_value_seq_lengths": np.array([4], np.int32)}

    def gradients(grad_out: np.ndarray) -> list[np.ndarray]:
        _, pull = wa.vjp(lambda *given: nn.dot_product_attention(*given, **kept), query, key, value)
        return [np.asarray(x) for x in pull(grad_out)]

    grad_out = normal(1, 6, 2, 16, seed=5)
    assert all(np.isfinite(x).all() for x in gradients(grad_out))
    assert not gradients(grad_out)[0][:, 5].any()
    grad_out[:, :5] = 0
    by_query, by_key, by_value = gradients(grad_out)
    assert not by_query.any()
    assert not by_key.any()
    check(by_value, np.broadcast_to(grad_out[:, 5:].astype(np.float64) / 6, by_value.shape))


def test_what_is_larger_than_what_is_donated_lies_elsewhere():
    """https://github.com/microsoft/onnxruntime/issues/32716: past and present of two sizes in one buffer"""
    past, new = normal(2, 8, 2, 16, seed=1), normal(2, 1, 2, 16, seed=2)
    grow = wa.jit(lambda past, new: (wa.concatenate([past, new], 1), past + 1), donate_argnums=0)
    present, more = grow(wa.device_put(past), new)
    np.testing.assert_array_equal(present, np.concatenate([past, new], 1))
    np.testing.assert_array_equal(more, past + 1)


@pytest.mark.parametrize("rope", [None, nn.Rope()])
def test_new_tokens_lie_behind_those_before(rope: nn.Rope | None):
    """https://github.com/microsoft/onnxruntime-genai/pull/2354: behind nine tokens the next are written at 9, 10, 11"""
    keys = normal(1, 12, 2, 16)
    append = wa.jit(lambda cache, new: cache.append(new, new, rope=rope), donate_argnums=0)
    cache = append(KVCache.create(1, 16, 2, 16, dtype=np.float32), keys[:, :9])
    for at in (9, 10, 11):
        assert np.asarray(cache.lengths).tolist() == [at]
        cache = append(cache, keys[:, at : at + 1])
    stored = keys if rope is None else np.asarray(nn.rope(keys))
    check(np.asarray(cache.key)[:, :12], stored.astype(np.float64))
    np.testing.assert_array_equal(np.asarray(cache.value)[:, :12], keys)


def test_every_layer_writes_at_the_same_place():
    """https://github.com/fla-org/flash-linear-attention/issues/766: the first layer's append moves no later layer's"""
    prompt, new = normal(1, 5, 2, 16, seed=3), normal(1, 1, 2, 16, seed=4)

    @partial(wa.jit, donate_argnums=0)
    def step(layers: list[KVCache], x: Any) -> list[KVCache]:
        return [cache.append(x, x, rope=nn.Rope()) for cache in layers]

    layers = [KVCache.create(1, 8, 2, 16, dtype=np.float32) for _ in range(2)]
    first, second = step(step(layers, prompt), new)
    np.testing.assert_array_equal(first.lengths, second.lengths)
    np.testing.assert_array_equal(np.asarray(first.key)[:, :6], np.asarray(second.key)[:, :6])
