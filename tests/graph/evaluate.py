"""A Graph run in NumPy, buffers and strides included: a graph and its rewriting are compared without a device."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.graph import evaluate_caches
from wgattn import _reference
from wgattn._graph import operations as op
from wgattn._graph.graph import Graph, Node, Use, View
from wgattn._kernels.attention.problem import Call, Clause
from wgattn._reference_gradient import attention_gradient

FUNCTIONS = {"where": np.where, "exp": np.exp, "divide": np.divide} | {
    name: getattr(np, name)
    for name in (
        "add", "subtract", "multiply", "negative", "maximum", "minimum", "logical_and", "logical_or", "logical_not",
        "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    )
}  # fmt: skip


def evaluate(graph: Graph, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The graph's outputs. Every result lies in a flat buffer as its layout says, and uses read it through views."""
    buffers: dict[tuple[int, int], np.ndarray] = {}

    def read(use: Use) -> np.ndarray:
        return seen(buffers[use.node, use.result], graph.view(use))

    for number, node in enumerate(graph.nodes):
        for result, value in enumerate(_results(node, [read(use) for use in node.uses], arguments)):
            aval, layout = node.avals[result], node.layouts[result]
            assert value.shape == aval.shape, f"node {number}, {node.operation}: {value.shape}, not {aval.shape}"
            buffer = np.zeros(_extent(layout), aval.dtype)
            seen(buffer, layout)[...] = value.astype(aval.dtype)
            buffers[number, result] = buffer
    return [np.array(read(use)) for use in graph.outputs]


def seen(buffer: np.ndarray, view: View) -> np.ndarray:
    """`view` of a flat buffer; fails where it leaves the buffer."""
    if 0 in view.shape:
        return np.zeros(view.shape, buffer.dtype)
    reach = [stride * (size - 1) for stride, size in zip(view.strides, view.shape, strict=True)]
    low, high = view.offset + sum(min(r, 0) for r in reach), view.offset + sum(max(r, 0) for r in reach)
    assert low >= 0, f"{view} starts before its buffer"
    assert high < len(buffer), f"{view} leaves a buffer of {len(buffer)}"
    strides = tuple(stride * buffer.itemsize for stride in view.strides)
    return np.lib.stride_tricks.as_strided(buffer[view.offset :], view.shape, strides)


def _extent(view: View) -> int:
    return view.offset + 1 + sum(max(s, 0) * max(n - 1, 0) for s, n in zip(view.strides, view.shape, strict=True))


