"""merge_attention: parts of one call are the call, whatever they hold where they keep no key; its gradients."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wgattn
from tests.cases import DTYPES
from tests.tolerance import check, check_residual
from wgattn import nn
from wgattn._reference import EMPTY_RESIDUAL, attention, merge

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("poisoned")]

KEPT = {"return_residual": True, "residual_dtype": np.float32}


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def both(*given: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    out, residual = nn.merge_attention(*given, return_residual=True, **options)
    return np.asarray(out), np.asarray(residual)


def attended(query: Any, key: Any, value: Any, first: int, end: int, **options: Any) -> Any:
    """The part of a call that keys [first, end) give; without any, that of an empty range."""
    return nn.dot_product_attention(query, key[:, first:end], value[:, first:end], **KEPT, **options)


@st.composite
def cuts(draw: st.DrawFn) -> list[int]:
    """0, cuts of 24 keys in order, 24; equal ones are empty parts."""
    return [0, *sorted(draw(st.lists(st.integers(0, 24), max_size=5))), 24]


@given(
    at=cuts(),
    dtype=st.sampled_from(sorted(DTYPES)),
    with_sinks=st.booleans(),
    lengths=st.tuples(*[st.integers(0, 24)] * 2),
    seed=st.integers(0, 2**32 - 1),
)
def test_parts_of_a_call_are_the_call(
    at: list[int], dtype: str, with_sinks: bool, lengths: tuple[int, int], seed: int
) -> None:
    r = np.random.default_rng(seed)
    query, key, value = (
        r.standard_normal(shape, np.float32) for shape in ((2, 3, 4, 16), (2, 24, 2, 16), (2, 24, 2, 16))
    )
    sinks = r.standard_normal(4, np.float32) if with_sinks else None
    parts = []
    for first, end in itertools.pairwise(at):
        here = np.clip(np.array(lengths, np.int32) - first, 0, end - first).astype(np.int32)
        parts.append(attended(query, key, value, first, end, key_value_seq_lengths=here))
    outputs, residuals = ([np.asarray(part[i]) for part in parts] for i in (0, 1))
    stored = [x.astype(DTYPES[dtype]) for x in outputs]
    out, residual = both(stored, residuals, sinks)
    assert out.dtype == DTYPES[dtype]
    check(out, merge(stored, residuals, sinks).out)
    whole = attention(query, key, value, key_value_seq_lengths=np.array(lengths), sinks=sinks, empty="zero")
    check_residual(residual, whole.residual)
    check(both(outputs, residuals, sinks)[0], whole.out)


@pytest.mark.parametrize("kept", ["nothing", "-inf"])
def test_a_part_without_keys_is_neutral(kept: str) -> None:
    """https://github.com/flashinfer-ai/flashinfer/issues/4484"""
    query, kv = normal(2, 3, 4, 16), normal(2, 9, 2, 16, seed=1)
    poison = np.full_like(kv, np.nan)
    empty_out, empty = attended(query, kv, poison, 0, 9, key_value_seq_lengths=np.zeros(2, np.int32))
    assert np.isnan(np.asarray(empty_out)).all()
    assert (np.asarray(empty) == EMPTY_RESIDUAL).all()
    if kept == "-inf":
        empty = np.full((2, 3, 4), -np.inf, np.float32)
    out, residual = attended(query, kv, kv, 0, 9)
    for order in (0, 1):
        outputs, residuals = [out, empty_out], [residual, empty]
        found = both(outputs[::-1] if order else outputs, residuals[::-1] if order else residuals)
        np.testing.assert_array_equal(found[0], np.asarray(out))
        np.testing.assert_array_equal(found[1], np.asarray(residual))


def test_all_parts_without_keys_are_0_at_every_count_and_shape() -> None:
    """https://github.com/ml-explore/mlx/pull/2608"""
    for P in (1, 2, 7):
        for T in (1, 8, 33):
            out, residual = both(np.full((P, T, 2, 5), np.inf, np.float16), np.full((P, T, 2), -np.inf, np.float32))
            assert out.shape == (T, 2, 5)
            assert not out.any()
            assert np.isneginf(residual).all()


