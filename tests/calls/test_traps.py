"""Masks, windows, heads, caps and sinks: a test for each kind of mistake that other attention code made, with the
report that it comes from."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from tests.calls.measured import attended, measured, normal, qkv
from tests.tolerance import check
from wgattn import nn

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("poisoned")]

LOWEST = np.finfo(np.float32).min


def test_padding_rows_all_false():
    """https://github.com/pytorch/pytorch/issues/103749"""
    query, key, value = qkv(T=6, S=10)
    mask = np.ones((6, 10), bool)
    whole = measured(query, key, value, mask=mask)
    mask[5] = False
    out = measured(query, key, value, mask=mask)
    check(out[:, :5], whole[:, :5], np.float32)
    check(out[0, 5], value[0].astype(np.float64).mean(0), np.float32)


def test_bool_and_additive_masks_agree_on_live_rows():
    """https://github.com/pytorch/pytorch/issues/103963"""
    query, key, value = qkv()
    mask = np.zeros((8, 8), bool)
    mask[:4, :4] = True
    out = measured(query, key, value, mask=mask)
    assert np.isfinite(out).all()
    added = measured(query, key, value, bias=np.where(mask, 0, LOWEST).astype(np.float32))
    check(added[:, :4], out[:, :4], np.float32)


@pytest.mark.parametrize("T", [1, 6, 40])
def test_a_row_of_the_lowest_bias_is_the_mean(T: int):
    """https://github.com/pytorch/pytorch/issues/109517"""
    query, key, value = qkv(T=T, S=10)
    bias = np.zeros((T, 10), np.float32)
    bias[-1] = LOWEST
    out = measured(query, key, value, bias=bias)
    check(out[0, -1], value[0].astype(np.float64).mean(0), np.float32)


def test_empty_rows_do_not_depend_on_the_batch_size():
    """https://github.com/pytorch/pytorch/issues/163997"""
    query, key, value = qkv(B=2)
    bias = np.zeros((8, 8), np.float32)
    bias[2:4] = -np.inf
    both = measured(query, key, value, bias=bias)
    for b in range(2):
        check(measured(query[b], key[b], value[b], bias=bias), both[b], np.float32)


def test_nan_at_a_masked_key():
    """https://github.com/pytorch/pytorch/issues/101967 (K reaches nothing; V may, as 0·NaN, and stays finite)"""
    query, key, value = qkv()
    mask = np.arange(8) != 1
    clean = measured(query, key, value, mask=mask)
    key[:, 1] = np.nan
    check(measured(query, key, value, mask=mask), clean, np.float32)


@pytest.mark.parametrize("T", [1, 8, 32])
@pytest.mark.parametrize("mask", [np.zeros((1, 1, 1, 1), bool), np.zeros((1, 1, 1, 8), bool)], ids=["one", "keys"])
def test_an_empty_row_is_the_same_in_every_variant(T: int, mask: np.ndarray):
    """https://github.com/ml-explore/mlx/pull/2608 and https://github.com/ml-explore/mlx/pull/2406"""
    query, key, value = qkv(T=T, N=4)
    out = measured(query, key, value, mask=mask)
    mean = np.repeat(value[0].astype(np.float64).mean(0), 2, axis=0)
    check(out[0], np.broadcast_to(mean, out[0].shape), np.float32)


def test_a_denominator_of_zero():
    """https://github.com/iree-org/iree/pull/24178: every tile but the last is masked, then every tile is"""
    query, key, value = qkv(T=3, S=200)
    measured(query, key, value, mask=np.arange(200) == 199)
    out = measured(query, key, value, mask=np.zeros(200, bool), sinks=np.full(2, -1000.0, np.float32))
    assert (out == 0).all()


def test_no_infinity_with_half_of_the_keys_masked():
    """https://github.com/jax-ml/jax/issues/37422"""
    query, key, value = qkv(T=5, S=7, N=6, K=3, H=11)
    mask = np.random.default_rng(3).random((5, 7)) < 0.5
    out, residual = nn.dot_product_attention(query, key, value, mask=mask, return_residual=True)
    assert np.isfinite(np.asarray(out)).all()
    assert np.isfinite(np.asarray(residual)).all()


@pytest.mark.parametrize("T", [1, 5])
def test_nan_in_unused_cache_slots(T: int):
    """https://github.com/Dao-AILab/flash-attention/issues/1745 and https://github.com/Dao-AILab/flash-attention/issues/2374"""
    query, key, value = qkv(T=T, S=128)
    lengths = np.array([32], np.int32)
    clean = measured(query, key, value, key_value_seq_lengths=lengths)
    key[:, 32:], value[:, 32:] = np.nan, np.nan
    check(measured(query, key, value, key_value_seq_lengths=lengths), clean, np.float32)


