"""Small integers stay known on the host through eager calls and jitted programs, and checks stand on them."""

from typing import Any

import jax
import numpy as np
import pytest

import wgattn as wa
from wgattn import _run
from wgattn._array import Array, elementwise
from wgattn._known import known, require

pytestmark = pytest.mark.device


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading from the device fails."""

    def refuse(*_: object) -> Any:
        raise AssertionError("a value was read back")

    monkeypatch.setattr(_run, "download", refuse)


def host(x: Array) -> list:
    value = known(x._step, x._result)
    assert value is not None
    assert value.dtype == x.dtype
    assert value.shape == x.shape
    return value.tolist()


def unknown(x: Array) -> bool:
    return known(x._step, x._result) is None


def from_floats() -> Array:
    return wa.asarray(np.array([3.0, 4.0], np.float32)).astype(np.int32)


def test_what_was_given_and_what_is_computed_of_it(unread: None):
    x = wa.asarray(np.arange(6, dtype=np.int32).reshape(2, 3))
    assert host(x + 1) == [[1, 2, 3], [4, 5, 6]]
    assert host(x.T[::-1, 1]) == [5, 4, 3]
    assert host(x[:, None].reshape(6)[2:4]) == [2, 3]
    assert host(wa.where(x > 2, -x, 7)) == [[7, 7, 7], [-3, -4, -5]]
    assert host(elementwise("minimum", x, 3)) == [[0, 1, 2], [3, 3, 3]]
    assert host(wa.concatenate([x, x * 2])[2]) == [0, 2, 4]
    assert host(wa.repeat(x[0], 2)) == [0, 0, 1, 1, 2, 2]
    assert host(wa.broadcast_to(x[0, 1], (2,)).astype(np.uint32)) == [1, 1]
    assert host(x + (2**31 - 1))[0] == [2**31 - 1, -(2**31), -(2**31) + 1], "integers wrap as on the device"


def test_the_device_keeps_it_known(unread: None):
    x = wa.device_put(np.array([1, 2], np.int32))
    y = (x + 1).block_until_ready()
    assert host(x) == [1, 2]
    assert host(y) == [2, 3]
    assert host(y + x) == [3, 5]


def test_what_the_device_alone_knows_is_unknown(unread: None):
    assert unknown(wa.asarray(np.ones(3, np.float32)))
    assert unknown(from_floats())
    assert unknown(from_floats() + 1)
    assert unknown(wa.asarray(np.zeros(1 << 19, np.int32))), "large arrays are not kept twice"


def test_later_writes_to_an_argument_change_nothing(unread: None):
    given = np.array([1, 2], np.int32)
    out = wa.jit(lambda n: (n, n + 1))(given)
    given[:] = 9
    assert [host(x) for x in out] == [[1, 2], [2, 3]]


def test_results_of_a_jitted_function(unread: None):
    traces = []

    def step(n: Array, x: Array) -> Any:
        traces.append(1)
        return n + 1, x * 2, (n * 3)[::-1], x.astype(np.int32)

    jitted = wa.jit(step)
    n = wa.asarray(np.array([0, 10], np.int32))
    x = wa.asarray(np.ones(2, np.float32))
    for _ in range(5):
        n, x, tripled, cast = jitted(n, x)
    assert len(traces) == 1
    assert host(n) == [5, 15]
    assert host(tripled) == [42, 12]
    assert unknown(cast)


def test_donated_and_returned_arguments(unread: None):
    jitted = wa.jit(lambda n, x: (n, x + 1), donate_argnums=(0, 1))
    n, x = jitted(wa.asarray(np.array([4], np.int32)), wa.asarray(np.array([6], np.int32)))
    assert host(n) == [4]
    assert host(x) == [7]


def test_captured_values_are_constants(unread: None):
    outside = wa.asarray(np.array([5, 6], np.int32)) + 1
    (out,) = wa.jit(lambda n: (n + outside,))(np.array([1, 1], np.int32))
    assert host(out) == [7, 8]


def fits(values: np.ndarray) -> None:
    if values.max() > 8:
        raise ValueError(f"{values.max()} is more than 8")


def test_a_check_is_made_at_once(unread: None):
    n = wa.asarray(np.array([7, 8], np.int32))
    require(fits, n)
    with pytest.raises(ValueError, match="9 is more than 8"):
        require(fits, n + 1)
    require(fits, from_floats() * 100)


def test_a_check_of_a_traced_value_is_made_at_every_call():
    def step(n: Array, x: Array) -> tuple[Array, Array]:
        require(fits, n + 1)
        return n + 1, x * 2

    jitted = wa.jit(step, donate_argnums=1)
    n, x = jitted(wa.asarray(np.array([6], np.int32)), wa.asarray(np.ones(2, np.float32)))
    n, x = jitted(n, x)
    with pytest.raises(ValueError, match="9 is more than 8"):
        jitted(n, x)
    assert np.asarray(x).tolist() == [4, 4], "nothing was donated to the call that failed"
    with pytest.raises(ValueError, match="9 is more than 8"):
        jitted.lower(n, x).compile()(n, x)
    assert jitted(from_floats() + 100, x)[0].shape == (2,), "what is not known is not tested"


def test_checks_of_inner_functions_and_of_gradients():
    inner = wa.jit(lambda n, x: (require(fits, n), x * x)[1])

    def loss(x: Array, n: Array) -> Array:
        return inner(n, x).sum()

    x = np.ones(2, np.float32)
    outer = wa.jit(lambda n, x: wa.grad(loss)(x, n + 1))
    assert np.asarray(outer(np.array([7], np.int32), x)).tolist() == [2, 2]
    with pytest.raises(ValueError, match="9 is more than 8"):
        outer(np.array([8], np.int32), x)
    with pytest.raises(ValueError, match="9 is more than 8"):
        wa.grad(loss)(x, wa.asarray(np.array([9], np.int32)))


def test_a_check_inside_a_jax_program():
    def step(n: Array, x: Array) -> Array:
        require(fits, n + 1)
        return x * 2

    jitted = wa.jit(step)
    run = jax.jit(lambda n, x: wa.jax.call(jitted, n, x))
    assert run(np.array([7], np.int32), np.ones(2, np.float32)).tolist() == [2, 2]
    with pytest.raises(Exception, match="9 is more than 8"):
        jax.block_until_ready(run(np.array([8], np.int32), np.ones(2, np.float32)))
