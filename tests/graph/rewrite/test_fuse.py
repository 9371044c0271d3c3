"""Whole recordings fused: what is left, that it computes the same, and that it is canonical."""

import numpy as np
import pytest

import wgattn as wa
from tests.graph.evaluate import evaluate
from tests.graph.recording import VIEWS, Recording, arguments, count
from wgattn._dtypes import bfloat16, float16, float32, int32
from wgattn._graph import operations as op
from wgattn._graph.graph import Graph, Use, View
from wgattn._graph.rewrite import fuse
from wgattn._kernels.attention.problem import Bound, Call
from wgattn._kernels.rotation import Rope

CAUSAL = ((Bound("upper", "diagonal"),),)
ROPE = Rope(rotary_dim=4)


def fused(graph: Graph, tolerance: float = 1e-5) -> Graph:
    """The fused graph, after checking that it computes what `graph` does."""
    result = fuse(graph)
    given = arguments(graph)
    for before, after in zip(evaluate(graph, given), evaluate(result, given), strict=True):
        assert before.dtype == after.dtype
        np.testing.assert_allclose(after.astype(np.float64), before.astype(np.float64), rtol=tolerance, atol=tolerance)
    assert fuse(result) == result
    assert count(result, *VIEWS, op.Repeat) == 0
    return result


def test_transposed_keys_and_values_are_strides():
    r = Recording()
    q, k, v = r.input(2, 5, 4, 8), r.input(2, 2, 7, 8), r.input(2, 2, 7, 8)
    out = r.attention(q, r.do(op.Transpose((0, 2, 1, 3)), k), r.do(op.Transpose((0, 2, 1, 3)), v))
    graph = fused(r.graph(out))
    assert len(graph.nodes) == 4
    assert graph.nodes[-1].uses[1].view == View((2, 7, 2, 8), (112, 8, 56, 1))


def test_a_split_projection_is_three_views_of_one_array():
    r = Recording()
    qkv = r.do(op.Reshape((2, 5, 3, 4, 8)), r.input(2, 5, 96))
    parts = [
        r.do(op.Reshape((2, 5, 4, 8)), r.do(op.Slice((0, 0, i, 0, 0), (2, 5, 1, 4, 8), (1,) * 5), qkv))
        for i in range(3)
    ]
    graph = fused(r.graph(r.attention(*parts, call=Call(CAUSAL))))
    assert len(graph.nodes) == 2
    assert [graph.view(use).offset for use in graph.nodes[1].uses] == [0, 32, 64]


@pytest.mark.parametrize("form", ["repeat", "broadcast", "plain"])
def test_repeated_heads_become_groups(form):
    r = Recording()
    q, k, v = r.input(2, 5, 6, 8), r.input(2, 7, 2, 8), r.input(2, 7, 2, 8)

    def repeated(x: Use) -> Use:
        if form == "repeat":
            return r.do(op.Repeat(3, 2), x)
        wide = r.do(op.BroadcastTo((2, 7, 2, 3, 8)), r.do(op.Reshape((2, 7, 2, 1, 8)), x))
        return r.do(op.Reshape((2, 7, 6, 8)), wide)

    if form == "plain":
        k, v = r.input(2, 7, 1, 8), r.input(2, 7, 1, 8)
        keys = [r.do(op.BroadcastTo((2, 7, 6, 8)), x) for x in (k, v)]
    else:
        keys = [repeated(x) for x in (k, v)]
    graph = fused(r.graph(r.attention(q, *keys)))
    assert count(graph, op.Copy) == 0
    assert graph.view(graph.nodes[-1].uses[1]).shape == (2, 7, 1 if form == "plain" else 2, 8)


def test_a_repeat_of_keys_alone_is_copied():
    r = Recording()
    q, k, v = r.input(2, 5, 6, 8), r.input(2, 7, 2, 8), r.input(2, 7, 6, 8)
    graph = fused(r.graph(r.attention(q, r.do(op.Repeat(3, 2), k), v)))
    assert count(graph, op.Copy) == 1


