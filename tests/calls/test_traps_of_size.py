"""Head dims, precision, sizes, strides and devices: the other half of the mistakes that other attention code made."""

import ml_dtypes
import numpy as np
import pytest

import wgattn
from tests.calls.measured import attended, measured, normal, qkv
from tests.tolerance import check
from wgattn import nn
from wgattn._reference import EMPTY_RESIDUAL, attention

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("poisoned")]


@pytest.mark.parametrize("T", [1, 9])
def test_every_head_dim_is_used(T: int):
    """https://github.com/triton-lang/triton/issues/621"""
    query, key, value = qkv(T=T, H=128)
    query[..., :64] = 0
    value[..., :64] = 0
    assert np.abs(measured(query, key, value)[..., 64:]).max() > 0.1


@pytest.mark.parametrize("H", [40, 72])
def test_head_dims_that_are_no_multiple_of_a_matrix_tile(H: int):
    """https://github.com/ggml-org/llama.cpp/pull/23020"""
    measured(*qkv(T=33, S=48, H=H, dtype=np.float16))


def test_no_square_is_allocated_for_an_odd_head_dim():
    """https://github.com/ml-explore/mlx/issues/3312: T × S float32 scores would be 4.3 GB"""
    query, key, value = qkv(T=65_536, S=16_384, N=1, K=1, H=192)
    lengths = np.array([3], np.int32)
    out = attended(query, key, value, key_value_seq_lengths=lengths)
    rows = np.array([0, 1, 40_000, 65_535])
    check(out[:, rows], attention(query, key, value, key_value_seq_lengths=lengths, rows=rows).out)


@pytest.mark.parametrize("T", [1, 4])
def test_value_head_dims_of_their_own(T: int):
    """https://github.com/microsoft/onnxruntime/issues/28357"""
    measured(*qkv(T=T, S=12, H=256, Hv=512))


