"""Entries and pages moved, and rows read behind the lengths, against NumPy's indexing."""

from dataclasses import replace

import numpy as np
import pytest

from wgattn._dtypes import bfloat16, float16, float32, int8, int32, short_name
from wgattn._errors import UnsupportedError
from wgattn._kernels.array import cache_move, cache_rows
from wgattn._kernels.kernel import Operand
from wgattn._runtime.profile import DeviceProfile, Limits

from ..run_plan import run_plan
from .grid import natural
from .views import filled, operand, profile, same

pytestmark = pytest.mark.device


def numbers(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return np.random.default_rng(5).integers(-99, 99, shape).astype(dtype)


def taken(storage: np.ndarray, source: list[int], on: DeviceProfile | None = None) -> np.ndarray:
    indices = np.array(source, np.int32)
    result = np.zeros((len(source), *storage.shape[1:]), storage.dtype)
    plan = cache_move.take(operand(storage), operand(indices), operand(result), on or profile())
    return filled(plan, {"cache": storage, "source": indices}, result)


@pytest.mark.parametrize("dtype", [float32, bfloat16, int8, int32], ids=short_name)
def test_entries_are_taken_by_index(dtype):
    storage = numbers((3, 5, 2, 4), dtype)
    for source in ([2, 0, 1], [1, 1, 1, 2, 0], [0], []):
        assert same(taken(storage, source), storage[source] if source else storage[:0])
    assert same(taken(storage, [-1, 3, 99]), storage[[0, 2, 2]])


def test_lengths_are_taken_too():
    assert taken(np.array([5, 6, 7], np.int32), [2, 2, 0]).tolist() == [7, 7, 5]


@pytest.mark.parametrize("limit", [512, 768, 1024, 2304])
def test_wide_arrays_take_several_launches(limit):
    storage = numbers((5, 33, 4), float32)
    little = replace(profile(), limits=replace(profile().limits, binding_bytes=limit, offset_alignment=256))
    source = [4, 1, 0, 3, 3, 2, 0]
    assert same(taken(storage, source, little), storage[source])


def test_pages_are_copied_where_both_indices_are_there():
    pool, source, destination = numbers((6, 8, 1, 4), float16), [0, 5, -1, 2, 6, 3], [4, 1, 2, -1, 3, 9]
    indices = {"source": np.array(source, np.int32), "destination": np.array(destination, np.int32)}
    plan = cache_move.replace(operand(pool), *(operand(x) for x in indices.values()), profile())
    found = run_plan(plan, indices, {"cache": pool})["cache"].view(pool.dtype).reshape(pool.shape)
    wanted = pool.copy()
    wanted[[4, 1]] = pool[[0, 5]]
    assert same(found, wanted)


def test_a_pool_wider_than_a_binding_is_refused():
    little = DeviceProfile(limits=Limits(binding_bytes=1024))
    with pytest.raises(UnsupportedError, match=r"2,048 bytes .* binds 1,024"):
        cache_move.replace(natural(float32, 4, 128), natural(int32, 2), natural(int32, 2), little)
    assert not cache_move.replace(natural(float32, 4, 128), natural(int32, 0), natural(int32, 0), little).steps


@pytest.mark.parametrize("dtype", [float32, float16], ids=short_name)
@pytest.mark.parametrize("counts", [None, [2, 0, 9, -1, 3]])
def test_rows_behind_the_lengths_are_read(dtype, counts):
    storage, lengths = numbers((5, 6, 3, 5), dtype), [0, 3, 4, 6, -2]
    result = np.zeros((5, 3, 3, 5), dtype)
    wanted = result.copy()
    for b, length in enumerate(lengths):
        for t in range(3 if counts is None else min(max(counts[b], 0), 3)):
            if max(length, 0) + t < 6:
                wanted[b, t] = storage[b, max(length, 0) + t]
    small = {"lengths": np.array(lengths, np.int32)} | (
        {} if counts is None else {"counts": np.array(counts, np.int32)}
    )
    for base, view in ((storage, storage), (np.ascontiguousarray(storage[:, ::-1]), None)):
        seen = operand(base if view is not None else base[:, ::-1], base)
        given = {name: operand(x) for name, x in small.items()}
        plan = cache_rows.plan(seen, given["lengths"], given.get("counts"), operand(result), profile())
        assert same(filled(plan, {"cache": base, **small}, result), wanted)


def test_rows_of_wide_storage_are_read_a_part_at_a_time():
    limits = Limits(binding_bytes=1 << 20)
    storage = Operand(float32, (8, 512, 2, 64), (512 * 128, 128, 64, 1))
    plan = cache_rows.plan(
        storage, natural(int32, 8), None, natural(float32, 8, 1, 2, 64), DeviceProfile(limits=limits)
    )
    assert len(plan.steps) > 1
