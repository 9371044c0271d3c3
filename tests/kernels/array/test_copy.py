"""Copies and casts against NumPy's own, over layouts, sizes and special values."""

from dataclasses import replace

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

from wgattn._dtypes import (
    bfloat16,
    bool_,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    int4,
    int8,
    int32,
    short_name,
    uint8,
    uint32,
)
from wgattn._kernels.array import copy, pointwise

from .views import filled, operand, profile, same

pytestmark = pytest.mark.device

TAKEN = pointwise.REGISTERS
TIES = [
    65504.0,
    65519.9,
    65520.0,
    6e-8,
    2.98e-8,
    2.99e-8,
    6.1e-5,
    1e-40,
    1.00390625,
    1.01171875,
    0.99951171875 + 2**-12,
]
SPECIAL = [0.0, -0.0, 1.0, -1.5, 2.5, 3.5, 255.5, 256.5, 257.5, 1e30, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan]


def values(dtype: np.dtype, size: int) -> np.ndarray:
    """Values that every other dtype can hold, of both signs where there are signs."""
    numbers = np.random.default_rng(size).integers(0, 100, size)
    if dtype not in (bool_, uint8, uint32):
        numbers = numbers - 50
    return numbers.astype(dtype)


@pytest.mark.parametrize("source", pointwise.REGISTERS, ids=short_name)
@pytest.mark.parametrize("result", pointwise.REGISTERS, ids=short_name)
def test_cast(source, result):
    x = values(source, 37)
    if int4 in (source, result):
        x = (x.astype(np.int32) % 8).astype(source)
    if result in (uint8, uint32):
        x = np.abs(x.astype(np.int32)).astype(source)
    found = filled(copy.plan(operand(x), operand(np.zeros(37, result)), profile()), {"source": x}, np.zeros(37, result))
    assert same(found, x.astype(result))


@pytest.mark.parametrize("dtype", [float16, bfloat16, float8_e4m3fn, float8_e5m2, float32, bool_], ids=short_name)
def test_rounding_is_numpys(dtype):
    random = np.random.default_rng(0)
    x = np.concatenate([TIES, SPECIAL, random.normal(size=3000), np.exp(random.normal(size=3000) * 12)]).astype(
        np.float32
    )
    result = np.zeros(x.shape, dtype)
    found = filled(copy.plan(operand(x), operand(result), profile()), {"source": x}, result)
    with np.errstate(over="ignore"):
        assert same(found, x.astype(dtype))


@pytest.mark.parametrize("dtype", [float16, bfloat16, float8_e4m3fn, float8_e5m2], ids=short_name)
def test_every_narrow_float_is_read_and_written_exactly(dtype):
    x = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype)
    wide = np.zeros(x.shape, np.float32)
    found = filled(copy.plan(operand(x), operand(wide), profile()), {"source": x}, wide)
    assert same(found, x.astype(np.float32))
    back = filled(copy.plan(operand(found), operand(x), profile()), {"source": found}, np.zeros(x.shape, dtype))
    assert same(back, x)


@pytest.mark.parametrize("dtype", [int32, uint32, int8, uint8, int4], ids=short_name)
def test_floats_outside_an_integers_range_are_clamped(dtype):
    low, high = ml_dtypes.iinfo(dtype).min, ml_dtypes.iinfo(dtype).max
    x = np.array([np.nan, np.inf, -np.inf, 1e20, -1e20, 2.9, -2.9, 0.5, -0.5], np.float32)
    wanted = [0, high, low, high, low, 2, -2 if low else 0, 0, 0]
    result = np.zeros(x.shape, dtype)
    found = filled(copy.plan(operand(x), operand(result), profile()), {"source": x}, result)
    assert found.astype(np.int64).tolist() == wanted


