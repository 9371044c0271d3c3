"""Appends through jit: a donated cache stays in its memory; a long loop takes no more of it and compiles nothing."""

from typing import Any

import numpy as np
import pytest

import wgattn as wa
from wgattn import _run, _runtime
from wgattn._array import Array, asarray, of
from wgattn._graph.operations import CacheAppend, CacheMove
from wgattn._record import Stored, record

pytestmark = pytest.mark.device

B, C, K, H = 2, 16, 2, 8
OPERANDS = ("key", "value", "lengths", "new_key", "new_value")
Held = tuple[Array, ...]


def append(held: Any, key: Any, value: Any, ring: int | None = None) -> Held:
    given = [asarray(x) for x in (*held, key, value)]
    step = record(CacheAppend(OPERANDS, ring), [(x._step, x._result) for x in given])
    return tuple(of(step, result) for result in range(len(step.avals)))


def empty(capacity: int = C) -> Held:
    made = (np.zeros((B, capacity, K, H), np.float16), np.zeros((B, capacity, K, H), np.float16), np.zeros(B, np.int32))
    return tuple(wa.device_put(x) for x in made)


def tokens(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    key, value = rng.standard_normal((2, B, count, K, H)).astype(np.float32)
    return key, value


def native(array: Array) -> int:
    value = array._step.values[array._result]
    assert isinstance(value, Stored)
    return id(value.buffer.native)


def test_eager_appends_are_functional():
    start, (key, value) = empty(), tokens(3)
    one, other = append(start, key, value), append(start, -key, value)
    np.testing.assert_array_equal(np.asarray(one[0])[:, :3], key.astype(np.float16))
    np.testing.assert_array_equal(np.asarray(other[0])[:, :3], -key.astype(np.float16))
    np.testing.assert_array_equal(start[0], np.zeros((B, C, K, H)))
    again = append(one, key, value)
    np.testing.assert_array_equal(np.asarray(again[1])[:, 3:6], value.astype(np.float16))
    assert np.asarray(again[2]).tolist() == [6, 6]
    assert np.asarray(one[2]).tolist() == [3, 3]


def test_a_donated_cache_is_written_where_it_lies():
    grow = wa.jit(append, donate_argnums=0)
    held, (key, value) = empty(), tokens(1)
    first, place = held, [native(x) for x in held[:2]]
    wanted = np.zeros((B, C, K, H), np.float16)
    for n in range(C):
        held = grow(held, key + n, value)
        wanted[:, n] = (key[:, 0] + n).astype(np.float16)
        assert [native(x) for x in held[:2]] == place
    np.testing.assert_array_equal(held[0], wanted)
    with pytest.raises(RuntimeError, match="donated"):
        np.asarray(first[0])
    compiled = grow.lower(held, key, value).compile()
    assert compiled.memory_analysis()["outputs"] == 16
    assert compiled.memory_analysis()["scratch"] == 0
    assert wa.jit(append).lower(held, key, value).compile().memory_analysis()["outputs"] == 16 + 2 * B * C * K * H * 2


def test_a_donated_cache_that_somebody_still_needs_is_copied():
    grow = wa.jit(append, donate_argnums=0)
    held, (key, value) = grow(empty(), *tokens(2)), tokens(1)
    before = np.asarray(held[0])
    later = held[0] * 1  # not computed yet
    after = grow(held, key, value)
    assert native(after[1]) is not None
    np.testing.assert_array_equal(later, before)
    np.testing.assert_array_equal(np.asarray(after[0])[:, :2], before[:, :2])


def test_what_is_returned_beside_the_new_cache_is_the_old_one():
    grow = wa.jit(lambda held, key, value: (held[0] + 0, append(held, key, value)), donate_argnums=0)
    held, (key, value) = empty(), tokens(1)
    for n in range(3):
        old, held = grow(held, key + n, value)
        assert np.count_nonzero(np.asarray(old).any((0, 2, 3))) == n
        np.testing.assert_array_equal(np.asarray(held[0])[:, n], (key[:, 0] + n).astype(np.float16))


def test_ten_thousand_appends_take_no_memory_and_compile_nothing():
    grow = wa.jit(append, donate_argnums=0, static_argnames="ring")
    held, (key, value) = empty(), (wa.device_put(x) for x in tokens(1))
    for _ in range(10):
        held = grow(held, key, value, ring=3)
    np.asarray(held[2])
    device = _runtime.device()
    reserved, compiled, pipelines = device.memory.reserved, len(_run._compiled), len(device.pipelines._pipelines)
    place = native(held[0])
    for _ in range(10_000):
        held = grow(held, key, value, ring=3)
    assert np.asarray(held[2]).tolist() == [10_010, 10_010]
    assert native(held[0]) == place
    assert device.memory.reserved == reserved
    assert (len(_run._compiled), len(device.pipelines._pipelines)) == (compiled, pipelines)


def test_a_step_that_grows_two_layers_and_reorders_them():
    def step(layers: Any, key: Any, value: Any, order: Any) -> Any:
        grown = [append(held, key * (n + 1), value) for n, held in enumerate(layers)]
        moved = []
        for held in grown:
            steps = [record(CacheMove(), [(x._step, x._result), (order._step, order._result)]) for x in held]
            moved.append(tuple(of(step) for step in steps))
        return moved

    key, value = tokens(2)
    layers = wa.jit(step, donate_argnums=0)([empty(), empty()], key, value, np.array([1, 0], np.int32))
    for n, held in enumerate(layers):
        np.testing.assert_array_equal(np.asarray(held[0])[:, :2], (key * (n + 1)).astype(np.float16)[::-1])
        assert np.asarray(held[2]).tolist() == [2, 2]
