"""Mask algebra against dense bools: what a mask says is what each of its parts says, key by key."""

import itertools
import operator
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wgattn import _reference, masks
from wgattn._kernels.attention.problem import Bound
from wgattn.masks import Mask, causal, chunked, full, local, prefix, segments

T, S = 9, 11
SIZES = st.integers(-3, 12)


@st.composite
def plain(draw: st.DrawFn) -> tuple[Mask, np.ndarray]:
    """A mask and the bools (T, S) that the reference gives for it."""
    i, j = np.arange(T)[:, None], np.arange(S)
    kind = draw(st.sampled_from(["causal", "local", "prefix", "chunked", "full"]))
    a, b, c = draw(SIZES), draw(SIZES), draw(st.integers(1, 6))
    match kind:
        case "causal":
            return causal(a), j <= i + a
        case "local":
            return local(a, b, c), (j >= i + c - a) & (j <= i + c + b)
        case "prefix":
            return prefix(a), np.broadcast_to(j < a, (T, S))
        case "chunked":
            return chunked(c), i // c == j // c
    return full(), np.ones((T, S), bool)


@given(st.lists(st.tuples(plain(), st.sampled_from([operator.and_, operator.or_])), min_size=1, max_size=4))
def test_every_tree_of_masks_is_its_dense_form_or_is_refused(
    parts: list[tuple[tuple[Mask, np.ndarray], Callable]],
):
    (mask, dense), _ = parts[0]
    for (other, others), join in parts[1:]:
        right = join(dense, others)
        try:
            mask = join(mask, other)
        except TypeError:
            return
        dense = right
        assert 1 <= len(mask.clauses) <= 2
    np.testing.assert_array_equal(mask.dense(T, S), dense)
    np.testing.assert_array_equal(mask[0:T, 0:S], dense)


def runs(row: np.ndarray) -> int:
    """How many stretches of kept keys a row has."""
    return int(np.count_nonzero(np.diff(np.concatenate([[0], row.astype(int), [0]])) == 1))


@given(plain(), plain())
def test_a_refused_union_cannot_be_a_range_and_a_prefix_in_general(
    a: tuple[Mask, np.ndarray], b: tuple[Mask, np.ndarray]
):
    starts = [any(x.side == "lower" for x in clause) for clause in (*a[0].clauses, *b[0].clauses)]
    try:
        mask = a[0] | b[0]
    except TypeError:
        assert all(starts), "a union with a prefix is always taken"
        return
    kept = mask.dense(T, S)
    assert all(runs(row) <= 2 for row in kept)
    assert all(runs(row) < 2 or row[0] for row in kept), "of two stretches one starts at the first key"


@pytest.mark.parametrize("offset", [0, 3, -2])
def test_masks_see_the_query_offset(offset: int):
    positions = np.arange(T) + offset
    np.testing.assert_array_equal(causal(1).dense(T, S, offset), _reference.causal(positions, S, 1)[0, 0])
    np.testing.assert_array_equal(local(2, 1).dense(T, S, offset), _reference.local(positions, S, 2, 1)[0, 0])
    np.testing.assert_array_equal(chunked(4).dense(T, S, offset), _reference.chunked(positions, S, 4)[0, 0])
    right = np.broadcast_to(_reference.prefix(S, 4)[0, 0], (T, S))
    np.testing.assert_array_equal(prefix(4).dense(T, S, offset), right)


def test_run_time_values():
    n, offset = np.array([2, 5], np.int32), np.array(1, np.int32)
    mask = prefix(n) | causal(offset)
    assert mask.dense(T, S).shape == (2, 1, T, S)
    for b in range(2):
        np.testing.assert_array_equal(mask.dense(T, S)[b, 0], (prefix(int(n[b])) | causal(1)).dense(T, S))
    clauses, sources, ids = masks.bind(mask)
    assert ids is None
    assert len(sources) == 2
    assert {b.source for clause in clauses for b in clause} == {"bound0", "bound1"}
    assert sources[0] is n or sources[1] is n


def test_one_run_time_value_is_one_source():
    n = np.array([2, 5], np.int32)
    (source,) = (prefix(n) & causal(n)).sources
    assert source is n
    assert (causal(n) & causal(n)) == causal(n)
    assert (causal(n) & causal(n.copy())) != causal(n)
    window = local(3, 1, n)
    assert [b.source for b in window.clauses[0]] == ["bound0", "bound0"]


def test_segments():
    q, kv = np.array([0, 0, 1, 1, 2], np.int32), np.array([0, 1, 1, 1, 2, 2], np.int32)
    np.testing.assert_array_equal(segments(q, kv).dense(5, 6), q[:, None] == kv)
    both = causal() & segments(q, kv)
    np.testing.assert_array_equal(both.dense(5, 6), (q[:, None] == kv) & (np.arange(6) <= np.arange(5)[:, None]))
    ids = masks.bind(both)[2]
    assert ids is not None
    assert ids[0] is q
    assert ids[1] is kv
    batched = segments(np.stack([q, q[::-1]]), np.stack([kv, kv]))
    np.testing.assert_array_equal(batched.dense(5, 6)[1, 0], q[::-1][:, None] == kv)
    assert (both & segments(q, kv)) == both
    with pytest.raises(TypeError, match="one pair of segment ids"):
        segments(q, kv) & segments(q.copy(), kv)
    with pytest.raises(TypeError, match="no range of keys; give a dense bool mask"):
        segments(q, kv) | causal()
    with pytest.raises(TypeError, match=r"segments takes int32 ids .* kv_ids is float64 \(2,\)"):
        segments(q, np.ones(2))


