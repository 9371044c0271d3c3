"""`wgattn.validate` and validation of programs on a device: what is right passes, what is not is named."""

from typing import Any

import numpy as np
import pytest

import wgattn
from tests.calls.measured import normal, qkv
from wgattn import _reference, masks, nn
from wgattn._validate import launch, report

pytestmark = pytest.mark.device


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True, "query_offset": np.array([1, -2], np.int32)},
        {"local_window_size": (2, 1), "scale": np.float32(0.3)},
        {"bias": normal(1, 1, 6, 9), "mask": np.arange(9) % 4 != 0},
        {"mask": masks.prefix(np.array([2, 5], np.int32)) | masks.causal()},
        {"mask": masks.segments(np.arange(6, dtype=np.int32) // 2, np.arange(9, dtype=np.int32) // 3)},
        {"query_seq_lengths": np.array([4, 9], np.int32), "key_value_seq_lengths": np.array([0, 7], np.int32)},
        {"softcap": 2.0, "sinks": normal(4), "rope": nn.Rope(base=100.0)},
        {"implementation": "plain", "return_residual": True, "residual_dtype": np.float16},
    ],
    ids=lambda options: "-".join(options),
)
def test_a_call_with_its_options_is_right(options: dict[str, Any]):
    found = wgattn.validate(*qkv(B=2, T=6, S=9, N=4), **options)
    assert found.ok, str(found)
    assert found.measures[0].norm > 0
    assert found.variant in str(found)
    in_jax = not {"softcap", "sinks", "rope"} & set(options)
    assert [one.what for one in found.peers] == ["jax.nn"] * in_jax
    assert all(one.ok for one in found.peers), str(found)


def test_it_takes_arrays_without_a_batch_axis_and_of_other_kinds():
    query, key, value = (x[0] for x in qkv(Hv=5, dtype=np.float64))
    found = wgattn.validate(wgattn.asarray(query), key, value)
    assert found.ok
    assert "float32" in found.call
    assert wgattn.validate(query[:0], key, value).ok


def test_what_the_call_refuses_is_raised():
    query, key, value = qkv()
    with pytest.raises(ValueError, match="softcap"):
        wgattn.validate(query, key, value, softcap=-1.0)


def shifted(*given: Any, **options: Any) -> _reference.Result:
    """A reference that one element of disagrees with every kernel."""
    right = _reference.attention(*given, **options)
    right.out[0, 1, 0, 2] += 0.5
    return right


def test_a_wrong_result_is_reported_and_raises_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report, "attention", shifted)
    found = wgattn.validate(*qkv())
    assert not found.ok
    assert not found
    assert found.measures[0].worst == (0, 1, 0, 2)
    assert "WRONG" in str(found)


def test_a_program_under_validation_names_the_element_and_the_variant(monkeypatch: pytest.MonkeyPatch):
    arrays = qkv()
    attend = wgattn.jit(lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True), validate=True)
    np.asarray(attend(*arrays))
    monkeypatch.setattr(launch, "attention", shifted)
    with pytest.raises(wgattn.ValidationError, match=r"f32.*: out\[0, 1, 0, 2\] is .* reference gives"):
        np.asarray(attend(*arrays))
    monkeypatch.setenv("WGATTN_VALIDATE", "1")
    with pytest.raises(wgattn.ValidationError, match=r"out\[0, 1, 0, 2\]"):
        np.asarray(nn.dot_product_attention(*arrays))
