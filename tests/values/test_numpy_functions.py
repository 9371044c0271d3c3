"""NumPy's side: its operators with a NumPy array on the left give Arrays, its functions say what to give them."""

import operator
from typing import Any

import numpy as np
import pytest

import wgattn as wa

pytestmark = pytest.mark.device
X = np.array([[-1.5, 0.25, 2.0], [4.0, -3.0, 0.5]], np.float32)
OPERATORS = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.eq, operator.ne, operator.lt, operator.le,
    operator.gt, operator.ge,
)  # fmt: skip


@pytest.mark.parametrize("left", [X + 1, X[0], np.float32(2), np.arange(3)])
@pytest.mark.parametrize("op", OPERATORS)
def test_operators_with_numpy_on_the_left(op: Any, left: Any):
    found = op(left, wa.asarray(X))
    assert isinstance(found, wa.Array)
    expected = op(np.asarray(left).astype(np.float32), X)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == expected.dtype


def test_bools_with_numpy_on_the_left():
    kept, given = wa.asarray(X > 0), X < 1
    np.testing.assert_array_equal(given & kept, given & (X > 0))
    np.testing.assert_array_equal(given | kept, given | (X > 0))
    assert isinstance(given & kept, wa.Array)


def test_an_array_is_not_written_to():
    with pytest.raises(TypeError, match=r"never changes: wgattn\.where"):
        wa.asarray(X)[0] = 1.0


@pytest.mark.parametrize("op", [operator.matmul, operator.pow, operator.mod, operator.floordiv])
def test_operators_that_are_not_there(op: Any):
    with pytest.raises(TypeError, match="no matrix product, power"):
        op(X, wa.asarray(X))


def test_adding_to_a_numpy_array_writes_there():
    total = np.ones_like(X)
    kept = total
    total += wa.asarray(X)
    assert total is kept
    np.testing.assert_array_equal(kept, X + 1)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (np.abs, "absolute"), (np.sqrt, "sqrt"), (np.isfinite, "isfinite"), (np.max, "maximum.reduce"),
        (lambda x: np.maximum(0, x), "maximum"), (lambda x: np.add(x, 1, out=np.empty_like(X)), "add"),
        (lambda x: np.add(X, X, out=x), "add"), (lambda x: np.add(x, x, out=x), "add"),
    ],
)  # fmt: skip
def test_functions_say_what_they_take(function: Any, name: str):
    with pytest.raises(TypeError, match=rf"numpy.{name} is for NumPy arrays .*: take np.asarray\(x\) first"):
        function(wa.asarray(X))


def test_sums_and_means():
    x = wa.asarray(X)
    np.testing.assert_allclose(np.sum(x), X.sum(), rtol=1e-6)
    np.testing.assert_allclose(np.mean(x, axis=0, keepdims=True), X.mean(0, keepdims=True), rtol=1e-6)
    for given in ({"dtype": np.float32}, {"out": np.empty(())}):
        with pytest.raises(TypeError, match="no dtype and no out"):
            np.mean(x, **given)


def test_magnitudes():
    odd = np.array([-0.0, 1.0, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(abs(wa.asarray(odd)), np.abs(odd))
    np.testing.assert_array_equal(abs(wa.asarray(np.array([-3, 2]))), [3, 2])
    np.testing.assert_array_equal(abs(wa.asarray(np.array([3, 2], np.uint32))), [3, 2])


def test_formats():
    x = wa.asarray(X)
    assert f"{x[1, 0]:.3f}" == "4.000"
    assert f"{x[:1, 2]:6.2f}" == "  2.00"
    assert f"{x}" == repr(x)
    with pytest.raises(
        ValueError, match=r"the format '.3f' takes an Array of one element; this one has shape \(2, 3\)"
    ):
        f"{x:.3f}"
