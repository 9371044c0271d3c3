"""Fill and pad against NumPy."""

import numpy as np
import pytest

from wgattn._dtypes import bfloat16, bool_, float16, float32, int8, int32, short_name, uint8, uint32
from wgattn._kernels.array import fill, pad

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


@pytest.mark.parametrize("dtype", DTYPES, ids=short_name)
def test_pad(dtype):
    x = ones((3, 5), dtype)
    wanted = np.pad(x, ((1, 0), (2, 3)))
    stale = np.full_like(wanted, 1)
    assert same(filled(pad.plan(operand(x), (1, 2), operand(wanted), profile()), {"source": x}, stale), wanted)
    assert same(filled(pad.plan(operand(x), (0, 0), operand(x), profile()), {"source": x}, np.zeros_like(x)), x)


def test_a_source_that_does_not_fit_is_refused():
    x, result = operand(np.zeros((2, 3), np.float32)), operand(np.zeros((5, 3), np.float32))
    with pytest.raises(ValueError, match="does not fit"):
        pad.plan(x, (4, 0), result, profile())