@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_casts_fold_into_loads_and_store(dtype):
    r = Recording()
    inputs = [r.input(2, 5, 2, 7, dtype=dtype) for _ in range(3)]
    wide = [r.do(op.Cast(float32), x) for x in inputs]
    out = r.do(op.Cast(dtype), r.attention(*wide))
    turned = r.do(op.Transpose((0, 2, 1, 3)), out)
    graph = fused(r.graph(turned))
    assert len(graph.nodes) == 4
    assert graph.nodes[-1].operation.dtype == dtype
    assert graph.nodes[-1].layouts[0].strides == (80, 16, 8, 1)


def test_a_result_that_is_needed_wide_is_stored_wide():
    r = Recording()
    out = r.attention(*(r.input(1, 3, 1, 4) for _ in range(3)))
    graph = fused(r.graph(out, r.do(op.Cast(float16), out)))
    assert count(graph, op.Cast) == 1
    assert graph.nodes[3].operation.dtype == float32


def test_exact_casts_of_casts_go():
    r = Recording()
    x = r.input(3, dtype=float16)
    back = r.do(op.Cast(float16), r.do(op.Cast(float32), x))
    graph = fused(r.graph(back))
    assert len(graph.nodes) == 1
    r = Recording()
    rounded = r.do(op.Cast(float32), r.do(op.Cast(float16), r.input(3)))
    assert count(fused(r.graph(rounded)), op.Cast) == 2


def rotated(
    where: str = "arange", also: bool = False, key_where: str = "arange", order: bool = False, inverse: bool = False
):
    r = Recording()
    q, k, v = r.input(2, 5, 4, 8), r.input(2, 7, 2, 8), r.input(2, 7, 2, 8)
    more = {"query_offset": r.input(2, dtype=int32)} if where == "offset" else {}
    turned = r.do(op.Rotate(ROPE, where, inverse), q, *more.values())
    k = r.do(op.Rotate(ROPE, key_where, inverse), k, *([r.input(2, dtype=int32)] if key_where == "offset" else []))
    if order:
        turned = r.do(op.Transpose((0, 2, 1, 3)), r.do(op.Transpose((0, 2, 1, 3)), turned))
        turned = r.do(op.Slice((0, 0, 0, 0), (2, 3, 4, 8), (1, 1, 1, 1)), turned)
    out = r.attention(turned, k, v, Call(CAUSAL), **more)
    return r.graph(out, *([k] if also else []))


@pytest.mark.parametrize("where", ["arange", "offset"])
@pytest.mark.parametrize("order", [False, True])
def test_rope_on_query_and_key_is_the_calls_own(where, order):
    graph = fused(rotated(where, order=order))
    assert count(graph, op.Rotate) == 0
    assert graph.nodes[-1].operation.call.rope == ROPE


@pytest.mark.parametrize("rope", [wa.nn.Rope(), wa.nn.Rope(500.0, 4, "interleaved")], ids=["half", "interleaved"])
@pytest.mark.parametrize("offset", [None, np.array([1, 2], np.int32)], ids=["", "offset"])
def test_gradients_of_a_call_that_rotates_are_rotated_back_by_it(rope, offset):
    def loss(q, k):
        return wa.nn.dot_product_attention(q, k, k, rope=rope, query_offset=offset).sum()

    q, k = np.zeros((2, 5, 4, 8), np.float32), np.zeros((2, 7, 2, 8), np.float32)
    graph = fused(wa.make_graph(wa.grad(loss, (0, 1)))(q, k).graph)
    assert count(graph, op.Rotate) == 0
    assert {n.operation.call.rope for n in graph.nodes if hasattr(n.operation, "call")} == {rope}
    by_value = wa.make_graph(wa.grad(lambda v: wa.nn.dot_product_attention(q, k, v, rope=rope).sum()))(k).graph
    assert count(fused(by_value), op.Rotate) == 0