@pytest.mark.parametrize("S", [32, 33, 40, 64])
@pytest.mark.parametrize("T", [1, 6])
def test_no_key_is_left_out(S: int, T: int):
    """https://github.com/microsoft/onnxruntime/pull/28520"""
    value = np.broadcast_to(np.eye(S, dtype=np.float32)[None, :, None], (1, S, 2, S)).copy()
    out = attended(np.zeros((1, T, 2, 16), np.float32), normal(1, S, 2, 16), value)
    np.testing.assert_allclose(out, np.full_like(out, 1 / S), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("T", [1, 20])
def test_scores_above_the_largest_float16(dtype, T: int):
    """https://github.com/microsoft/onnxruntime/pull/24723"""
    query, key, value = qkv(T=T, S=20, H=64, dtype=dtype)
    query[...], key[...] = 300, -300
    key[:, 7] = 300
    out = measured(query, key, value, scale=1.0)
    check(out, np.broadcast_to(value[:, 7:8], out.shape), dtype)


def test_large_activations():
    """https://github.com/ggml-org/llama.cpp/issues/12441"""
    query, key, value = qkv(T=16, S=70, H=64, dtype=np.float16)
    measured(query * np.float16(8), key * np.float16(8), value)


def test_scores_at_the_largest_float16():
    """https://github.com/ml-explore/mlx-swift/pull/334"""
    query, key, value = qkv(T=4, S=6, H=1, Hv=8, dtype=np.float16)
    query[...], key[...] = 256, 200
    key[:, [1, 4]] = 255.875  # scores of 65,504
    out = measured(query, key, value, scale=1.0)
    check(out, np.broadcast_to(value[:, [1, 4]].astype(np.float64).mean(1, keepdims=True), out.shape), np.float16)


def repeated(x: np.ndarray, times: int) -> np.ndarray:
    return np.tile(x, (times, 1, 1, 1))


@pytest.mark.parametrize(("times", "B", "T", "N"), [(10_000, 7, 1, 1), (1_720, 7, 2, 2)])
def test_more_workgroups_than_a_dimension_holds(times: int, B: int, T: int, N: int):
    """https://github.com/ggml-org/llama.cpp/pull/19965 and https://github.com/Dao-AILab/flash-attention/pull/1500"""
    arrays = qkv(B=B, T=T, S=3, N=N, K=N, H=4)
    out = attended(*(repeated(x, times) for x in arrays))
    check(out[:B], attention(*arrays).out)
    assert (out == repeated(out[:B], times)).all()


def test_more_rows_than_a_dimension_holds():
    """https://github.com/microsoft/onnxruntime/pull/21687"""
    measured(*qkv(T=65_601, S=2, N=1, K=1, H=4))


def test_keys_above_the_default_binding_size():
    """https://github.com/gpuweb/gpuweb/pull/1163, https://github.com/apache/tvm/pull/16108 and
    https://github.com/gfx-rs/wgpu/issues/6221: 129 MiB of keys"""
    query, key, value = qkv(T=1, S=129 * 4096, N=1, K=1, H=64, Hv=4)
    measured(query, key, value)


def test_lengths_of_zero():
    """https://github.com/pytorch/pytorch/issues/81077"""
    query, key, value = qkv(B=3, T=9, S=11)
    lengths = np.array([4, 0, 11], np.int32)
    out = measured(query, key, value, key_value_seq_lengths=lengths)
    check(out[1], np.broadcast_to(value[1].astype(np.float64).mean(0), out[1].shape), np.float32)
    out = measured(query, key, value, query_seq_lengths=lengths)
    assert (out[1] == 0).all()
    _, residual = nn.dot_product_attention(query, key, value, query_seq_lengths=lengths, return_residual=True)
    assert (np.asarray(residual)[1] == np.float32(EMPTY_RESIDUAL)).all()


@pytest.mark.parametrize("sizes", [{"B": 0}, {"T": 0}, {"S": 0}, {"N": 0}], ids=str)
@pytest.mark.parametrize("sinks", [False, True])
def test_axes_of_length_zero(sizes: dict[str, int], sinks: bool):
    """https://github.com/pygfx/pygfx/issues/812"""
    query, key, value = qkv(**sizes)
    options = {"sinks": np.arange(query.shape[2], dtype=np.float32)} if sinks else {}
    out, residual = nn.dot_product_attention(query, key, value, return_residual=True, **options)
    right = attention(query, key, value, **options)
    check(np.asarray(out), right.out)
    np.testing.assert_array_equal(np.asarray(residual), right.residual)


def test_views_and_one_buffer_thrice():
    """https://github.com/ggml-org/llama.cpp/pull/19850"""
    x = normal(2, 2, 9, 16)
    lifted = wgattn.asarray(x).swapaxes(1, 2)
    right = attention(*[x.swapaxes(1, 2)] * 3).out
    check(np.asarray(nn.dot_product_attention(lifted, lifted, lifted)), right)
    last = wgattn.asarray(x)[:, :, 1:].swapaxes(1, 2)
    right = attention(x[:, :, 1:].swapaxes(1, 2), *[x.swapaxes(1, 2)] * 2).out
    check(np.asarray(nn.dot_product_attention(last, lifted, lifted)), right)


@pytest.mark.parametrize("T", [1, 20])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rows_in_reverse(T: int, dtype: type):
    """Strides below zero, where kernels count rows in words of several elements."""
    query, key, value = qkv(B=2, T=T, S=70, N=4, K=2, H=32, dtype=dtype)
    lifted = [wgattn.asarray(x)[:, ::-1] for x in (query, key, value)]
    out = nn.dot_product_attention(*lifted, is_causal=True)
    check(np.asarray(out), attention(query[:, ::-1], key[:, ::-1], value[:, ::-1], is_causal=True).out)


@pytest.mark.parametrize("H", [1, 2, 3, 5, 8])
def test_packed_halves_of_any_width(H: int):
    """https://github.com/ggml-org/llama.cpp/pull/21046 and https://github.com/iced-rs/iced/pull/3164"""
    measured(*qkv(B=2, T=3, S=5, H=H, dtype=np.float16))
    measured(*qkv(B=2, T=3, S=5, H=H, dtype=ml_dtypes.bfloat16))


def test_is_enabled_only_where_it_is_used():
    """https://github.com/tinygrad/tinygrad/pull/9163"""
    text = wgattn.jit(nn.dot_product_attention).lower(*qkv()).compile().as_text()
    assert "@compute" in text
    assert "enable f16" not in text
