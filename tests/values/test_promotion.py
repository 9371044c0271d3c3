"""Result dtypes are jax.numpy's with x64 off, scalars weak; jax is asked for every pair."""

import operator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import wgattn as wa

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.uint32, np.bool_)
SCALARS = (True, 2, 1.5)
OPERATORS = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.eq,
    operator.ne,
    operator.lt,
    operator.ge,
)


def name(given: Any) -> str:
    return getattr(given, "__name__", str(given))


def said(call: Any) -> tuple[np.dtype, bool] | None:
    """dtype and weakness of a result (a bool gives way in any case), None where TypeError is raised."""
    try:
        result = call()
    except TypeError:
        return None
    return result.dtype, result.weak_type and result.dtype != np.bool_


def jax_says(call: Any, *operands: Any) -> tuple[np.dtype, bool] | None:
    return said(lambda: jax.eval_shape(lambda: call(*operands)))


def we_say(call: Any, *operands: Any) -> tuple[np.dtype, bool] | None:
    return said(lambda: call(*operands))


@pytest.mark.parametrize("call", OPERATORS, ids=name)
@pytest.mark.parametrize("left", DTYPES, ids=name)
@pytest.mark.parametrize("right", DTYPES, ids=name)
def test_pairs_of_arrays(call: Any, left: Any, right: Any):
    ones = np.ones(3, left), np.ones(3, right)
    assert we_say(call, *map(wa.asarray, ones)) == jax_says(call, *map(jnp.asarray, ones))


@pytest.mark.parametrize("call", OPERATORS, ids=name)
@pytest.mark.parametrize("left", DTYPES, ids=name)
@pytest.mark.parametrize("scalar", SCALARS, ids=name)
def test_arrays_with_scalars_on_either_side(call: Any, left: Any, scalar: Any):
    ones = np.ones(3, left)
    assert we_say(call, wa.asarray(ones), scalar) == jax_says(call, jnp.asarray(ones), scalar)
    assert we_say(call, scalar, wa.asarray(ones)) == jax_says(call, scalar, jnp.asarray(ones))


@pytest.mark.parametrize("call", OPERATORS, ids=name)
def test_weak_arrays_stay_weak_and_give_way(call: Any):
    for scalars in ((2, 3), (2.0, 3), (2.0, 1.0)):
        assert we_say(call, *map(wa.asarray, scalars)) == jax_says(call, *map(jnp.asarray, scalars))
    half = np.ones(3, np.float16)
    assert we_say(call, wa.asarray(half), wa.asarray(2.0)) == jax_says(call, jnp.asarray(half), jnp.asarray(2.0))
    whole = np.ones(3, np.int32)
    assert we_say(lambda x, h: call(x * 1.5, h), wa.asarray(whole), wa.asarray(half)) == jax_says(
        lambda x, h: call(x * 1.5, h), jnp.asarray(whole), jnp.asarray(half)
    )


@pytest.mark.parametrize("left", DTYPES, ids=name)
@pytest.mark.parametrize("right", [*DTYPES, 1, 2.0], ids=name)
def test_where_and_concatenate(left: Any, right: Any):
    x = np.ones(3, left)
    y = right if isinstance(right, int | float) else np.ones(3, right)
    chosen = np.array([True, False, True])
    assert we_say(wa.where, chosen, x, y) == jax_says(jnp.where, chosen, x, y)
    if not isinstance(y, int | float):
        assert we_say(wa.concatenate, [x, y]) == jax_says(jnp.concatenate, [x, y])


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_functions_of_one_array(dtype: Any):
    x = np.ones((2, 3), dtype)
    assert we_say(wa.exp, x) == jax_says(jnp.exp, x)
    assert we_say(wa.mean, x) == jax_says(jnp.mean, x)
    assert we_say(operator.neg, wa.asarray(x)) == jax_says(operator.neg, jnp.asarray(x))


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint64])
def test_64_bit_inputs_become_32_bit(dtype: Any):
    assert wa.asarray(np.ones(3, dtype)).dtype == np.dtype(dtype).name.replace("64", "32")
    assert wa.asarray(np.ones(3, np.float16)).astype(dtype).dtype.itemsize == 4


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i4", ">u2"])
def test_bytes_in_the_other_order_are_the_same_type(dtype: str):
    x = np.arange(3).astype(dtype)
    assert wa.asarray(x).astype(dtype).dtype == wa.asarray(x).dtype
    np.testing.assert_array_equal(np.asarray(wa.asarray(x)), x)


@pytest.mark.parametrize("scalar", [np.float64(2), np.float32(2), np.int64(2)])
def test_numpy_scalars_are_not_weak(scalar: Any):
    half = np.ones(3, np.float16)
    assert (wa.asarray(half) * scalar).dtype == (jnp.asarray(half) * scalar).dtype


def test_what_storage_types_refuse():
    with pytest.raises(TypeError, match=r"int8 is a storage type and add does not compute in it: cast with .astype"):
        wa.asarray(np.ones(3, np.int8)) + 1
    with pytest.raises(TypeError, match="no dtype complex64"):
        wa.asarray(np.ones(3, np.complex64))
    with pytest.raises(TypeError, match=r"no dtype complex64 \(NumPy's reading of 'c8'\):"):
        wa.asarray(np.ones(3, np.float32)).astype("c8")


def test_python_integers_that_fit_nowhere():
    with pytest.raises(OverflowError, match=r"does not fit into int32; give np.uint32\(2147483648\) or a float"):
        wa.asarray(2**31)
    with pytest.raises(OverflowError, match="does not fit into int32; give a float"):
        wa.asarray(2**40)
    assert (wa.asarray(np.ones(2, np.float32)) * 2**40).dtype == np.float32


def test_a_number_above_float32_is_infinite():
    assert float(wa.asarray(1e300)) == np.inf  # and warns no more than jax does
