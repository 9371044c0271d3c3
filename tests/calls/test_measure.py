"""Checking itself: what it passes, what it names where it fails, and how it reads a call of the graph. No device."""

import dataclasses

import numpy as np
import pytest

from tests.calls.measured import normal, qkv
from wgattn._errors import ValidationError
from wgattn._kernels.attention.problem import Bound, Call
from wgattn._kernels.rotation import Rope
from wgattn._reference import attention, causal, chunked, local, prefix, segments
from wgattn._validate import check_launch
from wgattn._validate.launch import in_clauses
from wgattn._validate.measure import chosen_rows
from wgattn._validate.report import report

CALL = Call(residual=np.dtype(np.float32))
LATEST = Bound("upper", "diagonal")


def answered(arrays, **options) -> tuple[np.ndarray, np.ndarray]:
    """What a perfect kernel gives: the reference, rounded once."""
    result = attention(*arrays, **options)
    return result.out.astype(arrays[0].dtype), result.residual.astype(np.float32)


def named(arrays, **more) -> dict[str, np.ndarray]:
    return {"query": arrays[0], "key": arrays[1], "value": arrays[2], **more}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_right_launch_passes(dtype):
    arrays = qkv(B=2, N=4, dtype=dtype)
    check_launch(CALL, named(arrays), *answered(arrays), "a variant")


def test_a_wrong_element_is_named_with_both_values_and_the_variant():
    arrays = qkv(B=2, N=4)
    out, residual = answered(arrays)
    right = float(out[1, 5, 2, 3])
    out[1, 5, 2, 3] += 1
    with pytest.raises(ValidationError, match=r"flash-x: out\[1, 5, 2, 3\] is .*plain") as raised:
        check_launch(CALL, named(arrays), out, residual, "flash-x")
    assert f"{right:.6g}"[:6] in str(raised.value)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_launch_that_gives_nan_fails(wrong: float):
    arrays = qkv()
    out, residual = answered(arrays)
    out[0, 1, 1, 0] = wrong
    with pytest.raises(ValidationError, match=r"out\[0, 1, 1, 0\]"):
        check_launch(CALL, named(arrays), out, residual, "v")
    out, residual = answered(arrays)
    residual[0, 2, 1] += 1e-4
    with pytest.raises(ValidationError, match=r"residual\[0, 2, 1\]"):
        check_launch(CALL, named(arrays), out, residual, "v")


def test_a_sample_of_rows_names_the_row_of_the_whole():
    assert chosen_rows(1, 1, 100, 1, scores=5).tolist() == [0, 24, 49, 74, 99]
    assert chosen_rows(2, 2, 7, 3).tolist() == list(range(7))
    arrays = qkv(T=100, N=1, K=1)
    out, residual = answered(arrays)
    out[0, 74, 0, 1] += 1
    out[0, 75, 0, 1] += 5  # not in the sample
    with pytest.raises(ValidationError, match=r"out\[0, 74, 0, 1\]"):
        check_launch(CALL, named(arrays), out, residual, "v", scores=40)


def test_every_operand_of_a_call_is_read():
    query, key, value = qkv(B=2, T=5, S=9, N=4, H=8)
    r = np.random.default_rng(4)
    beside = {
        "bias": normal(4, 5, 9, seed=3),
        "mask": (r.random((2, 1, 5, 9)) < 0.8).astype(np.uint8),
        "query_lengths": np.array([5, 3], np.int32),
        "key_value_lengths": np.array([7, 9], np.int32),
        "query_offset": np.array([2, 4], np.int32),
        "sinks": normal(4, seed=5),
        "scale": np.float32(0.5),
        "query_segments": r.integers(0, 2, (2, 5)).astype(np.int32),
        "key_segments": r.integers(0, 2, 9).astype(np.int32),
        "reach": np.array([3, 1], np.int32),
    }
    clauses = ((Bound("lower", "diagonal", -4, "reach"), LATEST), (Bound("upper", "constant", 1),))
    rule = Rope(base=100.0, rotary_dim=4)
    call = dataclasses.replace(CALL, clauses=clauses, softcap=2.0, rope=rule, scale=0.8)

    def mask(rows, at):
        low = np.arange(9) >= at[:, None, :, None] - 4 + beside["reach"][:, None, None, None]
        ids = segments(rows, beside["query_segments"], beside["key_segments"])
        return ((causal(at, 9) & low) | prefix(9, 2)) & ids & (beside["mask"][:, :, rows] != 0)

    options = {
        "bias": beside["bias"],
        "mask": mask,
        "query_seq_lengths": beside["query_lengths"],
        "key_value_seq_lengths": beside["key_value_lengths"],
        "query_offset": beside["query_offset"],
        "sinks": beside["sinks"],
        "scale": 0.4,
        "softcap": 2.0,
        "rope": rule,
    }
    arrays = (query, key, value)
    out, residual = answered(arrays, **options)
    check_launch(call, named(arrays, **beside), out, residual, "v")
    for name, array in beside.items():
        changed = {**beside, name: 1 - array if name == "mask" else array[..., ::-1] if name == "bias" else array - 2}
        with pytest.raises(ValidationError):
            check_launch(call, named(arrays, **changed), out, residual, f"without the right {name}")


