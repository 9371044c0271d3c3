"""Shape and dtype rules of every operation, and how results lie."""

import ml_dtypes
import numpy as np
import pytest

from wgattn._dtypes import bool_, float16, float32, int32
from wgattn._graph import operations as op
from wgattn._graph.graph import Aval, Use, View
from wgattn._graph.rules import attention_layout, infer, node
from wgattn._kernels.attention.problem import Bound, Call
from wgattn._kernels.rotation import Rope


def one(operation: object, *operands: Aval) -> Aval:
    (aval,) = infer(operation, operands)
    return aval


X = Aval((2, 3, 4), float32)


@pytest.mark.parametrize(
    ("operation", "right"),
    [
        (op.Reshape((6, 4)), Aval((6, 4), float32)),
        (op.Transpose((2, 0, 1)), Aval((4, 2, 3), float32)),
        (op.Slice((0, 2, 3), (2, 3, 2), (1, -1, -2)), Aval((2, 3, 2), float32)),
        (op.BroadcastTo((5, 2, 3, 4)), Aval((5, 2, 3, 4), float32)),
        (op.Repeat(3, 1), Aval((2, 9, 4), float32)),
        (op.Cast(float16), Aval((2, 3, 4), float16)),
        (op.Elementwise("exp"), X),
        (op.Elementwise("negative"), X),
        (op.Sum((0, 2)), Aval((3,), float32)),
        (op.Sum((0, 2), keepdims=True), Aval((1, 3, 1), float32)),
        (op.Pad((0, 1, 0), (0, 0, 2)), Aval((2, 4, 6), float32)),
        (op.Copy(), X),
    ],
)
def test_operations_of_one_operand(operation: object, right: Aval):
    assert one(operation, X) == right


@pytest.mark.parametrize(
    ("operation", "error", "text"),
    [
        (op.Reshape((5,)), ValueError, "cannot be reshaped"),
        (op.Transpose((0, 0, 1)), ValueError, "each of the 3 axes"),
        (op.Slice((0, 0, 0), (3, 3, 4), (1, 1, 1)), ValueError, "leaves an axis of 2"),
        (op.Slice((0, 1, 0), (2, 3, 4), (1, -1, 1)), ValueError, "leaves an axis of 3"),
        (op.BroadcastTo((2, 2, 4)), ValueError, "does not broadcast"),
        (op.Repeat(-1, 0), ValueError, "0 or more"),
        (op.Elementwise("logical_not"), TypeError, "takes bool arrays"),
        (op.Elementwise("add"), TypeError, "takes 2 operands"),
        (op.Rotate(Rope()), ValueError, "BTNH"),
        ("what", TypeError, "no operation with a rule"),
    ],
)
def test_what_one_operand_cannot_have(operation: object, error: type[Exception], text: str):
    with pytest.raises(error, match=text):
        one(operation, X)


def test_merge_has_a_row_of_each_part_and_its_residual():
    outputs, residuals, sinks = Aval((3, 2, 5, 4, 7), float16), Aval((3, 2, 5, 4), float32), Aval((4,), float32)
    right = Aval((2, 5, 4, 7), float16), Aval((2, 5, 4), float32)
    uses = Use(0), Use(1), Use(2)
    made = node(op.Merge(sinks=True), uses, (outputs, residuals, sinks))
    assert made.avals == right
    assert made.layouts[0].strides == (160, 32, 8, 1), "16-bit rows of whole words"
    assert infer(op.Merge(), (outputs, residuals)) == right
    with pytest.raises(ValueError, match="do not fit together"):
        infer(op.Merge(), (outputs, right[1]))
    with pytest.raises(TypeError, match="nor residuals float16"):
        infer(op.Merge(), (outputs, Aval((3, 2, 5, 4), float16)))
    with pytest.raises(ValueError, match=r"sinks f32\[5\] are not float32 that broadcast to \(2, 5, 4\)"):
        infer(op.Merge(sinks=True), (outputs, residuals, Aval((5,), float32)))


def test_elementwise_broadcasts_and_compares():
    row, column = Aval((3, 1), float32), Aval((4,), float32, weak=True)
    assert one(op.Elementwise("multiply"), row, column) == Aval((3, 4), float32)
    assert one(op.Elementwise("multiply"), column, column).weak
    assert one(op.Elementwise("less"), row, column) == Aval((3, 4), bool_)
    assert one(op.Elementwise("where"), Aval((3, 4), bool_), row, column) == Aval((3, 4), float32)
    with pytest.raises(TypeError, match="one dtype; got float32, float16"):
        one(op.Elementwise("add"), row, Aval((3, 1), float16))
    with pytest.raises(TypeError, match="condition of where must be bool"):
        one(op.Elementwise("where"), row, row, row)
    with pytest.raises(TypeError, match="divide takes float arrays"):
        one(op.Elementwise("divide"), Aval((3,), int32), Aval((3,), int32))


