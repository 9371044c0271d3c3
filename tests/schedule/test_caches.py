"""Appends and moves in programs: written where they lie when nothing else needs what was there, and right if not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import wgattn as wa
from tests.graph.evaluate import evaluate
from tests.graph.evaluate_caches import _stored
from tests.graph.recording import Recording, arguments
from tests.schedule.run_graph import run_graph
from wgattn import _reference_cache as reference
from wgattn._array import of
from wgattn._dtypes import bfloat16, float8_e4m3fn, float16, float32, int8, int32, short_name, uint8
from wgattn._graph import operations as op
from wgattn._graph.graph import Graph, Use, View
from wgattn._graph.rewrite import fuse
from wgattn._kernels.rotation import Rope
from wgattn._kernels.stored import row_size, scale_count
from wgattn._record import record
from wgattn._runtime.profile import DeviceProfile
from wgattn._runtime.program import CopyBuffer, Dispatch
from wgattn._schedule.schedule import compile

PROFILE = DeviceProfile()
B, C, K, H, T = 2, 6, 2, 5, 3


def cache(r: Recording, dtype: np.dtype = float32, paged: bool = False, capacity: int = C) -> dict[str, Use]:
    """A cache's arrays as inputs: key, value, scales, pages, lengths."""
    first, tokens = (5, 8) if paged else (B, capacity)
    sides = {side: r.input(first, tokens, K, row_size(dtype, H), dtype=dtype) for side in ("key", "value")}
    blocks = 2 * scale_count(dtype, H)
    scales = {"scales": r.input(first, tokens, K, blocks)} if blocks else {}
    pages = {"pages": r.input(B, 2, dtype=int32)} if paged else {}
    return {**sides, **scales, **pages, "lengths": r.input(B, dtype=int32)}


def append(r: Recording, held: dict[str, Use], new: dict[str, Use], **options: object) -> dict[str, Use]:
    """The cache after an append; `new` holds new_key, new_value and perhaps counts."""
    operands = {**held, **{name: use for name, use in new.items() if name != "counts"}}
    operands |= {"counts": new["counts"]} if "counts" in new else {}
    operation = op.CacheAppend(tuple(operands), **options)  # type: ignore[arg-type]
    made = r.do(operation, *operands.values())
    results = {name: Use(made.node, result) for result, name in enumerate(operation.results)}
    return {name: results.get(name, use) for name, use in held.items()}


def rows(r: Recording, dtype: np.dtype = float32, count: int = T) -> dict[str, Use]:
    return {f"new_{side}": r.input(B, count, K, H, dtype=dtype) for side in ("key", "value")}


def given(graph: Graph, seed: int = 3) -> list[np.ndarray]:
    """As `arguments`, every byte of storage types among what a cache may hold."""
    rng = np.random.default_rng(seed)
    found = arguments(graph, seed)
    for item in graph.nodes:
        if isinstance(item.operation, op.Input) and item.avals[0].dtype == float8_e4m3fn:
            shape = item.avals[0].shape
            found[item.operation.index] = rng.standard_normal(shape).astype(np.float32).astype(float8_e4m3fn)
    return found


def check(graph: Graph, donated: tuple[int, ...] = ()) -> None:
    """The device's outputs are NumPy's, bit for bit."""
    held = given(graph)
    for found, wanted in zip(run_graph(graph, held, donated), evaluate(graph, held), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found.view(np.uint8), wanted.view(np.uint8))


@pytest.mark.device
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16, int8, float8_e4m3fn, uint8], ids=short_name)
@pytest.mark.parametrize("paged", [False, True], ids=["dense", "paged"])
@pytest.mark.parametrize("donate", [False, True], ids=["kept", "donated"])
def test_an_append_in_a_program(dtype, paged, donate):
    r = Recording()
    held = cache(r, dtype, paged)
    after = append(r, held, {**rows(r, float16), "counts": r.input(B, dtype=int32)})
    outputs = [use for name, use in after.items() if name != "pages"]
    check(r.graph(*outputs), (0, 1, 2) if donate else ())


@pytest.mark.device
@pytest.mark.parametrize("donate", [False, True], ids=["kept", "donated"])
def test_a_chain_of_appends_with_readers_between(donate):
    r = Recording()
    held = cache(r, capacity=12)
    doubled = []
    for count in (1, 3, 2):
        held = append(r, held, rows(r, count=count))
        doubled.append(r.multiply(held["key"], 2.0))
    check(r.graph(*doubled, *held.values()), (0, 1, 2) if donate else ())


@pytest.mark.device
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_two_appends_to_one_cache_and_a_reader_of_the_old_one(order):
    r = Recording()
    held = cache(r)
    first, second = append(r, held, rows(r)), append(r, held, rows(r, count=1))
    old = r.multiply(held["value"], 3.0)
    outputs = [first["value"], second["value"], old]
    check(r.graph(*(outputs[n] for n in order)), (0, 1, 2))