def test_a_second_batch_axis_is_read_entry_by_entry():
    query, key, value = normal(3, 2, 4, 2, 8), normal(1, 2, 6, 1, 8, seed=1), normal(3, 2, 6, 1, 8, seed=2)
    lengths = np.array([[6, 2], [3, 4], [1, 5]], np.int32)
    keys = np.broadcast_to(key, (3, *key.shape[1:]))
    flat = [x.reshape(6, *x.shape[2:]) for x in (query, keys, value)]
    out, residual = answered(flat, key_value_seq_lengths=lengths.ravel())
    out, residual = out.reshape(query.shape), residual.reshape(query.shape[:-1])
    operands = named((query, key, value), key_value_lengths=lengths)
    check_launch(CALL, operands, out, residual, "v")
    out[2, 1, 3, 1, 4] += 1
    with pytest.raises(ValidationError, match=r"out\[2, 1, 3, 1, 4\]"):
        check_launch(CALL, operands, out, residual, "v")


@pytest.mark.parametrize(
    ("clauses", "dense"),
    [
        (((),), lambda p: np.ones((1, 1, 4, 9), bool)),
        (((LATEST,),), lambda p: causal(p, 9)),
        (((Bound("lower", "diagonal", -2), Bound("upper", "diagonal", 1)),), lambda p: local(p, 9, 2, 1)),
        (((Bound("lower", "chunk", 3), Bound("upper", "chunk", 3)),), lambda p: chunked(p, 9, 3)),
        (((Bound("upper", "constant", 4),), (LATEST,)), lambda p: prefix(9, 5) | causal(p, 9)),
    ],
)
def test_clauses_are_read_as_the_masks_that_they_mean(clauses, dense):
    at = np.array([[-2, 0, 3, 7]])
    kept = in_clauses(clauses, {}, at, np.arange(9)[None])
    np.testing.assert_array_equal(kept, np.broadcast_to(dense(at), (1, 1, 4, 9)))


def test_a_report_is_a_table_with_a_peer():
    arrays = qkv(B=2, N=4)
    options = {"is_causal": True, "query_offset": np.array([0, -3]), "key_value_seq_lengths": np.array([8, 5])}
    found = report(arrays, options, *answered(arrays, **options), "plain-f32")
    assert found.ok
    assert [one.what for one in found.peers] == ["jax.nn"]
    assert found.peers[0].ok
    text = str(found)
    assert "plain-f32" in text
    assert "rows keep no key" in text
    assert "is_causal" in text


def test_a_report_says_what_was_left_out_and_what_is_wrong():
    arrays = qkv(T=50, N=1, K=1, Hv=4)
    out, residual = answered(arrays, softcap=3.0)
    out[0, 0, 0, 0] = 7
    found = report(arrays, {"softcap": 3.0}, out, residual, "v", scores=40)
    assert not found.ok
    assert found.measures[0].worst == (0, 0, 0, 0)
    assert not found.peers
    text = " ".join(str(found).split())
    assert "WRONG" in text
    assert "jax.nn has no softcap, a value head dim of its own" in text
    assert "5 of 50 query rows" in text


def test_large_values_are_allowed_their_own_rounding():
    query, key, value = qkv(T=16, S=16)
    arrays = (8 * query, 8 * key, 1000 * value)
    out, residual = answered(arrays)
    assert report(arrays, {}, out * np.float32(1 + 3e-7), residual, "v").ok
    assert not report(arrays, {}, out * np.float32(1 + 3e-4), residual, "v").ok
