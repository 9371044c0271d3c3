"""Memory over many calls: what a call takes goes back to the pool, and nothing is kept a call."""

from pathlib import Path

import numpy as np
import pytest

import wgattn
from wgattn import _runtime, nn

pytestmark = pytest.mark.device


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("calls", [2_000, pytest.param(10_000, marks=pytest.mark.grid)])
def test_many_calls_leave_memory_flat(calls: int) -> None:
    """Jitted and eager by turns, at offsets that change."""
    query = np.random.default_rng(0).standard_normal((1, 8, 2, 16), np.float32)
    attend = wgattn.jit(lambda q, offset: nn.dot_product_attention(q, q, q, is_causal=True, query_offset=offset))

    def call(i: int) -> None:
        x = wgattn.asarray(query)
        offset = np.int32(i % 50)
        np.asarray(attend(x, offset) if i % 2 else nn.dot_product_attention(x, x, x, query_offset=offset))

    for i in range(200):
        call(i)
    reserved, before = _runtime.device().memory.reserved, resident()
    for i in range(calls):
        call(i)
    assert _runtime.device().memory.reserved == reserved
    assert resident() - before < 8 << 20
