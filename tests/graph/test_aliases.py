"""Writing in place changes nothing that anybody reads: drawn programs, run in NumPy with arrays written over."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.graph.evaluate import _results, evaluate, seen
from tests.graph.recording import Recording, arguments
from wgattn._dtypes import int32
from wgattn._graph import operations as op
from wgattn._graph.aliases import storage, written_in_place
from wgattn._graph.graph import Graph, Use
from wgattn._graph.rewrite import fuse

SHAPE = (2, 4, 1, 4)
NAMES = ("key", "value", "lengths", "new_key", "new_value")


@st.composite
def programs(draw: st.DrawFn) -> tuple[Graph, frozenset[int]]:
    """Appends to arrays, moves within them and sums of them, in any order; some are outputs, some inputs donated."""
    r = Recording()
    arrays = [r.input(*SHAPE) for _ in range(3)]
    lengths = [r.input(2, dtype=int32)]
    new = [r.input(2, n, 1, 4) for n in (1, 2)]
    some = st.integers(0, 99)

    def one(of: list[Use]) -> Use:
        return of[draw(some) % len(of)]

    for _ in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from(["append", "append", "alone", "move", "take", "add", "view"]))
        if kind == "append":
            rows = one(new)
            made = r.do(op.CacheAppend(NAMES), one(arrays), one(arrays), one(lengths), rows, rows)
            arrays += [made, Use(made.node, 1)]
            lengths.append(Use(made.node, 2))
        elif kind == "alone":
            made = r.do(op.CacheAppend(("key", "lengths", "new_key")), one(arrays), one(lengths), one(new))
            arrays.append(made)
            lengths.append(Use(made.node, 1))
        elif kind == "add":
            arrays.append(r.do(op.Elementwise("add"), one(arrays), one(arrays)))
        elif kind == "view":
            turned = r.do(op.Slice((1, 0, 0, 0), SHAPE, (-1, 1, 1, 1)), one(arrays))
            arrays.append(r.do(op.Slice((0, 0, 0, 0), SHAPE, (1, 1, 1, 1)), turned))
        else:
            move, index = op.CacheMove(destination=kind == "move"), one(lengths)
            source, destination = r.do(op.Elementwise("minimum"), index, r.constant(0, int32)), r.constant(1, int32)
            uses = (source, r.do(op.BroadcastTo((2,)), destination))
            arrays.append(r.do(move, one(arrays), *uses[: 1 + move.destination]))
    outputs = [one([*arrays, *lengths]) for _ in range(draw(st.integers(1, 4)))]
    return r.graph(*outputs), frozenset(draw(st.sets(st.integers(0, 3))))


def run_over(graph: Graph, given: list[np.ndarray], donated: frozenset[int]) -> list[np.ndarray]:
    """The outputs, read at the end, where what `written_in_place` names was written over."""
    in_place, buffers = written_in_place(graph, donated), {}
    for number, node in enumerate(graph.nodes):
        operands = [np.array(seen(buffers[use.node, use.result], graph.view(use))) for use in node.uses]
        for result, value in enumerate(_results(node, operands, given)):
            buffer = np.zeros(value.size, node.avals[result].dtype)
            for place, written in storage(node):
                if written == result and (number, place) in in_place:
                    buffer = buffers[node.uses[place].node, node.uses[place].result]
            seen(buffer, node.layouts[result])[...] = value
            buffers[number, result] = buffer
    return [np.array(seen(buffers[use.node, use.result], graph.view(use))) for use in graph.outputs]


@given(programs())
def test_what_is_written_in_place_is_what_nobody_reads_any_more(program):
    graph, donated = program
    given = [np.clip(x, -9, 3) if x.dtype == int32 else x for x in arguments(graph)]
    wanted, fused = evaluate(graph, given), fuse(graph)
    for found in (evaluate(fused, given), run_over(fused, given, donated), run_over(graph, given, donated)):
        for x, right in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(x, right)
    roots = {
        graph.nodes[use.node].operation for n, p in written_in_place(graph, ()) for use in [graph.nodes[n].uses[p]]
    }
    assert not any(isinstance(operation, op.Input) for operation in roots)
