"""Calls over caches are checked under validation too: what is right passes, what is not is named."""

from typing import Any

import numpy as np
import pytest

import wgattn as wa
from tests.calls.test_cached_attention import LAYOUTS, filled, queries
from wgattn import _run, nn
from wgattn._validate.launch import check_launch

pytestmark = pytest.mark.device
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rope": {"rope": nn.Rope(), "softcap": 4.0},
    "residual and sinks": {"return_residual": True, "sinks": np.linspace(-1, 1, 4, dtype=np.float32)},
}


@pytest.mark.parametrize(
    ("dtype", "layout", "options"),
    [
        ("float16", "dense", "rope"), ("float16", "paged", "plain"), ("float16", "ring", "residual and sinks"),
        ("int8", "dense", "residual and sinks"), ("int8", "paged", "rope"), ("int8", "ring", "plain"),
        ("int4", "dense", "plain"), ("int4", "paged", "residual and sinks"), ("int4", "ring", "rope"),
    ],
)  # fmt: skip
def test_every_layout(dtype: str, layout: str, options: str, monkeypatch: pytest.MonkeyPatch):
    cache, seen = filled([17, 0, 10], dtype=dtype, **LAYOUTS[layout]), []

    def hook(attention: Any, operands: Any, results: Any, variant: str) -> None:
        check_launch(attention.call, operands, results["out"], results.get("residual"), variant)
        wrong = results["out"].copy()
        wrong[0, 0, 1, 2] += 0.1
        with pytest.raises(wa.ValidationError, match=r"out\[0, 0, 1, 2\] is .*, and the float64 reference gives"):
            check_launch(attention.call, operands, wrong, None, variant)
        seen.append(variant)

    monkeypatch.setattr(_run, "_hooks", [hook])
    for T in (1, 4):
        wa.jit(lambda q, c: nn.cached_attention(q, c, **OPTIONS[options]), validate=True)(queries(T, 4), cache)
    assert len(seen) == 2