@pytest.mark.device
@pytest.mark.parametrize("pinned", [0, 2])
def test_a_ring(pinned):
    r = Recording()
    after = append(r, append(r, cache(r), rows(r, count=7)), rows(r), ring=pinned)
    check(r.graph(after["key"], after["value"], after["lengths"]))


@pytest.mark.device
def test_views_of_storage_and_of_what_is_new_are_read_as_they_are_seen():
    r = Recording()
    wide = r.input(2, B, C, K, 8)
    lengths, new = r.input(3, B, dtype=int32), r.input(K, T, B, 2 * H)
    whole = [r.do(op.Slice((n, 0, 0, 0, 0), (1, B, C, K, 8), (1,) * 5), wide) for n in (0, 1)]
    key, value = (r.do(op.Reshape((B, C, K, 8)), part) for part in whole)
    length = r.do(op.Reshape((B,)), r.do(op.Slice((2, 1), (1, B), (1, -1)), lengths))
    turned = r.do(op.Transpose((2, 1, 0, 3)), new)
    parts = [r.do(op.Slice((0, 0, 0, n), (B, T, K, H), (1, 1, 1, 2)), turned) for n in (0, 1)]
    named = {"new_key": parts[0], "new_value": parts[1]}
    after = append(r, {"key": key, "value": value, "lengths": length}, named)
    check(r.graph(*after.values()), (0, 1))


@pytest.mark.device
def test_rope_before_it_is_stored():
    r = Recording()
    after = append(r, cache(r, capacity=9), rows(r), rope=Rope(style="interleaved", rotary_dim=4))
    graph = r.graph(*after.values())
    held = arguments(graph)
    for found, wanted in zip(run_graph(graph, held), evaluate(graph, held), strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-6, rtol=0)


@pytest.mark.device
@pytest.mark.parametrize("dtype", [float16, int8], ids=short_name)
@pytest.mark.parametrize("donate", [False, True], ids=["kept", "donated"])
def test_moves_of_entries_and_pages(dtype, donate):
    r = Recording()
    pool = r.input(5, 8, K, 4, dtype=dtype)
    source, destination = r.input(3, dtype=int32), r.input(3, dtype=int32)
    moved = r.do(op.CacheMove(destination=True), pool, source, destination)
    taken = r.do(op.CacheMove(), moved, r.do(op.Slice((2,), (3,), (-1,)), source))
    graph = r.graph(moved, taken)
    held = [*given(graph)[:1], np.array([0, 1, -1], np.int32), np.array([4, 3, 2], np.int32)]
    for found, wanted in zip(run_graph(graph, held, (0,) if donate else ()), evaluate(graph, held), strict=True):
        np.testing.assert_array_equal(found.view(np.uint8), wanted.view(np.uint8))


@pytest.mark.device
@pytest.mark.parametrize("counted", [False, True])
def test_rows_behind_the_lengths(counted):
    r = Recording()
    storage = r.do(op.Transpose((3, 2, 1, 0)), r.input(4, K, C, B, dtype=float16))
    small = [r.input(B, dtype=int32) for _ in range(1 + counted)]
    check(r.graph(r.do(op.CacheRows(T), storage, *small)))


@pytest.mark.device
def test_the_gradient_of_an_append():
    key, value = (np.random.default_rng(n).standard_normal((B, C, K, 8)).astype(np.float32) for n in (0, 1))
    new = np.random.default_rng(2).standard_normal((B, T, K, H)).astype(np.float32)
    lengths = np.array([1, 5], np.int32)

    def grown(key: Any, new: Any) -> Any:
        names = ("key", "value", "lengths", "new_key", "new_value")
        given = [wa.asarray(x) for x in (key, value, lengths, new, new)]
        return of(record(op.CacheAppend(names), [(x._step, x._result) for x in given]))

    _, pull = wa.vjp(grown, key, new)
    old, fresh = (np.asarray(x) for x in pull(value))
    wanted, rows = value.copy(), np.zeros_like(new)
    for b, (first, last) in enumerate([(1, 4), (5, 6)]):
        wanted[b, first:last] = 0
        rows[b, : last - first] = value[b, first:last, :, :H]
    np.testing.assert_array_equal(old, wanted)
    np.testing.assert_array_equal(fresh, rows)


@pytest.mark.device
def test_an_up_cast_of_what_is_new_is_read_before_it():
    r = Recording()
    new = {name: r.do(op.Cast(float32), use) for name, use in rows(r, bfloat16).items()}
    after = append(r, cache(r, float16), new)
    graph = r.graph(after["key"], after["value"])
    assert not any(isinstance(node.operation, op.Cast) for node in fuse(graph).nodes)
    check(graph)


def copies(graph: Graph, donated: tuple[int, ...] = ()) -> int:
    commands = compile(fuse(graph), PROFILE, frozenset(donated)).program.commands
    return sum(isinstance(command, CopyBuffer) for command in commands)


