"""The comparison itself: it passes what the contract allows, and fails what it does not, NaN on one side first."""

import ml_dtypes
import numpy as np
import pytest

from tests.tolerance import check, check_residual

RIGHT = np.random.default_rng(0).standard_normal((2, 3, 4))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_rounding_passes(dtype):
    check(RIGHT.astype(dtype), RIGHT)


@pytest.mark.parametrize(("dtype", "off"), [(np.float32, 3e-5), (np.float16, 4e-3), (ml_dtypes.bfloat16, 5e-2)])
def test_one_wrong_element_fails(dtype, off: float):
    out = RIGHT.copy()
    out[np.unravel_index(np.abs(RIGHT).argmin(), RIGHT.shape)] += off
    with pytest.raises(AssertionError, match="max error"):
        check(out.astype(dtype), RIGHT)


def test_many_small_errors_fail():
    with pytest.raises(AssertionError, match="relative error"):
        check((RIGHT * (1 + 4e-6)).astype(np.float32), RIGHT, np.float32, 64)
    check((RIGHT * (1 + 4e-6)).astype(np.float32), RIGHT, np.float32, 4097)
    check((RIGHT * (1 + 3.5e-6)).astype(np.float32), RIGHT, gradient=True)


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf])
def test_nan_or_infinity_on_one_side_fails(wild: float):
    """https://github.com/tracel-ai/cubecl/pull/1070"""
    spoiled = RIGHT.astype(np.float32)
    spoiled[1, 2, 3] = wild
    with pytest.raises(AssertionError, match=r"one side.*\(1, 2, 3\)"):
        check(spoiled, RIGHT)
    with pytest.raises(AssertionError, match="one side"):
        check(RIGHT.astype(np.float32), spoiled)
    check(spoiled, spoiled)
    with pytest.raises(AssertionError, match="one side"):
        check_residual(spoiled, RIGHT)


def test_a_shape_that_differs_fails():
    with pytest.raises(AssertionError, match="shape"):
        check(RIGHT[:1], RIGHT, np.float32)


def test_residuals():
    check_residual(RIGHT.astype(np.float32), RIGHT)
    check_residual(np.float32(1234.5678), np.float64(1234.5678))
    check_residual(np.float32(-np.inf), np.float64(-np.inf))
    with pytest.raises(AssertionError, match="residual at"):
        check_residual((RIGHT + 1.2e-5).astype(np.float32), RIGHT)
    with pytest.raises(AssertionError, match="float16"):
        check_residual(RIGHT.astype(np.float16), RIGHT)
