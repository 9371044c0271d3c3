"""A graph fused, scheduled and run on the device."""

from collections.abc import Collection, Sequence

import numpy as np

from tests.graph.evaluate import seen
from wgattn import _runtime
from wgattn._graph.graph import Graph, View
from wgattn._graph.operations import Input
from wgattn._graph.rewrite import fuse
from wgattn._kernels.kernel import Operand
from wgattn._runtime import Buffer
from wgattn._schedule import load


def run_graph(graph: Graph, arguments: Sequence[np.ndarray], donated: Collection[int] = ()) -> list[np.ndarray]:
    """The outputs of `graph`, its inputs laid out as their nodes say."""
    compiled = load(fuse(graph), frozenset(donated))
    buffers = [_runtime.upload(content) for content in laid_out(graph, arguments)]
    return [
        read(buffer, Operand(dtype, view.shape, view.strides, view.offset))
        for buffer, view, dtype in compiled.run(buffers)
    ]


def laid_out(graph: Graph, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The flat buffers of the arguments."""
    flat = [np.asarray(argument).reshape(-1) for argument in arguments]
    for node in graph.nodes:
        if isinstance(node.operation, Input):
            layout, value = node.layouts[0], arguments[node.operation.index]
            reach = sum(stride * (size - 1) for stride, size in zip(layout.strides, layout.shape, strict=True))
            buffer = np.zeros(layout.offset + reach + 1 if value.size else 0, value.dtype)
            seen(buffer, layout)[...] = value
            flat[node.operation.index] = buffer
    return flat


def read(buffer: Buffer, layout: Operand) -> np.ndarray:
    """The array that lies in a buffer."""
    end = layout.extent()[1] * layout.itemsize
    content = _runtime.download(buffer)[:end].view(layout.dtype)
    return np.array(seen(content, View(layout.shape, layout.strides, layout.offset)))
