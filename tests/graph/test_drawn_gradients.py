"""Gradients of drawn graphs, recorded and fused, against jax.vjp of the same operations in jax.numpy."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wgattn as wa
from tests.graph.evaluate import evaluate, kept
from tests.graph.recording import arguments
from tests.graph.rewrite.drawn import graphs
from tests.graph.rewrite.drawn_calls import calls
from wgattn._array import Array, of
from wgattn._graph import operations as op
from wgattn._graph.graph import Graph, Node
from wgattn._graph.rewrite import fuse
from wgattn._record import record
from wgattn._reference import rotation


def on_arrays(graph: Graph, *given: Array) -> list[Array]:
    """The graph's operations, recorded again."""
    values: dict[tuple[int, int], Array] = {}
    for number, node in enumerate(graph.nodes):
        if isinstance(node.operation, op.Input):
            values[number, 0] = given[node.operation.index]
            continue
        parents = [values[use.node, use.result] for use in node.uses]
        step = record(node.operation, [(x._step, x._result) for x in parents], node.avals)
        values |= {(number, result): of(step, result) for result in range(len(node.avals))}
    return [values[use.node, use.result] for use in graph.outputs]


def in_jax(graph: Graph, *given: Any) -> list[Any]:
    """The graph's operations in jax.numpy; attention is written out, and its residual constant."""
    values: dict[tuple[int, int], Any] = {}
    for number, node in enumerate(graph.nodes):
        operands = [values[use.node, use.result] for use in node.uses]
        results = [given[node.operation.index]] if isinstance(node.operation, op.Input) else computed(node, operands)
        for result, (value, aval) in enumerate(zip(results, node.avals, strict=True)):
            values[number, result] = value.astype(aval.dtype)
    return [values[use.node, use.result] for use in graph.outputs]


def computed(node: Node, given: list[Any]) -> list[Any]:
    match node.operation:
        case op.Attention():
            return attended(node.operation, *given)
        case op.Constant(value):
            return [jnp.asarray(value, jnp.float32)]
        case op.Reshape(shape):
            return [given[0].reshape(shape)]
        case op.Transpose(axes):
            return [given[0].transpose(axes)]
        case op.Slice(start, size, step):
            x = given[0]
            for axis, (first, n, by) in enumerate(zip(start, size, step, strict=True)):
                x = jnp.take(x, np.arange(n) * by + first, axis)
            return [x]
        case op.BroadcastTo(shape):
            return [jnp.broadcast_to(given[0], shape)]
        case op.Repeat(repeats, axis):
            return [jnp.repeat(given[0], repeats, axis)]
        case op.Cast(dtype):
            return [given[0].astype(dtype)]
        case op.Elementwise(function):
            return [getattr(jnp, function)(*given)]
        case op.Sum(axes, keepdims, divisor):
            return [given[0].astype(jnp.float32).sum(axes, keepdims=keepdims) / divisor]
        case op.Concatenate(axis):
            return [jnp.concatenate(given, axis)]
        case op.Rotate(rope):
            x = given[0].astype(jnp.float32)
            turn = rotation(np.arange(x.shape[-3]), x.shape[-1], rope.base, rope.rotary_dim, rope.scaling)
            cos, sin = (jnp.asarray(t, jnp.float32)[:, None] for t in turn)
            a, b = jnp.split(x, 2, -1)
            return [jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)]
    raise AssertionError(f"{node.operation} is not computed")


def attended(attention: op.Attention, query: Any, key: Any, value: Any) -> list[Any]:
    call, group = attention.call, query.shape[-2] // key.shape[-2]
    query, key, value = (x.astype(jnp.float32) for x in (query, key, value))
    key, value = (jnp.repeat(x, group, -2) for x in (key, value))
    logits = jnp.einsum("btnh,bsnh->bnts", query, key)
    logits = logits * (1 / math.sqrt(query.shape[-1]) if call.scale is None else call.scale)
    if call.softcap is not None:
        logits = call.softcap * jnp.tanh(logits / call.softcap)
    keep = kept(call, np.arange(query.shape[1]).reshape(1, 1, -1, 1), np.arange(key.shape[1]), {})
    logits = jnp.where(keep, logits, -jnp.inf)
    out = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(logits), value)
    residual = jax.lax.stop_gradient(jax.nn.logsumexp(logits, -1).swapaxes(1, 2))
    return [out] if call.residual is None else [out, residual]


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graph=st.one_of(graphs(), calls()))
def test_gradients_of_drawn_graphs(graph):
    primals = arguments(graph)
    out, pull = jax.vjp(lambda *given: in_jax(graph, *given), *map(jnp.asarray, primals))
    rng = np.random.default_rng(1)
    cotangents = [np.asarray(rng.standard_normal(x.shape)).astype(x.dtype) for x in out]
    right = pull([jnp.asarray(x) for x in cotangents])

    @wa.jit
    def pulled(primals: Any, cotangents: Any) -> Any:
        return wa.vjp(lambda *given: on_arrays(graph, *given), *primals)[1](cotangents)

    traced = pulled.lower(primals, cotangents)._traced
    inputs = [*primals, *cotangents]
    narrow = any(aval.dtype.itemsize == 2 for node in graph.nodes for aval in node.avals)
    for recorded in (traced.graph, fuse(traced.graph)):
        results = evaluate(recorded, inputs)
        for (kind, at), wanted in zip(traced.sources, right, strict=True):
            made = results[at] if kind == "computed" else inputs[at]
            assert (made.shape, made.dtype) == (wanted.shape, wanted.dtype)
            expected = np.asarray(wanted).astype(np.float64)
            bound = (5e-2 if narrow else 4e-5) * max(1.0, float(np.abs(expected).max(initial=0)))
            np.testing.assert_allclose(made.astype(np.float64), expected, atol=bound, rtol=0)