@pytest.mark.parametrize("dtype", [int8, float16, float32], ids=short_name)
def test_a_slice_is_written_and_its_neighbours_are_kept(dtype):
    x, old = values(dtype, 3 * 5 * 7).reshape(3, 5, 7), values(dtype, 5 * 9 * 4).reshape(5, 9, 4)
    new = old.copy()
    part, source = new[1:4, 8:3:-1, 1:4], x[:, :, ::-2][:, :, :3]
    plan = copy.plan(operand(source, x), operand(part, new), profile())
    found = filled(plan, {"source": x}, old)
    part[...] = source
    assert same(found, new)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_empty(shape):
    x = np.zeros(shape, np.float32)
    assert copy.plan(operand(x), operand(x.astype(np.float16)), profile()).steps == ()


def test_broadcast_and_rank_zero():
    x, result = np.array(3.0, np.float32), np.zeros((3, 5), np.float16)
    assert (filled(copy.plan(operand(x), operand(result), profile()), {"source": x}, result) == 3).all()
    scalar = np.zeros((), np.float16)
    assert filled(copy.plan(operand(x), operand(scalar), profile()), {"source": x}, scalar) == 3


@pytest.mark.parametrize("dtype", [uint8, bfloat16, float32], ids=short_name)
def test_bindings_above_the_limit_are_split(dtype):
    limits = replace(profile().limits, binding_bytes=1024)
    x = values(dtype, 3 * 31 * 41).reshape(3, 31, 41)
    wanted = np.ascontiguousarray(x.transpose(2, 0, 1))
    plan = copy.plan(operand(x.transpose(2, 0, 1), x), operand(wanted), replace(profile(), limits=limits))
    assert len(plan.steps) > 3
    assert all(given.nbytes <= 1024 for step in plan.steps for given in step.resources.values())
    assert same(filled(plan, {"source": x}, np.zeros_like(wanted)), wanted)


def test_a_grid_above_the_limit_is_folded():
    limits = replace(profile().limits, workgroups_per_dimension=3)
    x = values(int32, 64 * 17 - 5)[::-1]
    base = np.ascontiguousarray(x[::-1])
    plan = copy.plan(
        operand(base[::-1], base), operand(np.zeros(x.shape, np.float16)), replace(profile(), limits=limits)
    )
    assert max(plan.steps[0].workgroups) <= 3
    assert same(filled(plan, {"source": base}, np.zeros(x.shape, np.float16)), x.astype(np.float16))


@st.composite
def placed(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[slice, ...]]:
    """A larger shape and the slices of it, with steps of either sign, that have `shape`."""
    sizes, slices = [], []
    for size in shape:
        step, low, high = draw(st.integers(1, 3)), draw(st.integers(0, 2)), draw(st.integers(0, 2))
        end = low + (size - 1) * step
        sizes.append(end + 1 + high)
        backwards = slice(end, low - 1 if low else None, -step)
        slices.append(backwards if draw(st.booleans()) else slice(low, end + 1, step))
    return tuple(sizes), tuple(slices)


@hypothesis.given(data=st.data())
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.too_slow])
def test_any_slice_of_any_order_goes_to_any_other(data):
    rank = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=rank, max_size=rank)))
    order = tuple(data.draw(st.permutations(range(rank))))
    (outer, cut), (to, into) = data.draw(placed(tuple(shape[axis] for axis in order))), data.draw(placed(shape))
    source_dtype, dtype = data.draw(
        st.sampled_from([(float32, float16), (float16, float16), (int8, uint8), (bool_, int8)])
    )
    x, old = values(source_dtype, int(np.prod(outer))).reshape(outer), values(dtype, int(np.prod(to))).reshape(to)
    x = np.abs(x.astype(np.int32)).astype(source_dtype)
    source = x[cut].transpose(np.argsort(order))
    new = old.copy()
    part = new[into]
    found = filled(copy.plan(operand(source, x), operand(part, new), profile()), {"source": x}, old)
    part[...] = source.astype(dtype)
    assert same(found, new)