def test_concatenate():
    assert one(op.Concatenate(1), X, Aval((2, 5, 4), float32)) == Aval((2, 8, 4), float32)
    with pytest.raises(ValueError, match="differ elsewhere"):
        one(op.Concatenate(0), X, Aval((2, 5, 4), float32))
    with pytest.raises(TypeError, match="one dtype"):
        one(op.Concatenate(0), X, Aval((2, 3, 4), float16))


def test_rotate():
    x = Aval((2, 5, 3, 8), float16)
    assert one(op.Rotate(Rope()), x) == x
    for shape in ((5,), (1, 5), (2, 5)):
        assert one(op.Rotate(Rope(), "positions"), x, Aval(shape, int32)) == x
    for shape in ((), (2,)):
        assert one(op.Rotate(Rope(), "offset"), x, Aval(shape, int32)) == x
    with pytest.raises(ValueError, match=r"must have shape \(5,\) or \(1, 5\) or \(2, 5\); got \(4,\)"):
        one(op.Rotate(Rope(), "positions"), x, Aval((4,), int32))
    with pytest.raises(TypeError, match="must be int32; got float32"):
        one(op.Rotate(Rope(), "positions"), x, Aval((5,), float32))
    with pytest.raises(ValueError, match="rotates 16 of head_dim 8"):
        one(op.Rotate(Rope(rotary_dim=16)), x)


QUERY, KEY, VALUE = Aval((2, 5, 8, 16), float16), Aval((2, 7, 2, 16), float16), Aval((2, 7, 2, 24), float16)


def test_attention():
    plain = op.Attention(("query", "key", "value"), Call(), float16)
    assert infer(plain, [QUERY, KEY, VALUE]) == (Aval((2, 5, 8, 24), float16),)
    kept = op.Attention(("query", "key", "value"), Call(residual=float32), float32)
    assert infer(kept, [QUERY, KEY, VALUE]) == (Aval((2, 5, 8, 24), float32), Aval((2, 5, 8), float32))


def test_attention_takes_a_second_batch_axis_which_key_and_value_may_lack():
    query = Aval((3, 2, 5, 8, 16), float16)
    key, value = Aval((1, 2, 7, 2, 16), float16), Aval((3, 2, 7, 2, 24), float16)
    plain = op.Attention(("query", "key", "value"), Call(), float16)
    assert infer(plain, [query, key, value])[0].shape == (3, 2, 5, 8, 24)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 8, 5, 7), (1, 8, 1, 7)])
def test_attention_broadcasts_bias_and_mask(shape: tuple[int, ...]):
    for name, dtype in (("bias", float16), ("mask", bool_)):
        attention = op.Attention(("query", "key", "value", name), Call(), float16)
        assert infer(attention, [QUERY, KEY, VALUE, Aval(shape, dtype)]) == (Aval((2, 5, 8, 24), float16),)


def test_attention_that_does_not_fit():
    plain = op.Attention(("query", "key", "value"), Call(), float16)
    with pytest.raises(ValueError, match="do not fit together"):
        infer(plain, [QUERY, KEY, Aval((2, 6, 2, 24), float16)])
    with pytest.raises(ValueError, match="do not fit together"):
        infer(plain, [QUERY, Aval((2, 7, 3, 16), float16), Aval((2, 7, 3, 24), float16)])
    with pytest.raises(ValueError, match="batch axes"):
        infer(plain, [QUERY, Aval((3, 7, 2, 16), float16), Aval((3, 7, 2, 24), float16)])
    with pytest.raises(ValueError, match=r"mask .* does not broadcast"):
        infer(
            op.Attention(("query", "key", "value", "mask"), Call(), float16),
            [QUERY, KEY, VALUE, Aval((2, 2, 5, 7), bool_)],
        )
    call = Call(clauses=((Bound("upper", "constant", -1, "bound0"),),))
    with pytest.raises(TypeError, match="bound0 must not be float32"):
        infer(
            op.Attention(("query", "key", "value", "bound0"), call, float16), [QUERY, KEY, VALUE, Aval((2,), float32)]
        )


def test_results_lie_row_major_but_for_attentions_16_bit_rows():
    assert node(op.Elementwise("exp"), (), [Aval((2, 3), float16)]).layouts == (View((2, 3), (3, 1)),)
    odd = Aval((2, 7, 2, 3), float16)
    made = node(op.Attention(("query", "key", "value"), Call(residual=float32), float16), (), [QUERY, KEY, odd])
    assert made.layouts == (View((2, 5, 8, 3), (160, 32, 4, 1)), View((2, 5, 8), (40, 8, 1)))
    assert attention_layout(Aval((2, 5, 8, 3), float32)).strides == (120, 24, 3, 1)
    assert attention_layout(Aval((2, 5, 8, 3), np.dtype(ml_dtypes.bfloat16)), (0, 2, 1, 3)).strides == (160, 4, 20, 1)