def test_a_donated_cache_is_written_in_place():
    r = Recording()
    graph = r.graph(*append(r, cache(r), rows(r)).values())
    schedule = compile(fuse(graph), PROFILE, frozenset((0, 1)))
    assert [type(command) for command in schedule.program.commands] == [Dispatch]
    assert schedule.program.outputs[:2] == schedule.program.inputs[:2]
    assert schedule.memory.outputs == 16  # the new lengths
    assert copies(graph) == 2
    assert copies(graph, (0,)) == 1
    assert compile(fuse(graph), PROFILE).memory.outputs == 16 + 2 * B * C * K * 8 * 4


def test_what_is_written_in_place_is_never_what_somebody_needs():
    r = Recording()
    held = cache(r)
    after = append(r, held, rows(r))
    donated = (0, 1, 2)
    assert copies(r.graph(*after.values(), held["key"]), donated) == 1
    twice = append(r, held, rows(r))
    assert copies(r.graph(after["key"], twice["key"]), donated) == 2
    chained = append(r, append(r, after, rows(r)), rows(r))
    assert copies(r.graph(chained["key"]), donated) == 0
    assert copies(r.graph(chained["key"])) == 2
    assert copies(r.graph(chained["key"], after["key"]), donated) == 1


def test_a_reader_of_the_old_cache_goes_first():
    r = Recording()
    held = cache(r)
    after = append(r, held, rows(r))
    old = r.multiply(held["value"], 3.0)
    graph = r.graph(after["value"], old)
    operations = [type(node.operation) for node in fuse(graph).nodes]
    assert operations.index(op.Elementwise) < operations.index(op.CacheAppend)
    assert copies(graph, (0, 1, 2)) == 0
    needs = r.do(op.Elementwise("add"), held["value"], after["value"])
    assert copies(r.graph(after["value"], needs), (0, 1, 2)) == 1


def test_readers_that_wait_for_each_others_writers_leave_an_order():
    r = Recording()
    one, other = cache(r), cache(r)
    first, second = append(r, one, rows(r)), append(r, other, rows(r))
    crossed = [
        r.do(op.Elementwise("add"), one["key"], second["key"]),
        r.do(op.Elementwise("add"), other["key"], first["key"]),
    ]
    assert copies(r.graph(first["key"], second["key"], *crossed), (0, 1, 2, 3, 4, 5)) == 1


def test_storage_that_is_no_whole_array_is_copied():
    r = Recording()
    padded = View((B, C, K, 8), (C * K * 10, K * 10, 10, 1))
    key, value = (r.input(B, C, K, 8, layout=padded) for _ in range(2))
    after = append(r, {"key": key, "value": value, "lengths": r.input(B, dtype=int32)}, rows(r))
    schedule = compile(fuse(r.graph(after["key"])), PROFILE, frozenset((0, 1)))
    assert len(schedule.program.commands) == 3


def test_what_a_tap_shows_stays():
    r = Recording()
    made = append(r, cache(r), rows(r))
    query = r.input(B, 1, K, 8)
    out = r.attention(query, made["key"], made["value"])
    after = append(r, made, rows(r))
    graph = fuse(r.graph(out, after["key"]))
    for taps, count in ((False, 0), (True, 2)):
        commands = compile(graph, PROFILE, frozenset((0, 1)), taps=taps).program.commands
        assert sum(isinstance(command, CopyBuffer) for command in commands) == count


def test_both_sides_in_one_array_are_copied_apart():
    r = Recording()
    both = r.input(B, C, K, 8)
    after = append(r, {"key": both, "value": both, "lengths": r.input(B, dtype=int32)}, rows(r))
    assert copies(r.graph(after["key"], after["value"]), (0,)) == 2


def test_the_cost_is_that_of_what_is_new():
    r = Recording()
    small, large = (append(r, cache(r, capacity=capacity), rows(r)) for capacity in (8, 4096))
    costs = [compile(fuse(r.graph(after["key"])), PROFILE).cost.nbytes for after in (small, large)]
    assert costs[0] == costs[1] == 2 * B * T * K * (H + 8) * 4


def test_quantised_storage_holds_what_the_reference_stores():
    r = Recording()
    after = append(r, cache(r, uint8), rows(r))
    graph = r.graph(after["key"], after["scales"])
    held = given(graph)
    held[3] = np.zeros(B, np.int32)
    (key, scales) = evaluate(graph, held)
    stored, wanted = reference.quantise(held[4], _stored(np.dtype(np.uint8)))
    np.testing.assert_array_equal(key[:, :T], stored)
    np.testing.assert_array_equal(scales[:, :T, :, :1], wanted)


def test_profile_of_few_bindings_still_takes_one_dispatch():
    r = Recording()
    few = replace(PROFILE, limits=replace(PROFILE.limits, storage_buffers=8))
    after = append(
        r, cache(r, int8, paged=True), {**rows(r), "counts": r.input(B, dtype=int32)}, rope=Rope(rotary_dim=4)
    )
    program = compile(fuse(r.graph(after["lengths"])), few, frozenset((0, 1, 2))).program
    assert sum(isinstance(command, Dispatch) for command in program.commands) == 1
