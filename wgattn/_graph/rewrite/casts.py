"""Casts fold into what reads or writes: casts of casts, up-casts into loads, down-casts into stores."""

from dataclasses import replace

import numpy as np

from wgattn._dtypes import FLOATS, bfloat16, bool_, float16, float32, int32, is_float, uint32
from wgattn._graph.graph import Graph, Node, Use
from wgattn._graph.operations import Attention, CacheAppend, Cast, Concatenate, Copy, Elementwise, Pad, Rotate, Sum
from wgattn._graph.rules import attention_layout

from .rebuild import Rebuild, before, each, users

# What a dtype holds without rounding, so that a cast to it and onward is one cast.
EXACT = {
    (float16, float32), (bfloat16, float32),
    *((bool_, dtype) for dtype in (float32, float16, bfloat16, int32, uint32)),
}  # fmt: skip


def join_casts(graph: Graph) -> Graph:
    """A cast of an exact cast reads the first operand; one that gives that operand's dtype back is no cast at all."""
    rebuild = Rebuild(graph)
    for number, node in enumerate(graph.nodes):
        if not isinstance(node.operation, Cast):
            rebuild.keep(number)
            continue
        source = rebuild.use(node.uses[0])
        made = Graph(tuple(rebuild.nodes), ())
        inner = rebuild.nodes[source.node]
        if isinstance(inner.operation, Cast):
            first = before(made, source)
            if first is not None and (made.aval(first).dtype, inner.avals[0].dtype) in EXACT:
                source = first
        if made.aval(source).dtype == node.operation.dtype:
            rebuild.became[number, 0] = source
        else:
            rebuild.became[number, 0] = Use(rebuild.add(replace(node, uses=(source,))))
    return rebuild.finish()


def read_narrow(graph: Graph) -> Graph:
    """Attention reads query, key, value and bias before their up-casts; its result keeps its dtype.

    Key and value stay of one dtype, as every fast kernel wants them.
    """

    def rewrite(number: int, node: Node) -> Node:
        if not isinstance(node.operation, Attention):
            return node
        before_cast = {
            name: _narrow(graph, use)
            for name, use in zip(node.operation.operands, node.uses, strict=True)
            if name in ("query", "key", "value", "bias")
        }
        if graph.aval(before_cast["key"]).dtype != graph.aval(before_cast["value"]).dtype:
            del before_cast["key"], before_cast["value"]
        pairs = zip(node.operation.operands, node.uses, strict=True)
        return replace(node, uses=tuple(before_cast.get(name, use) for name, use in pairs))

    return each(graph, rewrite)


def read_arrays_narrow(graph: Graph) -> Graph:
    """The array kernels, which take any mix of dtypes and compute floats in float32, read before up-casts too.

    So does an append what is new.
    """

    def rewrite(number: int, node: Node) -> Node:
        if isinstance(node.operation, Elementwise | Sum | Rotate | Copy | Concatenate | Pad):
            return replace(node, uses=tuple(_narrow(graph, use) for use in node.uses))
        if isinstance(node.operation, CacheAppend):
            pairs = zip(node.operation.operands, node.uses, strict=True)
            return replace(node, uses=tuple(_narrow(graph, u) if name.startswith("new_") else u for name, u in pairs))
        return node

    return each(graph, rewrite)


def _narrow(graph: Graph, use: Use) -> Use:
    if not isinstance(graph.nodes[use.node].operation, Cast):
        return use
    first = before(graph, use)
    if first is None:
        return use
    narrow, wide = graph.aval(first).dtype, graph.aval(use).dtype
    return first if is_float(narrow) and (narrow, wide) in EXACT else use


def store_narrow(graph: Graph) -> Graph:
    """A result computed in float32 that is only ever cast to one 16-bit dtype is written in it."""
    uses, rebuild = users(graph), Rebuild(graph)
    written: dict[int, np.dtype] = {}
    gone: set[int] = set()
    for number, node in enumerate(graph.nodes):
        if isinstance(node.operation, Attention | Elementwise | Sum | Rotate) and node.avals[0].dtype == float32:
            after = uses.get((number, 0), [])
            cast = graph.nodes[after[0]].operation if len(after) == 1 and after[0] >= 0 else None
            if isinstance(cast, Cast) and cast.dtype in FLOATS:
                written[number] = cast.dtype
                gone.add(after[0])
    for number, node in enumerate(graph.nodes):
        if number in gone:
            rebuild.became[number, 0] = rebuild.use(node.uses[0])
        elif number in written:
            rebuild.keep(number, _written_in(node, written[number]))
        else:
            rebuild.keep(number)
    return rebuild.finish()


def _written_in(node: Node, dtype: np.dtype) -> Node:
    aval, operation = replace(node.avals[0], dtype=dtype), node.operation
    layout = node.layouts[0]
    if isinstance(operation, Attention):
        layout = attention_layout(aval, operation.store)
        operation = replace(operation, dtype=dtype)
    return replace(node, operation=operation, avals=(aval, *node.avals[1:]), layouts=(layout, *node.layouts[1:]))