def test_only_sinks_are_kept() -> None:
    sinks = np.array([0.25, -3.0], np.float32)
    out, residual = both([np.full((1, 4, 2, 8), np.nan, np.float32)], [np.full((1, 4, 2), -np.inf, np.float32)], sinks)
    assert not out.any()
    assert (residual == sinks).all()


def test_sinks_join_once() -> None:
    query, kv, sinks = normal(1, 3, 4, 16), normal(1, 12, 2, 16, seed=1), normal(4, seed=2)
    parts = [attended(query, kv, kv, first, first + 4) for first in (0, 4, 8)]
    out, residual = both(*zip(*parts, strict=True), sinks)
    whole = attention(query, kv, kv, sinks=sinks)
    check(out, whole.out)
    check_residual(residual, whole.residual)


def test_merges_are_merged_on() -> None:
    outputs, residuals = normal(5, 2, 3, 4, 8), 3 * normal(5, 2, 3, 4, seed=1)
    pairs = [both(outputs[at], residuals[at]) for at in (slice(0, 2), slice(2, 5))]
    out, residual = both(*zip(*pairs, strict=True))
    whole = merge(list(outputs), list(residuals))
    check(out, whole.out)
    check_residual(residual, whole.residual)


def test_a_row_of_far_parts_is_finite() -> None:
    residuals = np.array([3e38, -3e38, 88.0, -1000.0], np.float32).reshape(4, 1, 1)
    out, residual = both(np.arange(4, dtype=np.float32).reshape(4, 1, 1, 1), residuals)
    assert out.ravel() == [0]
    assert residual.ravel() == [np.float32(3e38)]


def test_a_bias_of_the_lowest_float_keeps_its_keys() -> None:
    """Their residual is below that of a row without keys, which is neutral beside them."""
    query, kv = normal(1, 2, 2, 8), normal(1, 6, 2, 8, seed=1)
    low = attended(query, kv, kv, 0, 6, bias=np.full((1, 1, 1, 6), np.finfo(np.float32).min, np.float32))
    none = attended(query, kv, kv, 0, 6, mask=np.zeros((1, 1, 1, 6), bool))
    out, _ = both(*zip(none, low, strict=True))
    np.testing.assert_array_equal(out, np.asarray(low[0]))


def test_nan_reaches_its_row_alone() -> None:
    outputs, residuals = normal(2, 1, 4, 2, 8), normal(2, 1, 4, 2, seed=1)
    outputs[0, 0, 1, 0, 3] = np.nan
    residuals[1, 0, 2, 1] = np.nan
    out, residual = both(outputs, residuals)
    check(out, merge(list(outputs), list(residuals)).out)
    assert np.isnan(out[0, 1, 0, 3])
    assert np.isnan(out[0, 2, 1]).all()
    assert np.isnan(residual).sum() == 1


@pytest.mark.parametrize("shape", [(2, 0, 3, 4, 8), (2, 1, 0, 4, 8), (1, 1, 3, 0, 8), (2, 0, 4, 8)])
def test_empty_axes(shape: tuple[int, ...]) -> None:
    out, residual = both(np.zeros(shape, np.float16), np.zeros(shape[:-1], np.float32))
    assert (out.shape, residual.shape, out.dtype) == (shape[1:], shape[1:-1], np.float16)


def test_parts_are_views_and_their_merge_is_one_dispatch() -> None:
    def outer(x: Any, residuals: Any) -> Any:
        return nn.merge_attention(x[:, :, ::2].swapaxes(2, 3)[..., 1:6], residuals.transpose(3, 0, 1, 2))

    x, residuals = normal(3, 2, 6, 5, 8), normal(2, 5, 3, 3, seed=1)
    lowered = wgattn.jit(outer).lower(x, residuals)
    assert "c, d = merge a[" in lowered.as_text()
    right = merge(list(x[:, :, ::2].swapaxes(2, 3)[..., 1:6]), list(residuals.transpose(3, 0, 1, 2)))
    check(np.asarray(wgattn.jit(outer)(x, residuals)), right.out)


