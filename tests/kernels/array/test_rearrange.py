"""Fill, concatenate, pad and repeat against NumPy."""

import numpy as np
import pytest

from wgattn._dtypes import bfloat16, bool_, float16, float32, int8, int32, short_name, uint8, uint32
from wgattn._kernels.array import fill, rearrange

from .views import filled, operand, profile, same

pytestmark = pytest.mark.device

DTYPES = [float32, float16, bfloat16, int32, uint32, bool_, int8, uint8]


def ones(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return (np.arange(np.prod(shape)) % 101 + 1).reshape(shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=short_name)
def test_fill(dtype):
    result = ones((3, 7), dtype)
    part = result[1:, ::-2]
    found = filled(fill.plan(1, operand(part, result), profile()), {}, result)
    part[...] = 1
    assert same(found, result)
    assert fill.plan(1, operand(result[:0]), profile()).steps == ()


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("dtype", DTYPES, ids=short_name)
def test_concatenate(axis, dtype):
    arrays = []
    for size in (3, 1, 0, 5, 2):
        shape = [3, 5, 7]
        shape[axis] = size
        arrays.append(ones(tuple(shape), dtype))
    wanted = np.concatenate(arrays, axis)
    plan = rearrange.concatenate(tuple(map(operand, arrays)), axis, operand(wanted), profile())
    found = filled(plan, {f"source{n}": x for n, x in enumerate(arrays) if x.size}, np.zeros_like(wanted))
    assert same(found, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=short_name)
def test_pad(dtype):
    x = ones((3, 5), dtype)
    wanted = np.pad(x, ((1, 0), (2, 3)))
    stale = np.full_like(wanted, 1)
    assert same(filled(rearrange.pad(operand(x), (1, 2), operand(wanted), profile()), {"source": x}, stale), wanted)
    assert same(filled(rearrange.pad(operand(x), (0, 0), operand(x), profile()), {"source": x}, np.zeros_like(x)), x)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [float16, float32, int8], ids=short_name)
def test_repeat(axis, dtype):
    x = ones((3, 5), dtype)
    wanted = np.repeat(x, 3, axis)
    found = filled(
        rearrange.repeat(operand(x), 3, axis, operand(wanted), profile()), {"source": x}, np.zeros_like(wanted)
    )
    assert same(found, wanted)


def test_sizes_that_do_not_fit_are_refused():
    x, result = operand(np.zeros((2, 3), np.float32)), operand(np.zeros((5, 3), np.float32))
    with pytest.raises(ValueError, match="do not fill"):
        rearrange.concatenate((x, x), 0, result, profile())
    with pytest.raises(ValueError, match="does not fit"):
        rearrange.pad(x, (4, 0), result, profile())
    with pytest.raises(ValueError, match="do not fill"):
        rearrange.repeat(x, 2, 0, result, profile())
