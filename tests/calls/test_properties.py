"""Run-time values at random: sizes, lengths, offsets, windows, NaN; inside a few variants, so that little compiles."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wgattn
from tests.cases import DTYPES
from tests.tolerance import check, check_residual
from wgattn import nn
from wgattn._reference import attention

pytestmark = pytest.mark.device


@dataclass(frozen=True, slots=True)
class Drawn:
    """One call: its arrays and keywords."""

    arrays: tuple[np.ndarray, np.ndarray, np.ndarray]
    options: dict

    def out(self) -> np.ndarray:
        return np.asarray(nn.dot_product_attention(*map(wgattn.asarray, self.arrays), **self.options))


SIZES = st.one_of(st.integers(0, 12), st.sampled_from((15, 16, 17, 31, 32, 33, 63, 64, 65, 100)))


@st.composite
def calls(draw: st.DrawFn, options: tuple[str, ...] = ("lengths", "causal", "window")) -> Drawn:
    """A call whose variant is one of a few: what else is drawn is known only at run time."""
    dtype = DTYPES[draw(st.sampled_from(("f32", "f16")))]
    B, T, S = draw(st.integers(1, 3)), draw(SIZES), draw(SIZES)
    K, G, H = draw(st.integers(1, 2)), 2, 16
    r = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shapes = (B, T, K * G, H), (B, S, K, H), (B, S, K, H)
    arrays = tuple(r.standard_normal(shape, np.float32).astype(dtype) for shape in shapes)
    numbers = st.integers(-3, max(T, S) + 3)

    def each() -> np.ndarray:
        return np.array([draw(numbers) for _ in range(B)], np.int32)

    given: dict = {}
    kind = draw(st.sampled_from(options))
    if kind == "lengths":
        given = {"query_seq_lengths": each(), "key_value_seq_lengths": each()}
    elif kind == "causal":
        given = {"is_causal": True, "query_offset": each(), "key_value_seq_lengths": each()}
    elif kind == "window":
        given = {"local_window_size": (draw(numbers), draw(numbers)), "query_offset": each()}
    return Drawn(arrays, given)  # pyright: ignore[reportArgumentType]


@given(calls())
def test_any_sizes_lengths_offsets_and_windows(call: Drawn):
    given = {**call.options, "return_residual": True, "residual_dtype": np.float32}
    out, residual = nn.dot_product_attention(*map(wgattn.asarray, call.arrays), **given)
    right = attention(*call.arrays, **call.options)
    check(np.asarray(out), right.out)
    check_residual(np.asarray(residual), right.residual)


@given(calls(("lengths", "causal", "none")), st.sampled_from((np.nan, np.inf, -np.inf)), st.data())
def test_nan_reaches_what_uses_it_and_nothing_else(call: Drawn, wild: float, data: st.DataObject):
    spoiled = tuple(array.copy() for array in call.arrays)
    for array, marked in zip(call.arrays, spoiled, strict=True):
        for at in data.draw(st.sets(st.integers(0, array.size - 1), max_size=2)) if array.size else ():
            array.flat[at], marked.flat[at] = wild, np.nan
    right, out = attention(*spoiled, **call.options).out, call.out()
    # What stands in V at a key that is masked, but not past the length, may reach the rows that mask it, or not; and
    # what an infinity makes of the rows that use it is theirs alone.
    loose = _masked_but_there(call)
    if not np.isnan(wild):
        loose |= np.isnan(right)
    check(np.where(loose, 0, out.astype(np.float64)), np.where(loose, 0, right), out.dtype)


def _masked_but_there(call: Drawn) -> np.ndarray:
    """Where an element of the result may be NaN or not: its column holds what is not finite at a masked key."""
    query, key, value = call.arrays
    B, T, N, _ = query.shape
    S = key.shape[1]
    if "is_causal" not in call.options or not S:
        return np.zeros((B, T, N, value.shape[3]), bool)
    seen = np.arange(S) <= np.arange(T)[:, None] + call.options["query_offset"][:, None, None]
    there = np.arange(S) < call.options["key_value_seq_lengths"][:, None, None]
    hidden = ~seen & there
    wild = ~np.isfinite(value.astype(np.float64))
    return np.repeat(np.einsum("bts,bskh->btkh", hidden.astype(int), wild.astype(int)) > 0, N // key.shape[2], axis=2)


@given(calls(("causal",)), st.integers(0, 100))
def test_a_chunk_of_queries_at_its_offset_is_that_chunk_of_the_whole(call: Drawn, cut: int):
    query, key, value = call.arrays
    offset = call.options["query_offset"]
    chunk = query[:, cut:]
    part = nn.dot_product_attention(chunk, key, value, **{**call.options, "query_offset": offset + np.int32(cut)})
    check(np.asarray(part), attention(*call.arrays, **call.options, rows=slice(cut, None)).out)


@given(calls())
def test_the_same_call_gives_the_same_bits(call: Drawn):
    assert call.out().tobytes() == call.out().tobytes()


@given(calls(), st.randoms(use_true_random=False))
def test_batch_entries_do_not_see_each_other(call: Drawn, random):
    order = list(range(len(call.arrays[0])))
    random.shuffle(order)
    moved = {name: value[order] if isinstance(value, np.ndarray) else value for name, value in call.options.items()}
    shuffled = Drawn(tuple(x[order] for x in call.arrays), moved).out()  # pyright: ignore[reportArgumentType]
    assert shuffled.tobytes() == call.out()[order].tobytes()
