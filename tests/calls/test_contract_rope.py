"""`nn.rope` against the reference, and attention over what it gives, which is rotated where it is read."""

from typing import Any

import numpy as np
import pytest

import wgattn
from tests.calls.measured import normal, qkv
from tests.cases import DTYPES, LLAMA3
from tests.tolerance import check
from wgattn import _reference, nn

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("poisoned")]

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
RULES: list[dict[str, Any]] = [
    {},
    {"base": 500.0, "rotary_dim": 6},
    {"style": "interleaved"},
    {"style": "interleaved", "rotary_dim": 2, "base": 7.0},
    {"scaling": 4.0},
    {"scaling": LLAMA3},
    {"scaling": YARN, "style": "interleaved"},
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_rope_is_the_reference(rule: dict[str, Any], dtype: np.dtype):
    x = normal(2, 9, 3, 16, dtype=dtype)
    out = np.asarray(nn.rope(x, **rule))
    assert out.dtype == dtype
    check(out, _reference.rope(x, **rule))


@pytest.mark.parametrize(
    "positions", [np.array([0, 70_000, 5, 4096, 2**30]), np.array([[3, 1, 2, 9, 8], [0, -7, 65_536, 4, -4]])]
)
def test_positions_far_and_for_each_batch_entry(positions: np.ndarray):
    x = normal(2, 5, 3, 10)
    check(np.asarray(nn.rope(x, positions.astype(np.int32))), _reference.rope(x, positions))
    check(
        np.asarray(nn.rope(x[0], positions.ravel()[:5].astype(np.int32))), _reference.rope(x[0], positions.ravel()[:5])
    )


@pytest.mark.parametrize("T", [1, 9])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rope_of_a_call_is_rope_before_it(rule: dict[str, Any], T: int):
    query, key, value = qkv(B=2, T=T, S=20, N=4)
    offset = np.array([11, 70_000], np.int32)
    options = {"is_causal": True, "query_offset": offset}
    within = nn.dot_product_attention(query, key, value, **options, rope=nn.Rope(**rule))
    turned = nn.rope(query, offset[:, None] + np.arange(T, dtype=np.int32), **rule), nn.rope(key, **rule)
    before = nn.dot_product_attention(*turned, value, **options)
    right = _reference.attention(query, key, value, **options, rope=nn.Rope(**rule)).out
    check(np.asarray(within), right)
    check(np.asarray(before), right)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_rope_is_read_through_a_fused_projection(dtype: np.dtype):
    both = normal(2, 12, 8, 16, dtype=dtype)
    cut = (slice(None), slice(None))

    def attend(x: Any) -> Any:
        q, k, v = x[(*cut, slice(0, 4))], x[(*cut, slice(4, 6))], x[(*cut, slice(6, 8))]
        return nn.dot_product_attention(nn.rope(q), nn.rope(k), v, is_causal=True)

    q, k, v = both[:, :, :4], both[:, :, 4:6], both[:, :, 6:]
    right = _reference.attention(q, k, v, is_causal=True, rope=nn.Rope()).out
    check(np.asarray(wgattn.jit(attend)(both)), right)
