"""Attention over caches in graphs: storage as it lies in arrays, through views, for each family that is named."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.graph.recording import Recording, count
from tests.kernels.attention.run_cached import Cache, cache_of, reference_cached
from tests.schedule.run_graph import run_graph
from tests.tolerance import check, check_residual
from wgattn._dtypes import bool_, float32
from wgattn._errors import UnsupportedError
from wgattn._graph import operations as op
from wgattn._graph.graph import Node, Use, View
from wgattn._graph.rewrite import fuse
from wgattn._kernels.attention.problem import Bound, Call
from wgattn._kernels.rotation import Rope
from wgattn._runtime.profile import DeviceProfile, Limits
from wgattn._runtime.program import Dispatch
from wgattn._schedule import compile

pytestmark = pytest.mark.device
CAUSAL = ((Bound("upper", "diagonal"),),)


def recorded(r: Recording, cache: Cache, query: np.ndarray, implementation: str | None = None) -> tuple[Use, list[Any]]:
    """An attention over a cache's arrays, and the graph's arguments; rows are sliced to their head dims."""
    H, Hv = cache.head_dims
    call = Call(CAUSAL, residual=float32, empty="zero", page_size=cache.page_size, ring=cache.ring, value_dim=Hv)
    given: dict[str, np.ndarray] = {"query": query, "key": cache.key, "value": cache.value}
    if cache.scales is not None:
        given["scales"] = cache.scales
    given["key_value_lengths"] = cache.lengths
    given["query_offset"] = (cache.lengths - query.shape[1]).astype(np.int32)
    if cache.pages is not None:
        given["pages"] = cache.pages
    uses = {name: r.input(*array.shape, dtype=array.dtype) for name, array in given.items()}
    for name, dim in (("key", H), ("value", Hv)):
        if given[name].dtype != np.uint8:
            shape = (*given[name].shape[:3], dim)
            uses[name] = r.do(op.Slice((0,) * 4, shape, (1,) * 4), uses[name])
    attention = op.Attention(tuple(uses), call, query.dtype, implementation)
    return r.do(attention, *uses.values()), list(given.values())


def compare(cache: Cache, query: np.ndarray, implementation: str | None = None) -> None:
    r = Recording()
    out, arguments = recorded(r, cache, query, implementation)
    found, residual = run_graph(r.graph(out, Use(out.node, 1)), arguments)
    right, right_residual = reference_cached(query, cache)
    check(found, right)
    check_residual(residual, right_residual)


def queries(B: int, T: int, N: int, H: int) -> np.ndarray:
    return np.random.default_rng(T).standard_normal((B, T, N, H), dtype=np.float32)


@pytest.mark.parametrize("implementation", [None, "plain", "flash_tiled"])
@pytest.mark.parametrize("dtype", ["f16", "f8e4m3", "i8", "i4"])
@pytest.mark.parametrize("layout", ["dense", "paged", "ring"])
def test_storage_as_a_cache_keeps_it(layout: str, dtype: str, implementation: str | None) -> None:
    layouts: dict[str, dict[str, Any]] = {"dense": {}, "paged": {"page_size": 8}, "ring": {"ring": 2}}
    cache = cache_of(dtype, [19, 0, 60 if layout == "ring" else 24], 24, H=34, Hv=20, **layouts[layout])
    compare(cache, queries(3, 2, 4, 34), implementation)


def test_a_pool_in_another_order_is_copied() -> None:
    """Heads before tokens, as some caches lie: pages are no runs of tokens then."""
    cache = cache_of("i4", [19, 7], 24, page_size=8)
    r = Recording()
    plain, arguments = recorded(r, cache, queries(2, 2, 4, 32))
    attention = r.nodes[plain.node]
    seen = []
    for use in attention.uses:
        node = r.nodes[use.node]
        if node.avals[0].shape[:2] == cache.key.shape[:2]:
            P, size, K, width = node.avals[0].shape
            whole = r.input(P, K, size, width, dtype=node.avals[0].dtype)
            arguments.append(np.ascontiguousarray(arguments[node.operation.index].swapaxes(1, 2)))
            use = r.do(op.Transpose((0, 2, 1, 3)), whole)
        seen.append(use)
    out = r.do(attention.operation, *seen)
    found, right = run_graph(r.graph(out), arguments)[0], reference_cached(queries(2, 2, 4, 32), cache)[0]
    check(found, right)


def test_bytes_that_are_no_words_are_copied() -> None:
    """int4 rows that start in the middle of a word."""
    cache = cache_of("i4", [9, 3], 9, H=32)
    r = Recording()
    query = queries(2, 1, 4, 32)
    out, arguments = recorded(r, cache, query)
    attention, uses = r.nodes[out.node], list(r.nodes[out.node].uses)
    for place in (1, 2):
        array = arguments[place]
        arguments.append(array)
        pitch = array.shape[-1] + 1
        strides = (array.shape[1] * array.shape[2] * pitch, array.shape[2] * pitch, pitch, 1)
        uses[place] = r.input(*array.shape, dtype=array.dtype, layout=View(array.shape, strides, 2))
    found = run_graph(r.graph(r.do(attention.operation, *uses)), arguments)[0]
    check(found, reference_cached(query, cache)[0])


def halves(r: Recording, attention: Node, whole: tuple[str, ...] = ()) -> list[Use]:
    """The call over sequences 0 and 1, and over 2 and 3: slices of its operands but for those that stay `whole`."""
    parts = []
    for first in (0, 2):
        uses = []
        for name, use in zip(attention.operation.operands, attention.uses, strict=True):
            shape = r.nodes[use.node].avals[0].shape
            part = op.Slice((first, *(0 for _ in shape[1:])), (2, *shape[1:]), (1,) * len(shape))
            uses.append(use if name in whole else r.do(part, use))
        parts.append(r.do(attention.operation, *uses))
    return parts


def test_two_calls_on_one_pool_are_not_joined() -> None:
    """Sequences 0, 1 and 2, 3 of one pool: the pool is no operand with a part for each of them."""
    cache = cache_of("f16", [19, 7, 24, 1], 24, page_size=8)
    query = queries(4, 2, 4, 32)
    r = Recording()
    whole, arguments = recorded(r, cache, query)
    attention = r.nodes[whole.node]
    parts = halves(r, attention, whole=("key", "value"))
    found = np.concatenate(run_graph(r.graph(*parts), arguments))
    check(found, reference_cached(query, cache)[0])


def test_a_device_of_few_buffers() -> None:
    """The smallest device serves a call with everything but scales in parts, and says what is too much beside them."""
    query = queries(2, 2, 4, 32)
    device = DeviceProfile(kind="discrete", limits=Limits())
    for dtype in ("f16", "i8"):
        r = Recording()
        out, _ = recorded(r, cache_of(dtype, [19, 7], 24, page_size=8), query)
        plain = r.nodes[out.node]
        assert isinstance(plain.operation, op.Attention)
        attention = replace(
            plain.operation,
            operands=(*plain.operation.operands, "bias", "mask"),
            call=replace(plain.operation.call, rope=Rope()),
        )
        out = r.do(attention, *plain.uses, r.input(24), r.input(2, 1, 1, 24, dtype=bool_))
        graph = fuse(r.graph(out, Use(out.node, 1)))
        if dtype == "f16":
            bound = [len(c.resources) for c in compile(graph, device).program.commands if isinstance(c, Dispatch)]
            assert max(bound) == 8
        else:
            with pytest.raises(UnsupportedError, match=r"flash_tiled: its operands are 9 storage buffers, of 8 that"):
                compile(graph, device)


@pytest.mark.parametrize("layout", ["dense", "ring"])
def test_calls_on_parts_of_one_storage_are_joined(layout: str) -> None:
    """Sequences 0, 1 and 2, 3 as a second batch axis, their scales with them."""
    cache = cache_of("i8", [19, 7, 24, 1], 24, ring=None if layout == "dense" else 3)
    query = queries(4, 2, 4, 32)
    r = Recording()
    whole, arguments = recorded(r, cache, query)
    attention = r.nodes[whole.node]
    parts = halves(r, attention)
    graph = r.graph(*parts)
    assert count(fuse(graph), op.Attention) == 1
    check(np.concatenate(run_graph(graph, arguments)), reference_cached(query, cache)[0])