@pytest.mark.parametrize("S", [1, 13, 65, 131])
def test_stale_memory_behind_the_last_key(S: int):
    """https://github.com/Dao-AILab/flash-attention/issues/1395: memory is poisoned, S is no multiple of a tile"""
    measured(*qkv(T=9, S=S, H=20))


def test_parts_without_keys_are_neutral():
    """https://github.com/flashinfer-ai/flashinfer/issues/4484 and https://github.com/Dao-AILab/flash-attention/pull/978

    One query over many keys is worked on in parts; a length leaves the later parts without a key.
    """
    query, key, value = qkv(T=1, S=4096, H=16)
    key[:, 5:], value[:, 5:] = np.nan, np.nan
    measured(query, key, value, key_value_seq_lengths=np.array([5], np.int32))


def test_no_shader_tests_a_value_against_itself():
    """https://github.com/gpuweb/gpuweb/issues/2270: fast-math folds x != x and x - x"""
    shaders = sorted((Path(__file__).parents[2] / "wgsl").rglob("*.wgsl"))
    assert shaders
    for path in shaders:
        code = re.sub(r"//.*", "", path.read_text())
        assert not re.search(r"\b(\w+)\s*(!=|==)\s*\1\b(?!\s*[.(\[])", code), path.name


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_infinite_options_raise(wrong: float):
    """https://github.com/gpuweb/gpuweb/pull/3425 and https://github.com/tinygrad/tinygrad/pull/1268"""
    query, key, value = qkv()
    with pytest.raises(ValueError, match="scale"):
        nn.dot_product_attention(query, key, value, scale=wrong)
    with pytest.raises(ValueError, match="softcap"):
        nn.dot_product_attention(query, key, value, softcap=wrong)


@pytest.mark.parametrize(("offset", "first", "second"), [(None, 1, 2), (0, 1, 2), (3, 4, 5)])
def test_causal_is_top_left_unless_an_offset_is_given(offset: int | None, first: int, second: int):
    """https://github.com/Dao-AILab/flash-attention/issues/517 and https://github.com/Dao-AILab/flash-attention/issues/282"""
    query, key, value = qkv(T=2, S=5)
    out = measured(query, key, value, is_causal=True, query_offset=offset)
    for row, seen in enumerate((first, second)):
        check(attended(query[:, row : row + 1], key[:, :seen], value[:, :seen]), out[:, row : row + 1], np.float32)


def test_causal_with_more_keys_than_queries():
    """https://github.com/ml-explore/mlx/issues/2835"""
    query, key, value = qkv(T=32, S=1024)
    check(measured(query, key, value, is_causal=True), attended(query, key[:, :32], value[:, :32], is_causal=True))


def test_chunked_prefill_sees_the_cached_keys():
    """https://github.com/gittensor-ai-lab/sparkinfer/issues/3"""
    query, key, value = qkv(T=16, S=16)
    whole = measured(query, key, value, is_causal=True)
    check(measured(query[:, 12:], key, value, is_causal=True, query_offset=12), whole[:, 12:], np.float32)


def test_a_mask_beside_a_cache_is_not_square():
    """https://github.com/meta-llama/llama/pull/900"""
    query, key, value = qkv(T=3, S=8)
    out = measured(query, key, value, is_causal=True, query_offset=np.int32(5))
    check(measured(query, key, value, mask=np.tril(np.ones((3, 8), bool), 5)), out, np.float32)


def test_a_left_window_without_causal_does_not_see_the_future():
    """https://github.com/jax-ml/jax/pull/39576"""
    query, key, value = qkv(T=20, S=20)
    out = measured(query, key, value, local_window_size=(3, 0))
    key[:, 10:], value[:, 10:] = 100, 100
    check(attended(query, key, value, local_window_size=(3, 0))[:, :10], out[:, :10], np.float32)


def test_a_window_without_a_mask_is_not_ignored():
    """https://github.com/jax-ml/jax/issues/32300"""
    query, key, value = qkv(T=2048, S=2080, N=1, K=1, H=8)
    wide = measured(query, key, value, local_window_size=(0, 31))
    narrow = measured(query, key, value, local_window_size=(0, 0))
    check(narrow, value[:, :2048], np.float32)
    assert (np.abs(wide - narrow).max(-1) > 1e-3).all()