def _results(node: Node, given: list[np.ndarray], arguments: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    match node.operation:
        case op.Attention():
            return _attention(node.operation, given)
        case op.AttentionGradient():
            return _attention_gradient(node.operation, given)
        case op.Input(index):
            return (arguments[index],)
        case op.Constant(value):
            return (np.asarray(value),)
        case op.Reshape(shape):
            return (given[0].reshape(shape),)
        case op.Transpose(axes):
            return (given[0].transpose(axes),)
        case op.Slice(start, size, step):
            picked = (np.arange(n) * by + first for first, n, by in zip(start, size, step, strict=True))
            return (given[0][np.ix_(*picked)],)
        case op.BroadcastTo(shape):
            return (np.broadcast_to(given[0], shape),)
        case op.Repeat(repeats, axis):
            return (np.repeat(given[0], repeats, axis),)
        case op.Cast(dtype):
            return (given[0].astype(dtype),)
        case op.Elementwise(function):
            with np.errstate(all="ignore"):
                return (np.asarray(FUNCTIONS[function](*map(_computed, given))),)
        case op.Sum(axes, keepdims, divisor):
            return (given[0].astype(np.float32).sum(axes, keepdims=keepdims) / divisor,)
        case op.Pad(low, high):
            return (np.pad(given[0], list(zip(low, high, strict=True))),)
        case op.Concatenate(axis):
            return (np.concatenate(given, axis),)
        case op.Rotate(rope, where, inverse):
            positions = _positions(where, given)
            if inverse:
                positions = -(np.arange(given[0].shape[-3]) if positions is None else positions)
            return (_reference.rope(given[0], positions, base=rope.base, rotary_dim=rope.rotary_dim, style=rope.style),)
        case op.Merge():
            found = _reference.merge(list(given[0]), list(given[1]), *given[2:])
            return found.out, found.residual
        case op.CacheAppend():
            return evaluate_caches.append(node.operation, given)
        case op.CacheRows():
            return (evaluate_caches.rows(node.operation, given),)
        case op.CacheMove():
            return (evaluate_caches.move(node.operation, given),)
        case op.Copy():
            return (given[0],)
    raise AssertionError(f"{node.operation} is not evaluated")


def _computed(x: np.ndarray) -> np.ndarray:
    """Floats are computed in float32, whatever they are stored in."""
    return x if x.dtype.kind in "biu" else x.astype(np.float32)


def _positions(where: str, given: list[np.ndarray]) -> np.ndarray | None:
    if where == "offset":
        return np.reshape(given[1], (-1, 1)) + np.arange(given[0].shape[-3])
    return given[1] if where == "positions" else None


def _attention(attention: op.Attention, given: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Each entry of a second batch axis by itself, in float64."""
    operands = dict(zip(attention.operands, given, strict=True))
    if operands["query"].ndim == 4:
        parts = [_one(attention, operands)]
        return parts[0]
    count = operands["query"].shape[0]
    parts = [_one(attention, {name: _entry(name, x, i, count) for name, x in operands.items()}) for i in range(count)]
    return tuple(np.stack(results) for results in zip(*parts, strict=True))


def _entry(name: str, x: np.ndarray, index: int, count: int) -> np.ndarray:
    """An operand of entry `index`: those with a batch of their own have one axis more than a plain call's."""
    per_batch = {
        "query": 5,
        "key": 5,
        "value": 5,
        "out": 5,
        "grad_out": 5,
        "residual": 4,
        "bias": 5,
        "mask": 5,
        "query_segments": 3,
        "key_segments": 3,
        "sinks": 3,
    }
    if name == "scale" or x.ndim < per_batch.get(name, 2):
        return x
    assert x.shape[0] in (1, count)
    return x[min(index, x.shape[0] - 1)]


def _one(attention: op.Attention, operands: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    found = _reference.attention(**_options(attention.call, operands))
    return (found.out,) if attention.call.residual is None else (found.out, found.residual)


def _attention_gradient(gradient: op.AttentionGradient, given: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """As `_attention`; what all entries of a second batch axis share has the sum of their gradients."""
    operands = dict(zip(gradient.operands, given, strict=True))
    count = operands["query"].shape[0] if operands["query"].ndim == 5 else None
    parts = (
        [operands]
        if count is None
        else [{name: _entry(name, x, i, count) for name, x in operands.items()} for i in range(count)]
    )
    found = [attention_gradient(part["grad_out"], **_options(gradient.call, part)) for part in parts]
    results = []
    for name in gradient.wanted:
        each = [np.asarray(getattr(one, name)) for one in found]
        whole = each[0] if count is None else np.stack(each)
        if name == "scale":
            whole = whole * (1.0 if gradient.call.scale is None else gradient.call.scale)
        own = {"bias": 5, "sinks": 3}.get(name, 0)
        shared = count is not None and (name == "scale" or operands[name].ndim < own)
        results.append(whole.sum(0) if shared else whole)
    return tuple(results)


def _options(call: Call, operands: dict[str, np.ndarray]) -> dict[str, Any]:
    """What the reference takes for a call of one batch axis."""
    query, key = operands["query"], operands["key"]
    batch = query.shape[0]
    value = np.broadcast_to(operands["value"], (batch, *operands["value"].shape[1:]))
    key = np.broadcast_to(key, (batch, *key.shape[1:]))
    offset = np.reshape(operands.get("query_offset", 0), (-1, 1, 1, 1))
    positions = np.arange(query.shape[1]).reshape(1, 1, -1, 1) + offset
    keep = kept(call, positions, np.arange(key.shape[1]), operands)
    if "mask" in operands:
        keep = keep & operands["mask"]
    if "query_segments" in operands:
        asked, stored = (np.atleast_2d(operands[name]) for name in ("query_segments", "key_segments"))
        keep = keep & (asked[:, None, :, None] == stored[:, None, None, :])
    return {
        "query": query,
        "key": key,
        "value": value,
        "bias": operands.get("bias"),
        "mask": np.broadcast_to(keep, (*keep.shape[:2], query.shape[1], key.shape[1])),
        "scale": (1 / math.sqrt(query.shape[-1]) if call.scale is None else call.scale)
        * float(operands.get("scale", 1.0)),
        "query_seq_lengths": operands.get("query_lengths"),
        "key_value_seq_lengths": operands.get("key_value_lengths"),
        "softcap": call.softcap,
        "sinks": operands.get("sinks"),
        "query_offset": operands.get("query_offset"),
        "rope": call.rope,
    }


def kept(call: Call, positions: np.ndarray, keys: np.ndarray, operands: dict[str, np.ndarray]) -> np.ndarray:
    """Which keys some clause of the call keeps, broadcastable to (B, N, T, S)."""

    def within(clause: Clause) -> np.ndarray:
        keep = np.ones((1, 1, 1, 1), bool)
        for bound in clause:
            source = 0 if bound.source is None else np.reshape(operands[bound.source], (-1, 1, 1, 1))
            match bound.kind:
                case "diagonal":
                    edge = positions + bound.addend + source
                case "constant":
                    edge = np.reshape(bound.addend + source, (-1, 1, 1, 1))
                case "chunk":
                    first = positions // bound.addend * bound.addend
                    edge = first if bound.side == "lower" else first + bound.addend - 1
            keep = keep & (keys >= edge if bound.side == "lower" else keys <= edge)
        return keep

    keep = np.zeros((1, 1, 1, 1), bool)
    for clause in call.clauses:
        keep = keep | within(clause)
    return keep
