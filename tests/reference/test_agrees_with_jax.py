"""The reference gives what jax.nn.dot_product_attention gives, wherever the contract says that they agree."""

import itertools

import jax
import numpy as np
import pytest

from tests.tolerance import check
from wgattn._reference import attention

OPTIONS = {
    "bias": lambda r, B, T, S, N: r.standard_normal((B, N, T, S), np.float32),
    "mask": lambda r, B, T, S, N: r.random((B, 1, T, S)) < 0.7,
    "is_causal": lambda r, B, T, S, N: True,
    "query_seq_lengths": lambda r, B, T, S, N: r.integers(0, T + 3, B).astype(np.int32),
    "key_value_seq_lengths": lambda r, B, T, S, N: r.integers(0, S + 3, B).astype(np.int32),
    "local_window_size": lambda r, B, T, S, N: (int(r.integers(0, 4)), int(r.integers(-2, 4))),
    "scale": lambda r, B, T, S, N: 0.3,
}
PAIRS = [(), *((name,) for name in OPTIONS), *itertools.combinations(OPTIONS, 2), tuple(OPTIONS)]
SIZES = [(1, 1, 1, 1, 1, 4), (2, 5, 7, 4, 2, 3), (3, 8, 4, 3, 1, 8), (2, 3, 33, 8, 8, 16)]


def drawn(seed: int, B: int, T: int, S: int, N: int, K: int, H: int, named: tuple[str, ...]):
    r = np.random.default_rng(seed)
    shapes = (B, T, N, H), (B, S, K, H), (B, S, K, H)
    arrays = [r.standard_normal(shape, np.float32) for shape in shapes]
    return arrays, {name: OPTIONS[name](r, B, T, S, N) for name in named}


@pytest.mark.parametrize("named", PAIRS, ids="-".join)
def test_options_alone_and_in_pairs(named: tuple[str, ...]):
    for seed, size in enumerate(SIZES):
        arrays, options = drawn(seed, *size, named)
        out, residual = jax.nn.dot_product_attention(*arrays, **options, implementation="xla", return_residual=True)
        mine = attention(*arrays, **options)
        check(np.asarray(out), mine.out, magnitude=2.0)
        np.testing.assert_allclose(np.asarray(residual), mine.residual, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("bias", "mask"),
    [
        ((7,), (7,)),
        ((5, 7), (5, 1)),
        ((4, 1, 7), (1, 5, 7)),
        ((2, 1, 5, 7), (2, 4, 1, 1)),
        ((1, 4, 1, 1), (1, 1, 1, 7)),
    ],
)
def test_broadcast_bias_and_mask(bias: tuple[int, ...], mask: tuple[int, ...]):
    (query, key, value), _ = drawn(0, 2, 5, 7, 4, 2, 3, ())
    r = np.random.default_rng(1)
    options = {"bias": r.standard_normal(bias, np.float32), "mask": r.random(mask) < 0.6}
    out = jax.nn.dot_product_attention(query, key, value, **options)
    check(np.asarray(out), attention(query, key, value, **options).out)


@pytest.mark.parametrize("batched", list(itertools.product([False, True], repeat=3)))
def test_each_argument_may_lack_its_batch_axis(batched: tuple[bool, bool, bool]):
    arrays, _ = drawn(2, 1, 4, 6, 4, 2, 8, ())
    arrays = [x if keep else x[0] for x, keep in zip(arrays, batched, strict=True)]
    out, residual = jax.nn.dot_product_attention(*arrays, return_residual=True)
    mine = attention(*arrays)
    assert mine.residual.shape == residual.shape
    check(np.asarray(out), mine.out)


def test_nan_reaches_the_same_results():
    (query, key, value), _ = drawn(3, 2, 6, 6, 2, 2, 4, ())
    query[0, 2, 0, 1] = np.nan
    key[1, 3, 1, 0] = np.inf
    key[1, 4, 0, 0] = np.nan
    value[0, 1, 1, 2] = np.nan
    out = jax.nn.dot_product_attention(query, key, value)
    check(np.asarray(out), attention(query, key, value).out)


def test_a_row_of_the_lowest_bias_is_the_mean():
    (query, key, value), _ = drawn(4, 1, 3, 5, 2, 1, 4, ())
    bias = np.zeros((1, 1, 3, 5), np.float32)
    bias[..., 1, :] = np.finfo(np.float32).min
    out, residual = jax.nn.dot_product_attention(query, key, value, bias, return_residual=True)
    mine = attention(query, key, value, bias)
    check(np.asarray(out), mine.out)
    check(mine.out[0, 1, 0], value[0, :, 0].astype(np.float64).mean(0), np.float32)
    np.testing.assert_allclose(np.asarray(residual), mine.residual, rtol=1e-6, atol=1e-5)