def test_equal_masks_are_equal_keys():
    same = [causal() & local(255, 0), local(255, 0) & causal(), local(255, 3) & causal(), local(255, 0)]
    assert len({hash(m) for m in same}) == 1
    assert all(a == b for a, b in itertools.combinations(same, 2))
    assert causal() != causal(1)
    assert full() & causal() == causal()
    assert full() | causal() == full()
    assert prefix(3) & prefix(5) == prefix(3)
    assert prefix(3) | prefix(5) == prefix(5)
    assert causal() | causal(2) == causal(2)
    assert local(3, 0) | local(0, 3) == local(3, 3)
    assert chunked(2) | chunked(4) == chunked(4)
    assert local(1, 0) | local(-1, 1) == local(1, 1), "windows that touch are one"


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (full(), "full()"),
        (causal() & local(255, 0), "causal() & local(255, 0)"),
        (causal(2), "causal(2)"),
        (local(3, 1, 4), "local(3, 1, offset=4)"),
        (prefix(np.array(3, np.int32)), "prefix(…)"),
        ((prefix(4) | causal()) & chunked(8), "(prefix(4) | causal()) & chunked(8)"),
        (full() & causal(), "causal()"),
    ],
)
def test_masks_print_as_they_were_written(mask: Mask, text: str):
    assert repr(mask) == text


def test_parts_of_a_mask():
    assert causal()[3, 0:6].tolist() == [True] * 4 + [False] * 2
    assert causal()[0:6, 3].tolist() == [False] * 3 + [True] * 3
    assert causal()[3, 3]
    assert not causal()[3, 4]
    assert causal()[0:6:2, 1:3].tolist() == [[False, False], [True, True], [True, True]]
    for index in ((slice(None), 1), (-1, 0), 3, (slice(-2, 3), 0)):
        with pytest.raises(IndexError):
            causal()[index]


def test_negative_window_sizes_are_no_special_values():
    assert not local(-1, -1).dense(4, 4).any()
    assert not local(-1, 0).dense(4, 4).any()
    assert local(-1, 2).dense(1, 4).tolist() == [[False, True, True, False]]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: causal(1.5), TypeError, r"an int or an int32 array \(\) or \(B,\); got a float"),
        (lambda: prefix(np.ones(2)), TypeError, r"got float64 \(2,\)"),
        (lambda: causal(np.ones((2, 2), np.int32)), TypeError, r"got int32 \(2, 2\)"),
        (lambda: prefix([1, 2]), TypeError, r"got a list: give np.asarray\(it, np.int32\)"),
        (lambda: chunked(0), ValueError, "at least 1; got 0"),
        (lambda: chunked(np.array([2])), TypeError, r"chunked: size is an integer .* got int64 \(1,\)"),
        (lambda: local(1.5, 0), TypeError, "local: left is an integer that is compiled in; got a float"),
        (lambda: segments([0, 1], [0, 1]), TypeError, r"q_ids is a list: give np.asarray\(q_ids, np.int32\)"),
        (lambda: np.asarray(causal()), TypeError, r"causal\(\) has no shape of its own: mask.dense\(T, S\)"),
        (
            lambda: causal() and np.ones((2, 2), bool),
            TypeError,
            r"causal\(\) is neither true nor false: join masks with &",
        ),
        (lambda: ~causal(), TypeError, r"~ of causal\(\) is not supported.*~mask.dense\(T, S\)"),
        (lambda: causal() & np.ones((2, 2), bool), TypeError, r"join a dense bool array with mask.dense\(T, S\)"),
        (
            lambda: local(0, 0) | local(-5, 9),
            TypeError,
            r"local\(0, 0\) \| local\(-5, 9\) keeps, in some rows, neither",
        ),
    ],
)
def test_what_is_no_mask_says_so(make: Callable, error: type[Exception], text: str):
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize("size", [np.int8(3), np.uint16(3), np.int64(3), 3])
def test_any_integer_type_is_an_integer(size: object):
    assert local(size, size) == local(3, 3)
    assert prefix(size) == prefix(3)


def test_far_edges_stay_within_int32():
    far = 1 << 40
    for mask in (causal(far), causal(-far), local(far, far), prefix(far), chunked(far)):
        assert all(abs(b.addend) <= 1 << 30 for clause in mask.clauses for b in clause)
        assert all(isinstance(b, Bound) for clause in mask.clauses for b in clause)
    assert local(far, far).dense(T, S).all()
    assert not causal(-far).dense(T, S).any()