def test_a_gradient_of_a_rotated_value_that_is_used_otherwise_stays_explicit():
    def loss(q):
        turned = wa.nn.rope(q)
        return wa.nn.dot_product_attention(turned, turned, q).sum()

    graph = fused(wa.make_graph(wa.grad(loss))(np.zeros((2, 5, 4, 8), np.float32)).graph)
    assert count(graph, op.Rotate) == 2, "the gradients of query and key are added before they are rotated back"


def test_rope_that_is_needed_elsewhere_is_computed_once():
    assert count(fused(rotated(also=True)), op.Rotate) == 2
    assert count(fused(rotated(key_where="offset")), op.Rotate) == 2
    assert count(fused(rotated(inverse=True)), op.Rotate) == 2


def test_rope_whose_tokens_were_moved_stays():
    r = Recording()
    q, k = r.input(1, 4, 1, 8), r.input(1, 4, 4, 8)
    turned = r.do(op.Transpose((0, 2, 1, 3)), r.do(op.Rotate(ROPE), q))
    late = r.do(op.Slice((0, 1, 0, 0), (1, 3, 4, 8), (1,) * 4), r.do(op.Rotate(ROPE), k))
    first = r.attention(turned, r.do(op.Rotate(ROPE), k), k)
    second = r.attention(r.do(op.Rotate(ROPE), k), late, r.do(op.Slice((0, 1, 0, 0), (1, 3, 4, 8), (1,) * 4), k))
    assert count(fused(r.graph(first, second)), op.Rotate) == 2


def test_rope_scale_and_casts_fold_together():
    r = Recording()
    q, k, v = (r.input(1, 6, 2, 8, dtype=float16) for _ in range(3))
    wide = [r.do(op.Cast(float32), x) for x in (q, k, v)]
    turned = [r.multiply(r.do(op.Rotate(ROPE), wide[0]), 0.3), r.do(op.Rotate(ROPE), r.multiply(wide[1], 2.0))]
    graph = fused(r.graph(r.do(op.Cast(float16), r.attention(*turned, wide[2]))), 2e-3)
    assert len(graph.nodes) == 4
    assert graph.nodes[-1].operation.call.scale == pytest.approx(0.6 / np.sqrt(8))


def test_a_half_precision_scale_folds_where_it_is_exact():
    for factor, left in ((0.25, 0), (0.3, 1)):
        r = Recording()
        q, k, v = (r.input(1, 6, 2, 8, dtype=float16) for _ in range(3))
        assert count(fused(r.graph(r.attention(r.multiply(q, factor), k, v)), 2e-3), op.Elementwise) == left


@pytest.mark.parametrize("dtype", [float32, float16])
def test_a_transposed_result_is_stored_so(dtype):
    r = Recording()
    out = r.attention(*(r.input(2, 5, 2, 8, dtype=dtype) for _ in range(3)))
    flat = r.do(op.Reshape((2, 2, 40)), r.do(op.Transpose((0, 2, 1, 3)), out))
    graph = fused(r.graph(flat, out))
    assert len(graph.nodes) == 4
    assert graph.nodes[-1].operation.store == (0, 2, 1, 3)


def test_heads_that_lie_over_padding_are_copied():
    r = Recording()
    out = r.attention(*(r.input(1, 3, 2, 5, dtype=float16) for _ in range(3)))
    assert count(fused(r.graph(r.do(op.Reshape((3, 10)), out)), 2e-3), op.Copy) == 1