ERRORS = {
    "no parts": (([], []), ValueError, "at least one part"),
    "no parts in an array": ((np.zeros((0, 3, 2, 4)), np.zeros((0, 3, 2))), ValueError, "at least one part"),
    "rank": ((np.zeros((3, 2, 4)), np.zeros((3, 2))), ValueError, "parts of shape BTNHv or TNHv"),
    "residuals": ((np.zeros((2, 5, 3, 4)), np.zeros((2, 5, 2))), ValueError, r"must be 2 of shape \(5, 3\); got 2"),
    "BNT": ((np.zeros((2, 5, 3, 4)), np.zeros((2, 3, 5))), ValueError, "these look like BNT"),
    "shapes": (
        ([np.zeros((5, 3, 4)), np.zeros((5, 3, 5))], np.zeros((2, 5, 3))),
        ValueError,
        r"outputs\[1\] has shape",
    ),
    "dtypes": (
        ([np.zeros((5, 3, 4), np.float16), np.zeros((5, 3, 4))], np.zeros((2, 5, 3))),
        TypeError,
        r"outputs\[1\] is float32, outputs\[0\] float16",
    ),
    "outputs": ((np.zeros((2, 5, 3, 4), np.int32), np.zeros((2, 5, 3))), TypeError, "outputs must be float32, float16"),
    "half residuals": (
        (np.zeros((2, 5, 3, 4)), np.zeros((2, 5, 3), np.float16)),
        TypeError,
        "residuals must be float32; got float16: ask for residual_dtype",
    ),
    "sinks": ((np.zeros((2, 5, 3, 4)), np.zeros((2, 5, 3)), np.zeros(4)), ValueError, r"shape \(N,\) = \(3,\)"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_does_not_fit_is_refused_at_once(name: str) -> None:
    arguments, error, text = ERRORS[name]
    with pytest.raises(error, match=text):
        nn.merge_attention(*arguments)


# Gradients.


def inputs(with_sinks: bool = True) -> tuple[np.ndarray, ...]:
    """Parts of which some rows keep no key; one row keeps none in any part."""
    outputs, residuals, sinks = normal(3, 1, 4, 2, 5), 2 * normal(3, 1, 4, 2, seed=1), normal(2, seed=2)
    residuals[0, 0, 1], residuals[2, 0, 2] = -np.inf, EMPTY_RESIDUAL
    residuals[:, 0, 3, 0] = -np.inf
    return (outputs, residuals, sinks) if with_sinks else (outputs, residuals)


def differences(arrays: tuple[np.ndarray, ...], g: np.ndarray, h: np.ndarray) -> list[np.ndarray]:
    """The gradient of <g, out> + <h, residual> by each array, by central differences of the reference in float64."""

    def loss(arrays: list[np.ndarray]) -> float:
        found = merge(list(arrays[0]), list(arrays[1]), *arrays[2:])
        return float((g * found.out).sum() + (h * np.where(np.isneginf(found.residual), 0, found.residual)).sum())

    step, wide, gradients = 1e-5, [x.astype(np.float64) for x in arrays], []
    for place, x in enumerate(wide):
        gradient = np.zeros(x.shape)
        for at in np.ndindex(x.shape):
            if math.isfinite(x[at]) and x[at] != EMPTY_RESIDUAL:
                ends = []
                for sign in (1, -1):
                    moved = x.copy()
                    moved[at] += sign * step
                    ends.append(loss([*wide[:place], moved, *wide[place + 1 :]]))
                gradient[at] = (ends[0] - ends[1]) / (2 * step)
        gradients.append(gradient)
    return gradients


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("by", ["out", "residual", "both"])
def test_gradients_are_those_of_finite_differences(with_sinks: bool, by: str) -> None:
    arrays = inputs(with_sinks)
    g, h = normal(1, 4, 2, 5, seed=3) * (by != "residual"), normal(1, 4, 2, seed=4) * (by != "out")

    def merged(*arrays: Any) -> Any:
        pair = nn.merge_attention(*arrays, return_residual=True)
        return pair if by == "both" else pair[by == "residual"]

    _, pull = wgattn.vjp(merged, *arrays)
    found = pull({"out": g, "residual": h, "both": (g, h)}[by])
    for mine, right in zip(found, differences(arrays, g, h), strict=True):
        np.testing.assert_allclose(np.asarray(mine), right, atol=4e-5, rtol=2e-5)


def test_a_part_without_keys_gets_zeros_whatever_it_holds() -> None:
    outputs, residuals, sinks = inputs()
    outputs[0, 0, 1], outputs[2, 0, 2] = np.nan, np.inf
    _, pull = wgattn.vjp(nn.merge_attention, outputs, residuals, sinks)
    by_output, by_residual, by_sink = (np.asarray(x) for x in pull(normal(1, 4, 2, 5, seed=3)))
    assert not by_output[0, 0, 1].any()
    assert not by_residual[2, 0, 2].any()
    assert all(np.isfinite(x).all() for x in (by_output, by_residual, by_sink))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_gradients_have_their_operands_dtype(dtype: str) -> None:
    outputs, residuals, sinks = inputs()
    outputs, sinks = outputs.astype(DTYPES[dtype]), sinks.astype(DTYPES[dtype])
    g = normal(1, 4, 2, 5, seed=3).astype(DTYPES[dtype])
    _, pull = wgattn.vjp(nn.merge_attention, outputs, residuals, sinks)
    right = differences((outputs, residuals, sinks), g.astype(np.float64), np.zeros((1, 4, 2)))
    for mine, wanted, x in zip(pull(g), right, (outputs, residuals, sinks), strict=True):
        assert mine.dtype == x.dtype
        check(np.asarray(mine), wanted, DTYPES[dtype], gradient=True)


def test_a_merge_of_merges_passes_gradients_by_the_inner_residual() -> None:
    outputs, residuals = normal(3, 1, 4, 2, 5), normal(3, 1, 4, 2, seed=1)

    def nested(outputs: Any, residuals: Any) -> Any:
        inner = nn.merge_attention(outputs[:2], residuals[:2], return_residual=True)
        return nn.merge_attention([inner[0], outputs[2]], [inner[1], residuals[2]])

    g = normal(1, 4, 2, 5, seed=3)
    found, right = (wgattn.vjp(fn, outputs, residuals)[1](g) for fn in (nested, nn.merge_attention))
    for mine, wanted in zip(found, right, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(wanted), atol=2e-6, rtol=1e-5)


def test_attention_s_residual_is_constant_to_the_gradient() -> None:
    query, kv, g = normal(1, 3, 2, 8), normal(1, 6, 2, 8, seed=1), normal(1, 3, 2, 8, seed=2)

    def through_parts(query: Any) -> Any:
        parts = [attended(query, kv, kv, first, first + 3) for first in (0, 3)]
        return nn.merge_attention(*zip(*parts, strict=True))

    def through_outputs(query: Any) -> Any:
        parts = [attended(query, kv, kv, first, first + 3)[0] for first in (0, 3)]
        return nn.merge_attention(parts, [np.asarray(attended(query_value, kv, kv, at, at + 3)[1]) for at in (0, 3)])

    query_value = query
    found, right = (np.asarray(wgattn.vjp(fn, query)[1](g)[0]) for fn in (through_parts, through_outputs))
    np.testing.assert_allclose(found, right, atol=1e-6)
    whole = np.asarray(wgattn.vjp(lambda q: nn.dot_product_attention(q, kv, kv), query)[1](g)[0])
    assert np.abs(found - whole).max() > 1e-3


def test_results_of_two_caches_are_those_of_one() -> None:
    """A sequence may have nothing in one of them: its row is 0, its residual -inf."""
    query, key, value = normal(3, 1, 4, 8), normal(3, 13, 2, 8, seed=1), normal(3, 13, 2, 8, seed=2)
    lengths = np.array([[5, 0, 7], [2, 6, 0]], np.int32)
    parts = []
    for held, at in zip(lengths, (0, 7), strict=True):
        rows = slice(at, at + held.max())
        cache = wgattn.KVCache.create(3, 8, 2, 8, dtype=np.float32).append(key[:, rows], value[:, rows], held)
        parts.append(nn.cached_attention(query, cache, is_causal=False, **KEPT))
    assert np.isneginf(np.asarray(parts[0][1])[1]).all()
    assert np.isneginf(np.asarray(parts[1][1])[2]).all()
    out, residual = both(*zip(*parts, strict=True))
    j = np.arange(13)
    seen = (j < lengths[0][:, None]) | ((j >= 7) & (j < 7 + lengths[1][:, None]))
    whole = attention(query, key, value, mask=seen[:, None, None])
    check(out, whole.out)
    check_residual(residual, whole.residual)
