"""Sums and means against float64, over layouts, lengths and dtypes."""

from dataclasses import replace

import numpy as np
import pytest

from wgattn._dtypes import bfloat16, bool_, float16, float32, int8, int32, short_name, uint32
from wgattn._errors import UnsupportedError
from wgattn._kernels.array import reduce

from .views import filled, operand, profile, same

pytestmark = pytest.mark.device

AXES = [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2), (-1,)]


def normal(shape: tuple[int, ...], dtype: np.dtype = float32) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(dtype)


def summed(x: np.ndarray, base: np.ndarray, axes: tuple[int, ...], dtype: np.dtype, **options) -> np.ndarray:
    result = np.zeros(x.astype(np.float32).sum(axes, keepdims=options.get("keepdims", False)).shape, dtype)
    plan = reduce.plan(operand(x, base), axes, operand(result), options.get("divisor", 1), options.get("on", profile()))
    return filled(plan, {"source": base}, result)


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=short_name)
def test_floats(axes, dtype):
    x = normal((5, 300, 7), dtype)
    found = summed(x, x, axes, float32)
    wanted = x.astype(np.float64).sum(axes)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=2e-5)
    assert same(summed(x, x, axes, dtype, keepdims=True).reshape(found.shape), found.astype(dtype))


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_views(axes):
    x = normal((9, 4, 40))
    view = x.transpose(2, 0, 1)[::-3, 1:8, ::-2]
    np.testing.assert_allclose(summed(view, x, axes, float32), view.astype(np.float64).sum(axes), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(("source", "result"), [(int32, int32), (uint32, uint32), (bool_, int32), (int8, int32)])
def test_integers_are_exact_and_wrap(source, result):
    x = np.random.default_rng(0).integers(0, 2**31 - 1, (3, 700)).astype(source)
    assert same(summed(x, x, (1,), result), x.astype(result).sum(1, dtype=result))


@pytest.mark.parametrize("size", [1, 255, 256, 257, 65_537, 300_001])
def test_long_sums(size):
    x = np.abs(normal((size,)))
    wanted = x.astype(np.float64).sum()
    found = summed(x, x, (0,), float32)
    assert abs(found - wanted) <= 1e-6 * wanted
    assert same(summed(x, x, (0,), float32), found)


def test_a_mean_divides_after_the_sum():
    x = np.full((3, 5), 60000.0, np.float16)
    assert summed(x, x, (1,), float16, divisor=5).tolist() == [60000.0] * 3
    whole = np.arange(10, dtype=np.int32)
    assert summed(whole, whole, (0,), float32, divisor=10) == 4.5


def test_broadcast_axes_are_summed():
    x = normal((4, 1))
    view = np.broadcast_to(x, (4, 1000))
    np.testing.assert_allclose(summed(view, x, (1,), float32), x[:, 0] * 1000.0, rtol=1e-6)


def test_nothing_to_sum_is_zero_and_its_mean_nan():
    x = np.zeros((3, 0), np.float32)
    assert summed(x, x, (1,), float32).tolist() == [0.0] * 3
    assert np.isnan(summed(x, x, (1,), float32, divisor=0)).all()
    assert summed(x, x, (0,), float32).shape == (0,)


def test_nan_and_infinity_reach_their_own_sums_only():
    x = np.ones((4, 600), np.float32)
    x[1, 5], x[2, 599] = np.nan, np.inf
    found = summed(x, x, (1,), float32)
    assert (found[0], found[2], found[3]) == (600, np.inf, 600)
    assert np.isnan(found[1])


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=str)
def test_bindings_above_the_limit_are_split(axes):
    small = replace(profile(), limits=replace(profile().limits, binding_bytes=2048))
    x = normal((37, 101))
    plan = reduce.plan(operand(x), axes, operand(np.zeros(x.sum(axes).shape, np.float32)), 1, small)
    given = [part for step in plan.steps for part in step.resources.values()]
    assert max(part.nbytes for part in given) <= 2048
    np.testing.assert_allclose(
        summed(x, x, axes, float32, on=small), x.astype(np.float64).sum(axes), rtol=1e-6, atol=2e-5
    )


def test_a_wrong_call_is_refused():
    x = operand(np.zeros((3, 4), np.float32))
    with pytest.raises(ValueError, match=r"has shape \(3,\)"):
        reduce.plan(x, (1,), operand(np.zeros(4, np.float32)), 1, profile())
    with pytest.raises(ValueError, match="float dtype"):
        reduce.plan(x, (1,), operand(np.zeros(3, np.int32)), 4, profile())
    with pytest.raises(UnsupportedError, match="int32"):
        reduce.plan(x, (1,), operand(np.zeros(3, np.bool_)), 1, profile())
