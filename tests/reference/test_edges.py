"""The reference at the contract's edges: cases that are small enough to be worked out by hand, and rules of its own."""

import math
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from wgattn import _reference
from wgattn._reference import EMPTY_RESIDUAL, attention

CAUSAL_FROM = {0: [1, 2, 3], 2: [3, 4, 5], -1: [0, 1, 2], 9: [5, 5, 5], -9: [0, 0, 0]}


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def qkv(B=2, T=3, S=5, N=4, K=2, H=4, Hv=3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return normal(B, T, N, H), normal(B, S, K, H, seed=1), normal(B, S, K, Hv, seed=2)


def counted(**options) -> np.ndarray:
    """How many keys each row of T = 3 keeps of S = 5, read off the residual of zero logits."""
    residual = attention(np.zeros((1, 3, 1, 2)), np.zeros((1, 5, 1, 2)), np.zeros((1, 5, 1, 2)), **options).residual
    return np.round(np.exp(residual[0, :, 0])).astype(int)


def test_two_keys_by_hand():
    query, key = np.array([[[2.0]]]), np.array([[[1.0]], [[0.5]]])
    value = np.array([[[10.0]], [[20.0]]])
    result = attention(query, key, value, scale=2.0)  # logits 4 and 2
    first = 1 / (1 + math.exp(-2))
    assert result.out[0, 0, 0] == pytest.approx(10 * first + 20 * (1 - first), rel=1e-15)
    assert result.residual[0, 0] == pytest.approx(4 + math.log1p(math.exp(-2)), rel=1e-15)


def test_softcap_comes_after_scale_and_before_bias():
    one = np.ones((1, 1, 1))
    result = attention(one * 3, one, one, bias=np.array([[0.25]]), scale=4.0, softcap=5.0)
    assert result.residual[0, 0] == pytest.approx(5 * math.tanh(12 / 5) + 0.25, rel=1e-15)


def test_a_sink_joins_the_denominator_once():
    one = np.ones((1, 1, 1))
    result = attention(one, one, 7 * one, scale=1.0, sinks=np.array([2.0]))
    share = math.e / (math.e + math.e**2)
    assert result.out[0, 0, 0] == pytest.approx(7 * share, rel=1e-15)
    assert result.residual[0, 0] == pytest.approx(math.log(math.e + math.e**2), rel=1e-15)


def test_heads_are_repeated_not_tiled():
    query, key, value = qkv()
    whole = attention(query, key, value).out
    for n in range(4):
        alone = attention(query[:, :, n : n + 1], key[:, :, n // 2 : n // 2 + 1], value[:, :, n // 2 : n // 2 + 1]).out
        np.testing.assert_allclose(whole[:, :, n : n + 1], alone, rtol=1e-14)


@pytest.mark.parametrize("mask", [np.zeros((5,), bool), np.zeros((2, 1, 3, 1), bool)], ids=["keys", "rows"])
def test_empty_rows_are_the_mean_of_all_values(mask: np.ndarray):
    query, key, value = qkv()
    value[0, 4, 1, 2] = np.nan
    result = attention(query, key, value, mask=mask, key_value_seq_lengths=np.array([2, 0]))
    mean = np.repeat(value.mean(1), 2, axis=1)[:, None]
    np.testing.assert_allclose(result.out, np.broadcast_to(mean, result.out.shape), rtol=1e-14)
    assert (result.residual == EMPTY_RESIDUAL).all()


def test_empty_rows_with_a_sink_are_zero_and_the_sink():
    query, key, value = qkv()
    sinks = normal(4)
    result = attention(query, key, value, bias=np.full((1, 5), -np.inf), sinks=sinks)
    assert (result.out == 0).all()
    assert (result.residual == sinks).all()


def test_empty_rows_of_a_cache_are_zero():
    query, key, value = qkv()
    value[1] = np.nan
    result = attention(query, key, value, key_value_seq_lengths=np.array([5, 0]), empty="zero")
    assert (result.out[1] == 0).all()
    assert (result.residual[1] == -np.inf).all()
    assert np.isfinite(result.residual[0]).all()


@pytest.mark.parametrize("sinks", [None, np.arange(4.0)])
def test_rows_past_the_query_length_are_zero(sinks: np.ndarray | None):
    query, key, value = qkv()
    value[1] = np.nan
    query[0, 2] = np.nan
    result = attention(query, key, value, query_seq_lengths=np.array([2, -4]), sinks=sinks)
    assert (result.out[0, 2:] == 0).all()
    assert (result.out[1] == 0).all()
    right = EMPTY_RESIDUAL if sinks is None else sinks
    assert (result.residual[0, 2:] == right).all()
    assert (result.residual[1] == right).all()
    assert np.isfinite(result.out[0, :2]).all()


def test_lengths_are_clamped():
    query, key, value = qkv()
    plain = attention(query, key, value)
    longer = attention(query, key, value, query_seq_lengths=np.array([3, 99]), key_value_seq_lengths=np.array([99, 5]))
    assert (plain.out == longer.out).all()
    below = attention(query, key, value, key_value_seq_lengths=np.array([-7, 5]))
    assert (below.residual[0] == EMPTY_RESIDUAL).all()


@pytest.mark.parametrize("offset", CAUSAL_FROM)
def test_causal_is_top_left_with_an_offset(offset: int):
    right = CAUSAL_FROM[offset]
    assert counted(is_causal=True, query_offset=offset).tolist() == right
    assert counted(is_causal=True, query_offset=np.array([offset], np.int32)).tolist() == right
    assert counted(is_causal=True, query_offset=np.int32(offset)).tolist() == right


@pytest.mark.parametrize(
    ("window", "offset", "right"),
    [
        (1, 0, [2, 3, 3]),
        ((1, 0), 0, [1, 2, 2]),
        ((0, 2), 0, [3, 3, 3]),
        ((2, -1), 0, [0, 1, 2]),
        ((-1, 3), 0, [3, 3, 2]),
        ((-2, 1), 0, [0, 0, 0]),
        ((1, 1), 3, [3, 2, 1]),
        (np.int64(1), 0, [2, 3, 3]),
    ],
)
def test_windows_of_every_sign(window, offset: int, right: list[int]):
    assert counted(local_window_size=window, query_offset=offset).tolist() == right


def test_window_and_causal_both_hold():
    assert counted(local_window_size=(1, 4), is_causal=True).tolist() == [1, 2, 2]


def test_an_offset_for_each_batch_entry():
    query, key, value = qkv()
    both = attention(query, key, value, is_causal=True, query_offset=np.array([0, 2], np.int32))
    for b, offset in enumerate((0, 2)):
        alone = attention(query[b], key[b], value[b], is_causal=True, query_offset=offset)
        np.testing.assert_array_equal(both.out[b], alone.out)


def test_nan_at_masked_keys_reaches_nothing():
    query, key, value = qkv()
    keep = np.array([True, False, True, False, True])
    clean = attention(query, key, value, mask=keep)
    key[:, 1], key[:, 3] = np.nan, np.inf
    value[:, [1, 3]] = np.nan
    again = attention(query, key, value, mask=keep)
    np.testing.assert_array_equal(clean.out, again.out)
    np.testing.assert_array_equal(clean.residual, again.residual)


def test_nan_past_the_length_reaches_nothing():
    query, key, value = qkv()
    lengths = np.array([3, 2], np.int32)
    clean = attention(query, key, value, key_value_seq_lengths=lengths)
    key[0, 3:], key[1, 2:] = np.nan, -np.inf
    value[0, 3:], value[1, 2:] = np.nan, np.inf
    np.testing.assert_array_equal(clean.out, attention(query, key, value, key_value_seq_lengths=lengths).out)


def test_nan_in_kept_values_takes_its_column():
    query, key, value = qkv()
    value[0, 1, 1, 2] = np.nan
    value[1, 0, 0, 0] = np.inf
    out = attention(query, key, value, is_causal=True).out
    where = np.argwhere(~np.isfinite(out)).tolist()
    column = [[0, t, n, 2] for t in (1, 2) for n in (2, 3)]
    assert where == column + [[1, t, n, 0] for t in range(3) for n in (0, 1)]


def test_bias_of_minus_infinity_is_a_mask_and_a_finite_one_is_not():
    query, key, value = qkv()
    bias = np.where(np.arange(5) % 2 == 0, 0.0, -np.inf)
    np.testing.assert_array_equal(
        attention(query, key, value, bias=bias).out, attention(query, key, value, mask=np.arange(5) % 2 == 0).out
    )
    low = np.where(np.arange(5) < 2, float(np.finfo(np.float32).min), -np.inf)
    out = attention(query, key, value, bias=low).out
    np.testing.assert_allclose(out[0, 0, 0], value[0, :2, 0].mean(0), rtol=1e-12)


@pytest.mark.parametrize("sinks", [None, np.arange(4.0)])
def test_no_keys(sinks: np.ndarray | None):
    query, _, _ = qkv()
    result = attention(query, np.ones((2, 0, 2, 4)), np.ones((2, 0, 2, 3)), sinks=sinks, query_seq_lengths=np.ones(2))
    assert result.out.shape == (2, 3, 4, 3)
    assert (result.out == 0).all()
    assert (result.residual == (-np.inf if sinks is None else sinks)).all()


@pytest.mark.parametrize("sizes", [{"B": 0}, {"T": 0}, {"N": 0, "K": 0}, {"N": 0}])
def test_empty_axes(sizes: dict[str, int]):
    query, key, value = qkv(**sizes)
    result = attention(query, key, value)
    assert result.out.shape == (*query.shape[:3], 3)
    assert result.residual.shape == query.shape[:3]


@pytest.mark.parametrize("rows", [slice(1, 3), np.array([2, 0]), slice(None, None, 2)])
def test_chosen_rows_are_those_of_the_whole(rows):
    query, key, value = qkv()
    options = {
        "bias": normal(2, 4, 3, 5),
        "mask": normal(2, 1, 3, 5, seed=5) > -1,
        "is_causal": True,
        "query_offset": np.array([1, 2]),
        "query_seq_lengths": np.array([2, 3]),
        "rope": SimpleNamespace(base=100.0, rotary_dim=2, style="half", scaling=None),
    }
    whole, part = attention(query, key, value, **options), attention(query, key, value, **options, rows=rows)
    np.testing.assert_array_equal(part.out, whole.out[:, rows])
    np.testing.assert_array_equal(part.residual, whole.residual[:, rows])


def test_blocks_of_rows_meet(monkeypatch: pytest.MonkeyPatch):
    query, key, value = normal(1, 70, 2, 4), normal(1, 70_000, 1, 4, seed=1), normal(1, 70_000, 1, 2, seed=2)
    blocked = attention(query, key, value, local_window_size=(3, 40_000))
    for row in (0, 28, 29, 30, 69):
        alone = attention(query, key, value, local_window_size=(3, 40_000), rows=slice(row, row + 1))
        np.testing.assert_allclose(blocked.out[:, row], alone.out[:, 0], rtol=1e-12)


def test_a_mask_may_be_a_function_of_the_rows():
    query, key, value = qkv()
    ids = np.array([[0, 0, 1], [2, 1, 1]]), np.array([0, 1, 1, 2, 2])
    offset = np.array([1, 0])
    dense = (ids[0][:, None, :, None] == ids[1]) & (
        np.arange(5) // 2 == (np.arange(3) + offset[:, None])[:, None, :, None] // 2
    )
    result = attention(
        query,
        key,
        value,
        mask=lambda rows, positions: _reference.segments(rows, *ids) & _reference.chunked(positions, 5, 2),
        query_offset=offset,
    )
    np.testing.assert_array_equal(result.out, attention(query, key, value, mask=dense).out)


def test_dense_masks():
    p = np.array([0, 1, 2])
    assert _reference.causal(p, 4, 1)[0, 0].sum(-1).tolist() == [2, 3, 4]
    assert _reference.causal(p, 4, np.array([1, -1]))[:, 0].sum(-1).tolist() == [[2, 3, 4], [0, 1, 2]]
    assert _reference.local(p, 4, 1, 0, 2)[0, 0].astype(int).tolist() == [[0, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 1]]
    assert _reference.prefix(4, np.array([1, 3]))[:, 0, 0].sum(-1).tolist() == [1, 3]
    assert _reference.chunked(np.array([-1, 1, 2]), 4, 2)[0, 0].astype(int).tolist() == [
        [0, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 1, 1],
    ]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.int8])
def test_inputs_of_any_dtype_are_read_exactly(dtype):
    arrays = [(x * 3).astype(dtype) for x in qkv()]
    np.testing.assert_array_equal(attention(*arrays).out, attention(*(x.astype(np.float64) for x in arrays)).out)


def test_large_scores_stay_finite():
    query, key, value = (300 * x.astype(np.float16) for x in qkv())
    assert np.isfinite(attention(query, key, value).out).all()


def test_what_does_not_fit_raises():
    query, key, value = qkv()
    with pytest.raises(ValueError, match="do not fit"):
        attention(query[:, :, :3], key, value)
    with pytest.raises(ValueError, match="do not fit"):
        attention(query, key[..., :2], value)


@pytest.mark.parametrize("sinks", [None, np.array([0.3, -1.0, 2.0, 0.0])])
def test_partial_results_merge_into_the_whole(sinks: np.ndarray | None):
    query, key, value = qkv()
    lengths = np.array([5, 0])
    whole = attention(query, key, value, key_value_seq_lengths=lengths, sinks=sinks, empty="zero")
    parts = [
        attention(query, key[:, cut], value[:, cut], key_value_seq_lengths=lengths - cut.start, empty="zero")
        for cut in (slice(0, 2), slice(2, 5))
    ]
    merged = _reference.merge([p.out for p in parts], [p.residual for p in parts], sinks)
    np.testing.assert_allclose(merged.out, whole.out, rtol=1e-12)
    np.testing.assert_allclose(merged.residual, whole.residual, rtol=1e-12)


def test_merging_ignores_what_stands_beside_a_residual_of_minus_infinity():
    out, residual = normal(1, 2, 1, 3), normal(1, 2, 1)
    merged = _reference.merge([np.full_like(out, np.nan), out], [np.full_like(residual, -np.inf), residual])
    np.testing.assert_array_equal(merged.out, out)
    np.testing.assert_array_equal(merged.residual, residual)
