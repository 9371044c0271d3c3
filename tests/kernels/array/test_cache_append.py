"""Appending to caches, bit for bit against the reference's storage, and nothing else of the storage touched."""

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from wgattn import _reference_cache as reference
from wgattn._dtypes import bfloat16, float8_e4m3fn, float8_e5m2, float16, float32, int8, int32, short_name
from wgattn._errors import UnsupportedError
from wgattn._kernels.array import cache_append
from wgattn._kernels.kernel import Launch, Operand
from wgattn._kernels.rotation import TABLES, Rope, tables
from wgattn._runtime.profile import DeviceProfile, Limits

from ..run_plan import run_plan
from .grid import natural
from .test_rope import rotated
from .views import operand, profile, same

pytestmark = pytest.mark.device

int4 = np.dtype(ml_dtypes.int4)
STORED = (float32, float16, bfloat16, int8, float8_e4m3fn, float8_e5m2, int4)


@dataclass(frozen=True)
class Cache:
    """Storage filled with 0xFF bytes, and what has to be written to it."""

    dtype: np.dtype
    lengths: tuple[int, ...]
    capacity: int = 8
    K: int = 2
    H: int = 6
    Hv: int = 5
    ring: int | None = None
    pages: Any = None  # (B, C / page_size)
    pool: int = 0

    @property
    def rows(self) -> tuple[int, int]:
        if self.pages is None:
            return len(self.lengths), self.capacity
        return self.pool, self.capacity // self.pages.shape[1]

    def storage(self) -> dict[str, np.ndarray]:
        found = {}
        blocks = 0
        for side, dim in (("key", self.H), ("value", self.Hv)):
            stored, scales = reference.quantise(np.zeros((1, dim), np.float32), self.dtype)
            size = -(-stored.shape[-1] // 4) * 4
            found[side] = poison((*self.rows, self.K, size), stored.dtype)
            blocks += 0 if scales is None else scales.shape[-1]
        if blocks:
            found["scales"] = poison((*self.rows, self.K, blocks), float32)
        return found

    def slot(self, b: int, position: int, end: int) -> tuple[int, int] | None:
        """Where a token goes, if anywhere; `end` is the sequence's new length."""
        if self.ring is not None:
            if position >= self.ring and position + self.capacity - self.ring < end:
                return None
            slot = int(reference.ring_slots(np.array(position), self.capacity, self.ring))
        else:
            slot = position
        if slot >= self.capacity:
            return None
        if self.pages is None:
            return b, slot
        page, place = divmod(slot, self.rows[1])
        return (int(self.pages[b, page]), place) if 0 <= self.pages[b, page] < self.pool else None

    def appended(self, new: dict[str, np.ndarray], counts: Any = None) -> dict[str, np.ndarray]:
        """The storage after the append, and the new lengths."""
        wanted, ends = self.storage(), []
        for b, length in enumerate(self.lengths):
            start = max(length, 0)
            count = new["key"].shape[1] if counts is None else min(max(counts[b], 0), new["key"].shape[1])
            end = start + count if self.ring is not None else min(start + count, max(self.capacity, 0))
            ends.append(end)
            for t in range(count):
                place = self.slot(b, start + t, end)
                if place is None:
                    continue
                block = 0
                for side in ("key", "value"):
                    stored, scales = reference.quantise(new[side][b, t], self.dtype)
                    wanted[side][place] = 0
                    wanted[side][place][:, : stored.shape[-1]] = stored
                    if scales is not None:
                        wanted["scales"][place][:, block : block + scales.shape[-1]] = scales
                        block += scales.shape[-1]
        return {**wanted, "new_lengths": np.array(ends, np.int32)}

    def run(
        self,
        new: dict[str, np.ndarray],
        counts: Any = None,
        rope: Rope | None = None,
        bases: dict[str, np.ndarray] | None = None,
        on: DeviceProfile | None = None,
    ) -> dict[str, np.ndarray]:
        """What the kernel leaves; `new` may be views of `bases`."""
        bases = new if bases is None else bases
        small = {"lengths": np.array(self.lengths, np.int32)}
        small |= {} if counts is None else {"counts": np.array(counts, np.int32)}
        small |= {} if self.pages is None else {"pages": np.asarray(self.pages, np.int32)}
        storage = self.storage()
        operands = {name: operand(x) for name, x in {**storage, **small}.items()}
        operands |= {f"new_{side}": operand(new[side], bases[side]) for side in new}
        plan = cache_append.plan(operands, self.ring, rope, "new_lengths", on or profile())
        sources = {**small, **{f"new_{side}": bases[side] for side in new}}
        if rope is not None:
            sources[TABLES] = tables(rope, self.H)
        found = run_plan(plan, sources, {**storage, "new_lengths": poison((len(self.lengths),), int32)})
        shapes = {**storage, "new_lengths": np.zeros(len(self.lengths), np.int32)}
        return {name: found[name].view(x.dtype).reshape(x.shape) for name, x in shapes.items()}


def poison(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return np.full(int(np.prod(shape)) * dtype.itemsize, 0xFF, np.uint8).view(dtype).reshape(shape)


def fresh(cache: Cache, T: int, dtype: np.dtype = float32, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    B, K = len(cache.lengths), cache.K
    made = {"key": rng.standard_normal((B, T, K, cache.H)), "value": 3 * rng.standard_normal((B, T, K, cache.Hv))}
    return {side: x.astype(dtype) for side, x in made.items()}


def agree(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, x in wanted.items():
        assert same(found[name], x), f"{name}: {found[name]} is not {x}"


@pytest.mark.parametrize("dtype", STORED, ids=short_name)
@pytest.mark.parametrize("source", [float32, float16, bfloat16], ids=short_name)
def test_what_is_stored_is_the_references_bit_for_bit(dtype, source):
    cache = Cache(dtype, (0, 3, 7, 9, -2), H=40, Hv=33)
    new = fresh(cache, 3, source)
    agree(cache.run(new), cache.appended(new))


@pytest.mark.parametrize("dtype", STORED, ids=short_name)
def test_odd_numbers_are_stored_as_the_reference_does(dtype):
    """NaN, infinities, the largest and the smallest, ties, zeros: a row each, and beside ordinary numbers."""
    odd = np.array([
        np.nan, -np.nan, np.inf, -np.inf, 3e38, -3e38, 65504, 65520, 464, 465, 57344, 61440, 1e-45, -3e-45, 1e-44,
        3e-40, 2e-38, 1.5e-38, 2.0**-24, 2.0**-25, 2.0**-9, 2.0**-10, 2.0**-16, 0.0, -0.0, 1 + 2.0**-11, 1 + 2.0**-8,
    ], np.float32)  # fmt: skip
    cache = Cache(dtype, (0,), capacity=4 * len(odd), K=1, H=32, Hv=4)
    rng = np.random.default_rng(1)
    key = np.stack([x * rng.choice(np.array([1, 0.5, -1, 0.25], np.float32), (4, 32)) for x in odd]).reshape(
        1, -1, 1, 32
    )
    key[0, ::4, 0, 1:] = rng.standard_normal((len(odd), 31)).astype(np.float32)
    key[0, 1::4, 0, 1:] = 0
    new = {"key": key.astype(np.float32), "value": np.ascontiguousarray(key[..., :4], np.float32)}
    agree(cache.run(new), cache.appended(new))


@pytest.mark.parametrize("dtype", [int8, int4], ids=short_name)
def test_quotients_near_ties_round_as_in_float32(dtype):
    """Rows whose elements are the floats around every half step of their scale."""
    most = 127 if dtype == int8 else 7
    peaks = np.random.default_rng(2).uniform(0.5, 2, 16).astype(np.float32)
    scales = peaks / np.float32(most)
    steps = (np.arange(31) * most // 31 + 0.5).astype(np.float32)
    middle = scales[:, None].astype(np.float64) * steps
    near = [middle.astype(np.float32)]
    for to in (np.float32(0), np.float32(10)):
        step = near[0]
        for _ in range(2):
            step = np.nextafter(step, to)
            near.append(step)
    rows = np.concatenate([np.concatenate([peaks[:, None], -x], 1) for x in near])
    cache = Cache(dtype, (0,), capacity=len(rows), K=1, H=32, Hv=32)
    new = {"key": rows.reshape(1, -1, 1, 32), "value": rows[::-1].copy().reshape(1, -1, 1, 32)}
    agree(cache.run(new), cache.appended(new))


@pytest.mark.parametrize("dtype", [float32, float16, int8, int4], ids=short_name)
def test_ragged_counts_write_so_many_tokens(dtype):
    cache = Cache(dtype, (0, 2, 5, 7, 8), K=3, H=36, Hv=4)
    new, counts = fresh(cache, 4), (0, 4, 1, 9, 3)
    agree(cache.run(new, counts), cache.appended(new, counts))
    agree(cache.run(new, (-1,) * 5), cache.appended(new, (0,) * 5))


@pytest.mark.parametrize("pinned", [0, 1, 3])
@pytest.mark.parametrize("T", [1, 4, 21])
def test_a_ring_wraps_behind_its_pinned_tokens(pinned, T):
    cache = Cache(float16, (0, 2, 7, 8, 1003), ring=pinned)
    new = fresh(cache, T)
    agree(cache.run(new), cache.appended(new))
    counts = (T, 0, 1, 2, T - 1)
    agree(cache.run(new, counts), cache.appended(new, counts))


@pytest.mark.parametrize("dtype", [bfloat16, int8, int4], ids=short_name)
@pytest.mark.parametrize("ring", [None, 2])
def test_pages_are_looked_up_and_those_that_are_none_take_nothing(dtype, ring):
    pages = np.array([[3, 0, -1], [1, 5, 2], [4, 6, 1]])  # 6 is beyond the pool of six pages
    cache = Cache(dtype, (6, 0, 15), capacity=24, pages=pages, pool=6, H=12, ring=ring)
    pages[2, 2] = -7
    for T in (1, 13):
        new = fresh(cache, T)
        agree(cache.run(new), cache.appended(new))
    agree(cache.run(new, (3, 13, 2)), cache.appended(new, (3, 13, 2)))


def test_new_rows_may_be_any_views():
    cache = Cache(float16, (1, 2), H=6, Hv=6)
    base = np.random.default_rng(3).standard_normal((2, 12, 2, 5)).astype(np.float16)
    key = base.transpose(0, 3, 2, 1)[:, ::2, ::-1, 1:12:2][..., ::-1]
    value = np.broadcast_to(base[:, :1, :, :1].transpose(0, 3, 2, 1), (2, 3, 2, 6))
    new = {"key": key[..., :6], "value": value}
    cache = replace(cache, H=new["key"].shape[-1])
    agree(cache.run(new, bases={"key": base, "value": base}), cache.appended(new))


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("rotary_dim", [None, 4])
@pytest.mark.parametrize("dtype", [float32, float16], ids=short_name)
def test_rope_turns_keys_at_their_positions(style, rotary_dim, dtype):
    cache = Cache(dtype, (0, 5000), capacity=6000, H=12)
    rope, new = Rope(style=style, rotary_dim=rotary_dim), fresh(cache, 3)
    found = cache.run(new, rope=rope)
    at = np.array(cache.lengths)[:, None] + np.arange(3)
    turned = rotated(new["key"], at, rope)
    for b, start in enumerate(cache.lengths):
        stored = found["key"][b, start : start + 3].astype(np.float64)
        np.testing.assert_allclose(stored, turned[b], atol=2e-3 if dtype == float16 else 4e-6, rtol=0)
    wanted = cache.appended(new)
    assert same(found["value"], wanted["value"])
    assert same(found["new_lengths"], wanted["new_lengths"])


def test_quantised_keys_are_turned_first():
    cache = Cache(int8, (7,), capacity=12, H=16, Hv=16)
    rope, new = Rope(), fresh(cache, 4)
    found = cache.run(new, rope=rope)
    turned = rotated(new["key"], 7 + np.arange(4), rope).astype(np.float32)
    stored = reference.dequantise(found["key"][:, 7:11], found["scales"][:, 7:11, :, :1], 16)
    assert np.abs(stored - turned).max() <= np.abs(turned).max() / 127


def test_a_device_that_binds_little_gets_one_buffer_of_small_arrays_and_several_launches():
    pages = np.array([[3, 0, -1], [1, 5, 2]])
    cache = Cache(int8, (6, 0), capacity=24, pages=pages, pool=6, H=12)
    new, counts = fresh(cache, 9), (9, 4)
    little = replace(profile(), limits=replace(profile().limits, binding_bytes=768, offset_alignment=256))
    agree(cache.run(new, counts, on=little), cache.appended(new, counts))
    packed = replace(profile(), limits=replace(profile().limits, storage_buffers=7))
    agree(cache.run(new, counts, on=packed), cache.appended(new, counts))


def test_one_side_may_be_alone():
    cache = Cache(float32, (1, 2))
    new = fresh(cache, 2)
    operands = {"key": natural(float32, 2, 8, 2, 8), "lengths": natural(int32, 2)}
    plan = cache_append.plan({**operands, "new_key": operand(new["key"])}, None, None, "new_lengths", profile())
    (step,) = plan.steps
    assert isinstance(step, Launch)
    assert [binding.name for binding in step.variant.bindings] == ["key", "new_key", "lengths", "new_lengths"]


def test_no_tokens_leave_the_lengths():
    cache = Cache(float32, (1, 2))
    agree(cache.run(fresh(cache, 0)), {**cache.storage(), "new_lengths": np.array([1, 2], np.int32)})


def test_a_token_wider_than_a_binding_is_refused():
    limits = Limits(binding_bytes=1024, offset_alignment=256)
    operands = {"key": natural(float32, 1, 4, 64, 16), "lengths": natural(int32, 1)}
    operands["new_key"] = Operand(float32, (1, 1, 64, 16), (0, 0, 0, 0))
    with pytest.raises(UnsupportedError, match=r"a token of 4,096 bytes .* is 1,024: split the heads"):
        cache_append.plan(operands, None, None, "new_lengths", DeviceProfile(limits=limits))
