"""Sizes past a limit: many keys, many batch entries, K and V larger than a binding of 128 MiB."""

import numpy as np
import pytest

import wgattn
from tests.tolerance import check
from wgattn import nn
from wgattn._reference import attention

pytestmark = pytest.mark.device


def compare(T: int, S: int, *, B: int = 1, N: int = 1, K: int = 1, H: int = 64, **options) -> None:
    draw = np.random.default_rng(0)
    arrays = [draw.standard_normal(shape, np.float32) for shape in ((B, T, N, H), (B, S, K, H), (B, S, K, H))]
    out = nn.dot_product_attention(*map(wgattn.asarray, arrays), **options)
    check(np.asarray(out), attention(*arrays, **options).out, S=S)


@pytest.mark.parametrize("T", [1, 40])
def test_a_hundred_thousand_keys(T: int) -> None:
    """More keys than lavapipe of Mesa 22.3 has loop turns for."""
    compare(T, 100_000)


def test_seventy_thousand_batch_entries() -> None:
    """More workgroups than one side of a grid may have."""
    draw = np.random.default_rng(0)
    query, key, value = (draw.standard_normal((70_000, n, N, 16), np.float32) for n, N in ((1, 2), (3, 1), (3, 1)))
    out = nn.dot_product_attention(*map(wgattn.asarray, (query, key, value)))
    weights = np.exp(np.einsum("btnh,bskh->bns", query.astype(np.float64), key) / 4)
    weights /= weights.sum(-1, keepdims=True)
    check(np.asarray(out), np.einsum("bns,bskh->bnh", weights, value)[:, None], S=3)


@pytest.mark.parametrize("T", [1, 4])
def test_keys_of_192_mib(T: int) -> None:
    S = (192 << 20) // (8 * 64 * 4)
    compare(T, S, N=8, K=8, key_value_seq_lengths=np.array([S - 5], np.int32))


def test_a_bias_of_130_mib() -> None:
    """Bound as ranges of rows and heads."""
    T, S, N = 260, 16_384, 8
    bias = np.random.default_rng(1).standard_normal((1, N, T, S), np.float32)
    compare(T, S, N=N, H=16, bias=bias)