@pytest.mark.parametrize(("window", "most"), [((8, 0), 9), (8, 17), ((0, 0), 1)])
def test_a_window_counts_itself(window, most: int):
    """https://github.com/huggingface/transformers/issues/39408 and https://github.com/zml/zml/pull/763"""
    zeros = np.zeros((1, 32, 1, 16), np.float32)
    _, residual = nn.dot_product_attention(zeros, zeros, zeros, local_window_size=window, return_residual=True)
    assert round(float(np.exp(np.asarray(residual)).max())) == most


@pytest.mark.parametrize("window", [(2, 0), (1, 3), (-1, 2), (70, -66)])
def test_a_window_smaller_than_a_tile(window: tuple[int, int]):
    """https://github.com/flagos-ai/FlagAttention/issues/25"""
    query, key, value = qkv(T=77, S=77)
    i, j = np.arange(77)[:, None], np.arange(77)
    dense = (i - window[0] <= j) & (j <= i + window[1])
    check(measured(query, key, value, local_window_size=window), measured(query, key, value, mask=dense), np.float32)


@pytest.mark.parametrize("T", [1, 5, 40])
def test_key_heads_are_repeated_not_tiled(T: int):
    """https://github.com/ekzhang/jax-js/pull/180 and https://github.com/apple/axlearn/pull/842"""
    query, key, value = qkv(T=T, S=5, N=4, K=2)
    value[:, :, 0], value[:, :, 1] = 1, 2
    out = measured(query, key, value)
    np.testing.assert_allclose(out[0, :, :, 0], np.broadcast_to([1, 1, 2, 2], (T, 4)), rtol=1e-6)


@pytest.mark.parametrize(("N", "K"), [(12, 12), (32, 8), (28, 4)])
def test_every_key_head_is_used(N: int, K: int):
    """https://github.com/PSAL-POSTECH/ONNXim/pull/34"""
    query, key, value = qkv(T=2, S=5, N=N, K=K)
    value[...] = np.arange(K)[:, None]
    out = measured(query, key, value / K)
    np.testing.assert_allclose(out[0, 0, :, 0] * K, np.repeat(np.arange(K), N // K), rtol=1e-6)


@pytest.mark.parametrize("T", [1, 8])
def test_a_cap_does_not_bring_a_masked_key_back(T: int):
    """https://github.com/onnx/onnx/issues/7865 and https://github.com/onnx/onnx/pull/7867"""
    query, key, value = qkv(T=T)
    value[:, 3] = 1e6
    bias = np.where(np.arange(8) == 3, -np.inf, 0).astype(np.float32)
    assert np.abs(measured(query, key, value, bias=bias, softcap=50.0)).max() < 10


def test_decode_caps_before_it_masks():
    """https://github.com/flashinfer-ai/flashinfer/pull/350"""
    query, key, value = qkv(T=1, S=40, N=8)
    value[:, 23:] = 1e6
    out = measured(query, key, value, softcap=30.0, key_value_seq_lengths=np.array([23], np.int32))
    assert np.abs(out).max() < 10


def test_a_cap_is_not_ignored():
    """https://github.com/sgl-project/sgl-kernel-xpu/pull/491"""
    query, key, value = qkv(H=64)
    outs = [measured(3 * query, 3 * key, value, softcap=cap) for cap in (None, 50.0, 5.0)]
    assert all(np.abs(a - b).max() > 1e-3 for a, b in itertools.pairwise(outs))
    for cap in (0.0, -5.0):
        with pytest.raises(ValueError, match="softcap"):
            nn.dot_product_attention(query, key, value, softcap=cap)


@pytest.mark.parametrize("T", [1, 7, 70])
def test_a_sink_is_counted_once(T: int):
    """https://github.com/microsoft/onnxruntime/pull/25285: many key tiles, and splits of them"""
    measured(*qkv(T=T, S=200, N=4), sinks=np.array([0.0, 3.0, -3.0, 5.5], np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_broadcast_bias_is_the_expanded_one(dtype):
    """https://github.com/microsoft/onnxruntime/issues/26766 and https://github.com/microsoft/onnxruntime/pull/26769"""
    query, key, value = qkv(B=2, T=9, S=11, dtype=dtype)
    bias = normal(1, 1, 9, 11, seed=7, dtype=dtype)
    whole = measured(query, key, value, bias=np.broadcast_to(bias, (2, 2, 9, 11)).copy())
    check(measured(query, key, value, bias=bias), whole.astype(np.float64), dtype)