def test_equal_calls_on_parts_of_arrays_are_one_call():
    r = Recording()
    q, k, v = r.input(3, 2, 5, 4, 8), r.input(3, 2, 7, 2, 8), r.input(3, 2, 7, 2, 8)
    lengths = r.input(3, 2, dtype=int32)
    outs = []
    for i in range(3):
        parts = [
            r.do(op.Reshape(shape[1:]), r.do(op.Slice((i, 0, 0, 0, 0), (1, *shape[1:]), (1,) * 5), x))
            for x, shape in ((q, (3, 2, 5, 4, 8)), (k, (3, 2, 7, 2, 8)), (v, (3, 2, 7, 2, 8)))
        ]
        own = r.do(op.Reshape((2,)), r.do(op.Slice((i, 0), (1, 2), (1, 1)), lengths))
        outs.append(r.attention(*parts, Call(CAUSAL, residual=np.dtype(np.float32)), key_value_lengths=own))
    graph = fused(r.graph(*outs, Use(outs[1].node, 1)))
    assert count(graph, op.Attention) == 1
    assert graph.nodes[-1].avals[0].shape == (3, 2, 5, 4, 8)


def test_calls_that_share_keys_or_a_mask_are_one_call_too():
    r = Recording()
    q, k = r.input(4, 5, 4, 8), r.input(2, 7, 2, 8)
    mask = r.do(op.Cast(np.dtype(bool)), r.input(5, 7))
    halves = [r.do(op.Slice((2 * i, 0, 0, 0), (2, 5, 4, 8), (1,) * 4), q) for i in range(2)]
    graph = fused(r.graph(*(r.attention(half, k, k, mask=mask) for half in halves)))
    assert count(graph, op.Attention) == 1


def test_unlike_calls_stay_apart():
    r = Recording()
    q, k = r.input(4, 5, 4, 8), r.input(2, 7, 2, 8)
    halves = [r.do(op.Slice((2 * i, 0, 0, 0), (2, 5, 4, 8), (1,) * 4), q) for i in range(2)]
    graph = fused(r.graph(r.attention(halves[0], k, k), r.attention(halves[1], k, k, Call(CAUSAL))))
    assert count(graph, op.Attention) == 2


def test_identical_work_is_done_once_and_unneeded_work_not():
    r = Recording()
    x = r.input(2, 3)
    r.do(op.Elementwise("exp"), r.input(7))
    twice = [r.do(op.Elementwise("add"), r.do(op.Reshape((6,)), x), r.constant(1.0)) for _ in range(2)]
    graph = fused(r.graph(*twice))
    assert len(graph.nodes) == 3
    assert graph.outputs[0] == graph.outputs[1]


def test_zeros_of_either_sign_are_two_constants():
    r = Recording()
    x = r.input(3)
    graph = fused(r.graph(*(r.do(op.Elementwise("divide"), x, r.constant(zero)) for zero in (0.0, -0.0))))
    assert count(graph, op.Constant) == 2


def test_a_transposed_result_that_is_cast_afterwards_is_stored_so_in_half_precision():
    r = Recording()
    out = r.attention(*(r.input(2, 3, 4, 4) for _ in range(3)))
    flat = r.do(op.Reshape((2, 48)), r.do(op.Transpose((0, 2, 1, 3)), out))
    graph = fused(r.graph(r.do(op.Cast(float16), flat)), 2e-3)
    assert len(graph.nodes) == 4
    assert graph.nodes[-1].operation.dtype == float16


@pytest.mark.parametrize("between", ["swapaxes", "cast", "rope", "scale"])
def test_repeats_fold_behind_other_steps(between):
    r = Recording()
    dtype = float16 if between == "cast" else float32
    shape, axis = ((2, 2, 7, 8), 1) if between == "swapaxes" else ((2, 7, 2, 8), 2)
    q, k, v = r.input(2, 5, 6, 8), r.input(*shape, dtype=dtype), r.input(*shape, dtype=dtype)
    k, v = (r.do(op.Repeat(3, axis), x) for x in (k, v))
    if between == "swapaxes":
        k, v = (r.do(op.Transpose((0, 2, 1, 3)), x) for x in (k, v))
    elif between == "cast":
        k, v = (r.do(op.Cast(float32), x) for x in (k, v))
    elif between == "rope":
        q, k = (r.do(op.Rotate(ROPE), x) for x in (q, k))
    else:
        k = r.multiply(k, 3.0)
    graph = fused(r.graph(r.attention(q, k, v)))
    assert len(graph.nodes) == 4
    assert graph.view(graph.nodes[-1].uses[1]).shape == (2, 7, 2, 8)


