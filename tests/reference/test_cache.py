"""The reference of caches: what is stored, where it lies, and attention over it."""

import ml_dtypes
import numpy as np
import pytest

from wgattn._reference import attention
from wgattn._reference_cache import (
    blocks,
    cached_attention,
    dequantise,
    gather,
    quantise,
    ring_positions,
    ring_slots,
)

FP8 = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize(("dtype", "step"), [(np.int8, 127), (ml_dtypes.int4, 7)])
@pytest.mark.parametrize("H", [1, 5, 32, 33, 80])
def test_whole_numbers_come_back_within_half_a_step(dtype, step, H):
    x = normal(2, 3, 2, H)
    stored, scales = quantise(x, dtype)
    assert scales.shape == (2, 3, 2, blocks(H, dtype))
    assert scales.dtype == np.float32
    back = dequantise(stored, scales, H)
    width = 32 if step == 7 else H
    for first in range(0, H, width):
        part = x[..., first : first + width]
        half = np.abs(part).max(-1, keepdims=True) / step / 2
        assert (np.abs(back[..., first : first + width] - part) <= half * (1 + 1e-5)).all()


def test_halves_are_rounded_to_even():
    stored, scales = quantise(np.array([[127, 0.5, 1.5, -2.5, -0.5]]), np.int8)
    assert stored.tolist() == [[127, 0, 2, -2, 0]]
    assert scales.tolist() == [[1]]
    stored, scales = quantise(np.array([[7, 0.5, 1.5, -2.5]]), ml_dtypes.int4)
    assert dequantise(stored, scales, 4).tolist() == [[7, 0, 2, -2]]


def test_int4_lies_two_a_byte_low_nibble_first():
    stored, scales = quantise(np.array([[7, -7, 1, 0, *([0] * 28), 14]]), ml_dtypes.int4)
    assert stored.dtype == np.uint8
    assert stored.shape == (1, 32)
    assert stored[0, :3].tolist() == [0x97, 0x01, 0]
    assert stored[0, 16] == 0x07
    assert scales.tolist() == [[1, 2]]


@pytest.mark.parametrize("dtype", [np.int8, ml_dtypes.int4])
def test_a_row_of_zeros_has_scale_0_and_stores_0(dtype):
    stored, scales = quantise(np.zeros((1, 40)), dtype)
    assert not stored.any()
    assert not scales.any()
    assert not dequantise(stored, scales, 40).any()


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_makes_its_block_nan(wild):
    x = np.ones((2, 64))
    x[0, 40] = wild
    back = dequantise(*quantise(x, np.int8), 64)
    assert np.isnan(back[0]).all()
    assert np.allclose(back[1], 1)
    back = dequantise(*quantise(x, ml_dtypes.int4), 64)
    assert np.isnan(back[0, 32:]).all()
    assert np.allclose(back[0, :32], 1)
    assert np.allclose(back[1], 1)


@pytest.mark.parametrize("dtype", FP8)
def test_fp8_saturates(dtype):
    most = float(ml_dtypes.finfo(dtype).max)
    stored, scales = quantise(np.array([1e9, -1e9, np.inf, -np.inf, most, 0.0, np.nan]), dtype)
    assert scales is None
    assert stored.dtype == dtype
    back = dequantise(stored, None, 7)
    assert back[:6].tolist() == [most, -most, most, -most, most, 0]
    assert np.isnan(back[6])


@pytest.mark.parametrize("dtype", FP8)
def test_every_fp8_value_comes_back(dtype):
    every = np.arange(256, dtype=np.uint8).view(dtype)
    finite = every[np.isfinite(every.astype(np.float32))]
    stored, _ = quantise(finite.astype(np.float32), dtype)
    assert (stored.view(np.uint8) == finite.view(np.uint8)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_floats_are_cast_and_padding_is_left_out(dtype):
    x = normal(2, 3)
    stored, scales = quantise(x, dtype)
    padded = np.concatenate([stored, np.full((2, 1), np.nan, dtype)], axis=-1)
    assert scales is None
    assert (dequantise(padded, None, 3) == x.astype(np.float32).astype(dtype).astype(np.float64)).all()


@pytest.mark.parametrize("pinned", [0, 1, 3, 5])
def test_ring_positions_are_those_that_writing_token_after_token_leaves(pinned):
    held = np.full(5, -1)
    for length in range(20):
        assert ring_positions([length], 5, pinned)[0].tolist() == held.tolist()
        if pinned < 5 or length < 5:
            held[ring_slots(length, 5, pinned)] = length


def test_gather_of_pages():
    pool = np.arange(5 * 2 * 3).reshape(5, 2, 3)
    pages = np.array([[3, 0, -1], [4, -1, -1]])
    keys, positions = gather(pool, [3, 2], pages=pages)
    assert (keys[0, :4] == np.concatenate([pool[3], pool[0]])).all()
    assert (keys[1, :2] == pool[4]).all()
    assert positions.tolist() == [[0, 1, 2, -1, -1, -1], [0, 1, -1, -1, -1, -1]]
    assert not keys[0, 4:].any()


@pytest.mark.parametrize("T", [1, 3])
def test_the_last_query_sits_at_the_last_token(T):
    q, k, v = normal(2, T, 4, 8), normal(2, 9, 2, 8, seed=1), normal(2, 9, 2, 8, seed=2)
    lengths = np.array([9, 5])
    k[1, 5:] = v[1, 5:] = np.nan
    whole = attention(q, k, v, is_causal=True, key_value_seq_lengths=lengths, query_offset=lengths - T)
    found = cached_attention(q, k, v, lengths)
    np.testing.assert_allclose(found.out, whole.out, rtol=1e-12)
    np.testing.assert_allclose(found.residual, whole.residual, rtol=1e-12)


def test_a_sequence_without_tokens_is_0_and_its_residual_minus_infinity_or_the_sink():
    q, kv = normal(2, 1, 2, 4), np.full((2, 3, 1, 4), np.nan)
    found = cached_attention(q, kv, kv, np.array([0, 0]))
    assert not found.out.any()
    assert np.isneginf(found.residual).all()
    found = cached_attention(q, kv, kv, np.array([0, 0]), sinks=np.array([1.0, 2.0]))
    assert not found.out.any()
    assert found.residual.tolist() == [[[1, 2]], [[1, 2]]]


@pytest.mark.parametrize("pinned", [0, 2])
def test_a_ring_is_the_window_of_the_whole_sequence(pinned):
    L, C, T = 23, 8, 1
    k, v, q = normal(1, L, 2, 4), normal(1, L, 2, 4, seed=1), normal(1, T, 2, 4, seed=2)
    ring_k, ring_v = np.zeros((2, 1, C, 2, 4))
    for j in range(L):
        ring_k[:, ring_slots(j, C, pinned)], ring_v[:, ring_slots(j, C, pinned)] = k[:, j], v[:, j]
    (keys, at), (values, _) = (gather(x, [L], ring=pinned) for x in (ring_k, ring_v))
    found = cached_attention(q, keys, values, [L], positions=at)
    j = np.arange(L)
    seen = (j < pinned) | (j >= L - (C - pinned))
    np.testing.assert_allclose(found.out, attention(q, k, v, mask=seen).out, rtol=1e-12)
    slots = cached_attention(q, ring_k, ring_v, [L], positions=ring_positions([L], C, pinned))
    np.testing.assert_allclose(slots.out, found.out, rtol=1e-12)
    whole = cached_attention(q, k, v, [L], window=C - pinned, pinned=pinned)
    np.testing.assert_allclose(whole.out, found.out, rtol=1e-12)
