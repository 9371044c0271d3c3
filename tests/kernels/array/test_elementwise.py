"""Elementwise functions against NumPy's and jax.numpy's."""

import jax.numpy as jnp
import numpy as np
import pytest

from wgattn._dtypes import bfloat16, bool_, float16, float32, int32, short_name, uint32
from wgattn._kernels.array import elementwise
from wgattn._kernels.array.elementwise import ARITY, COMPARISONS, LOGIC

from .views import filled, operand, profile, same

pytestmark = pytest.mark.device

CASES = [
    (function, dtype)
    for function in ARITY
    for dtype in (float32, float16, bfloat16, int32, uint32, bool_)
    if not (function in ("divide", "exp") and dtype in (int32, uint32, bool_))
    and not (function in ("subtract", "negative") and dtype == bool_)
]
ROUNDED = {float32: 2e-6, float16: 2**-10, bfloat16: 2**-7}
EDGES = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-30, 3e38, 2.5, -7.0], np.float32)


def pairs(dtype: np.dtype, number: int) -> np.ndarray:
    """Every pair of edge values, and some more: this is side `number` of them."""
    edges = EDGES if dtype in (float32, float16, bfloat16) else np.array([0, 1, -1, 2**31 - 1, -(2**31), 77])
    side = np.repeat(edges, len(edges)) if number % 2 == 0 else np.tile(edges, len(edges))
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == bool_:
            return side == 1
        return side.astype(dtype) if dtype.kind != "u" else side.astype(np.int64).astype(dtype)


@pytest.mark.parametrize(("function", "dtype"), CASES, ids=lambda v: v if isinstance(v, str) else short_name(v))
def test_edges(function, dtype):
    arrays = [pairs(dtype, number) for number in range(ARITY[function])]
    if function == "where":
        arrays = [pairs(bool_, 0)[np.arange(arrays[0].size) % 36], *arrays[:2]]
    result = np.zeros(arrays[0].shape, bool_ if function in COMPARISONS + LOGIC else dtype)
    plan = elementwise.plan(function, tuple(map(operand, arrays)), operand(result), profile())
    found = filled(plan, {f"operand{n}": x for n, x in enumerate(arrays)}, result)
    wanted = np.asarray(getattr(jnp, function)(*map(jnp.asarray, arrays)))
    assert wanted.dtype == result.dtype
    if result.dtype in ROUNDED:  # subnormals may be flushed, and division is not exact everywhere
        rtol = ROUNDED[result.dtype] if function in ("exp", "divide") else 0
        np.testing.assert_allclose(found.astype(np.float32), wanted.astype(np.float32), rtol=rtol, atol=2e-38)
    else:
        assert same(found, wanted)


def test_exp_is_accurate_over_the_whole_range():
    x = np.concatenate([np.linspace(-87.3, 88.72, 4001), [-1e30, -104, 88.73, 1e30, 1e-8, -1e-8, 0]]).astype(np.float32)
    result = np.zeros_like(x)
    found = filled(elementwise.plan("exp", (operand(x),), operand(result), profile()), {"operand0": x}, result)
    with np.errstate(over="ignore", under="ignore"):
        wanted = np.exp(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=2e-38)


def test_operands_broadcast_and_lie_anywhere():
    a, b = np.arange(60, dtype=np.float32).reshape(3, 4, 5), np.arange(7, dtype=np.float32)
    left, right = a[::-1, 1:3, ::2], b[5:2:-1]
    result = np.zeros((3, 2, 3), np.float16)
    plan = elementwise.plan("multiply", (operand(left, a), operand(right, b)), operand(result), profile())
    found = filled(plan, {"operand0": a, "operand1": b}, result)
    assert same(found, (left * right).astype(np.float16))


def test_integers_wrap_and_large_ones_stay_exact():
    a, b = np.array([2**31 - 1, -5, 123456789], np.int32), np.array([1, 3, 987654321], np.int32)
    for function, wanted in (("add", a + b), ("multiply", a * b), ("subtract", a - b), ("maximum", np.maximum(a, b))):
        result = np.zeros(3, np.int32)
        plan = elementwise.plan(function, (operand(a), operand(b)), operand(result), profile())
        assert same(filled(plan, {"operand0": a, "operand1": b}, result), wanted), function


def test_sixteen_bit_results_are_rounded_once():
    a, b = np.array([2048.0, 1.0], np.float16), np.array([1.0, 2**-11], np.float16)
    result = np.zeros(2, np.float32)
    plan = elementwise.plan("add", (operand(a), operand(b)), operand(result), profile())
    assert filled(plan, {"operand0": a, "operand1": b}, result).tolist() == [2049.0, 1.0 + 2**-11]


def test_a_wrong_call_is_refused():
    x = operand(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"add \(2\)"):
        elementwise.plan("add", (x,), x, profile())
    with pytest.raises(ValueError, match="does not broadcast"):
        elementwise.plan("add", (x, operand(np.zeros(2, np.float32))), x, profile())