def test_an_offset_that_is_not_the_calls_keeps_the_rotation():
    r = Recording()
    q, k = r.input(2, 5, 2, 8), r.input(2, 7, 2, 8)
    own, other = r.input(2, dtype=int32), r.input(2, dtype=int32)
    key = r.do(op.Rotate(ROPE), k)
    for query, offset in ((r.do(op.Rotate(ROPE, "offset"), q, other), own), (r.do(op.Rotate(ROPE), q), own)):
        out = r.attention(query, key, k, Call(CAUSAL), query_offset=offset)
        assert count(fused(r.graph(out)), op.Rotate) == 2


def test_rope_stays_outside_where_a_call_would_bind_too_much():
    r = Recording()
    q, k = (r.do(op.Rotate(ROPE), r.input(1, 5, 2, 8)) for _ in range(2))
    more = {"bias": r.input(5, 5), "mask": r.do(op.Cast(np.dtype(bool)), r.input(5, 5))}
    kept = r.attention(q, k, k, Call(residual=np.dtype(np.float32)), **more)
    assert count(fused(r.graph(kept)), op.Rotate) == 2
    r = Recording()
    q, k, v = (r.input(1, 5, 2, 8) for _ in range(3))
    folded = r.attention(r.do(op.Rotate(ROPE), q), r.do(op.Rotate(ROPE), k), v, bias=r.input(5, 5))
    assert count(fused(r.graph(folded)), op.Rotate) == 0


def test_heads_that_were_copied_and_not_repeated_stay():
    r = Recording()
    q, k, v = r.input(1, 5, 4, 8), r.input(8, 7, 4), r.input(8, 7, 4)
    moved = [r.do(op.Reshape((1, 7, 4, 8)), r.do(op.Transpose((1, 2, 0)), r.multiply(x, 2.0))) for x in (k, v)]
    halves = [r.do(op.Reshape((1, 7, 4, 8)), r.do(op.Transpose((0, 2, 1)), r.input(4, 8, 7))) for _ in range(2)]
    pairs = [r.do(op.Transpose((0, 1, 2, 4, 3)), r.input(1, 7, 2, 8, 2)) for _ in range(2)]
    pairs = [r.do(op.Reshape((1, 7, 4, 8)), x) for x in pairs]
    graph = fused(r.graph(*(r.attention(q, *keys) for keys in (moved, halves, pairs))))
    calls = [node for node in graph.nodes if isinstance(node.operation, op.Attention)]
    assert [graph.view(node.uses[1]).shape[2] for node in calls] == [4, 4, 4]


@pytest.mark.parametrize(("dtype", "dim", "axes"), [(float32, 8, (0, 2, 3, 1)), (float16, 5, (0, 2, 1, 3))])
def test_results_whose_rows_would_not_be_whole_words_are_copied(dtype, dim, axes):
    r = Recording()
    out = r.attention(*(r.input(2, 5, 2, dim, dtype=dtype) for _ in range(3)))
    flat = r.do(op.Reshape((2, 10 * dim)), r.do(op.Transpose(axes), out))
    graph = fused(r.graph(flat), 2e-3)
    assert count(graph, op.Copy) == 1
    assert graph.nodes[3].operation.store is None


def test_a_part_of_a_result_is_copied():
    r = Recording()
    out = r.do(op.Slice((0, 1, 0, 0), (2, 4, 2, 8), (1,) * 4), r.attention(*(r.input(2, 5, 2, 8) for _ in range(3))))
    graph = fused(r.graph(r.do(op.Reshape((2, 64)), r.do(op.Transpose((0, 2, 1, 3)), out))))
    assert count(graph, op.Copy) == 1
