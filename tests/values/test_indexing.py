"""Views have NumPy's shapes, and raise where NumPy raises."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import wgattn as wa
from wgattn._graph.indexing import basic

X = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)


def taken(x: np.ndarray, index: Any) -> np.ndarray:
    """What `basic` says, done with NumPy."""
    sliced, shape = basic(index, x.shape)
    for axis, (start, size, step) in enumerate(zip(sliced.start, sliced.size, sliced.step, strict=True)):
        x = np.take(x, start + step * np.arange(size), axis)
    return x.reshape(shape)


@given(hnp.basic_indices((2, 3, 4), allow_newaxis=True, allow_ellipsis=True))
def test_any_basic_index_is_numpys(index: Any):
    right = X[index]
    np.testing.assert_array_equal(taken(X, index), right)
    assert wa.asarray(X)[index].shape == right.shape


@given(st.integers(-9, 9), st.integers(0, 2))
def test_integers_are_in_range_or_raise(at: int, axis: int):
    index = (slice(None),) * axis + (at,)
    if -X.shape[axis] <= at < X.shape[axis]:
        assert wa.asarray(X)[index].shape == X[index].shape
    else:
        with pytest.raises(IndexError, match=f"index {at} is out of range for axis {axis} of size {X.shape[axis]}"):
            wa.asarray(X)[index]


@pytest.mark.parametrize("index", [np.array([0, 1]), [0, 1], True, np.ones(2, bool), 1.0, "a"])
def test_arrays_and_others_as_indices_say_why_not(index: Any):
    with pytest.raises(TypeError, match=r"an index may be integers, slices, None and \.\.\.; got"):
        wa.asarray(X)[index]


def test_too_many_indices():
    with pytest.raises(IndexError, match="4 indices were given for an array of 3 axes"):
        wa.asarray(X)[0, 0, 0, 0]
    with pytest.raises(IndexError, match="only one ellipsis"):
        wa.asarray(X)[..., ...]


def test_numpy_integers_are_integers():
    assert wa.asarray(X)[np.int64(1), np.uint8(0)].shape == (4,)


@pytest.mark.parametrize("shape", [(6, 4), (-1,), (2, -1, 2), (24,), (1, 24, 1)])
def test_reshape(shape: tuple[int, ...]):
    assert wa.asarray(X).reshape(shape).shape == X.reshape(shape).shape == wa.asarray(X).reshape(*shape).shape


@pytest.mark.parametrize("shape", [(5, 5), (-1, -1), (7, -1), (-2, 12)])
def test_reshape_that_cannot_be(shape: tuple[int, ...]):
    with pytest.raises(ValueError, match="reshape"):
        wa.asarray(X).reshape(shape)


def test_axes_in_another_order():
    x = wa.asarray(X)
    assert x.T.shape == x.transpose().shape == (4, 3, 2)
    assert x.transpose(1, 0, 2).shape == x.transpose((1, 0, 2)).shape == (3, 2, 4)
    assert x.swapaxes(0, -1).shape == (4, 3, 2)
    with pytest.raises(ValueError, match=r"transpose takes each of the 3 axes of \(2, 3, 4\) once; got \(0, 0, 1\)"):
        x.transpose(0, 0, 1)
    with pytest.raises(ValueError, match="axis 3 does not exist in an Array of 3 axes"):
        x.swapaxes(0, 3)


def test_views_that_change_nothing_record_nothing():
    x = wa.asarray(X)
    assert x.reshape(2, 3, 4) is x
    assert x[:] is x
    assert x[...] is x
    assert x.transpose(0, 1, 2) is x
    assert wa.broadcast_to(x, (2, 3, 4)) is x


def test_iteration_and_length():
    x = wa.asarray(X)
    assert [row.shape for row in x] == [(3, 4)] * 2
    assert len(x) == 2
    with pytest.raises(TypeError, match=r"len\(\) of an Array without axes"):
        len(wa.asarray(1.0))
