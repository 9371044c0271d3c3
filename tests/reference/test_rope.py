"""Rotary embedding of the reference: its definition, and the published scaling rules by their defining properties."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from wgattn._reference import attention, rope, rope_frequencies

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def test_a_pair_turns_by_its_angle():
    x = np.array([[[1.0, 0.0, 0.0, 2.0]]])
    half = rope(x, np.array([3]), base=100.0)[0, 0]  # pairs (0, 2) at 1 and (1, 3) at 1/10 radian a position
    np.testing.assert_allclose(half, [math.cos(3), -2 * math.sin(0.3), math.sin(3), 2 * math.cos(0.3)], rtol=1e-14)
    pairs = rope(x, np.array([3]), base=100.0, style="interleaved")[0, 0]
    np.testing.assert_allclose(pairs, [math.cos(3), math.sin(3), -2 * math.sin(0.3), 2 * math.cos(0.3)], rtol=1e-14)


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_only_the_distance_matters(style: str):
    q, k = normal(1, 5, 1, 8), normal(1, 5, 1, 8, seed=1)
    near = np.einsum("btnh,btnh->bt", rope(q, np.arange(5) + 3, style=style), rope(k, np.arange(5), style=style))
    far = np.einsum(
        "btnh,btnh->bt", rope(q, np.arange(5) + 1003, style=style), rope(k, np.arange(5) + 1000, style=style)
    )
    np.testing.assert_allclose(near, far, rtol=1e-10)


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_the_rest_of_a_head_stays(style: str):
    x = normal(2, 3, 2, 8)
    turned = rope(x, rotary_dim=4, style=style)
    np.testing.assert_array_equal(turned[..., 4:], x[..., 4:])
    np.testing.assert_array_equal(turned[:, 0], x[:, 0])
    np.testing.assert_allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-14)
    np.testing.assert_allclose(turned[..., :4], rope(x[..., :4], style=style), rtol=1e-14)


def test_positions_for_each_batch_entry():
    x, positions = normal(2, 3, 2, 8), np.array([[0, 5, 9], [7, 1, 2]])
    both = rope(x, positions)
    for b in range(2):
        np.testing.assert_array_equal(both[b], rope(x[b], positions[b]))


@pytest.mark.parametrize(
    "scaling", [4.0, ("linear", 4.0), {"rope_type": "linear", "factor": 4.0}, (("rule", "linear"), ("factor", 4.0))]
)
def test_linear_divides_positions(scaling):
    x = normal(1, 3, 1, 8)
    np.testing.assert_allclose(rope(x, np.array([4, 8, 12]), scaling=scaling), rope(x, np.array([1, 2, 3])), rtol=1e-13)


def test_llama3_keeps_fast_pairs_and_slows_slow_ones():
    plain, scaled = rope_frequencies(128, 500000.0)[0], rope_frequencies(128, 500000.0, LLAMA3)[0]
    wavelength = 2 * math.pi / plain
    fast, slow = wavelength < 8192 / 4, wavelength > 8192
    np.testing.assert_allclose(scaled[fast], plain[fast], rtol=1e-14)
    np.testing.assert_allclose(scaled[slow], plain[slow] / 8, rtol=1e-14)
    between = ~fast & ~slow
    smooth = (8192 / wavelength[between] - 1) / 3
    assert between.sum() > 3
    np.testing.assert_allclose(scaled[between], (1 - smooth) * plain[between] / 8 + smooth * plain[between], rtol=1e-13)


def test_yarn_ramps_between_its_bounds():
    plain, (scaled, factor) = rope_frequencies(64, 10000.0)[0], rope_frequencies(64, 10000.0, YARN)
    assert factor == pytest.approx(0.1 * math.log(4) + 1, rel=1e-15)
    first = math.floor(64 * math.log(4096 / (32 * 2 * math.pi)) / (2 * math.log(10000)))
    last = math.ceil(64 * math.log(4096 / (2 * math.pi)) / (2 * math.log(10000)))
    np.testing.assert_allclose(scaled[: first + 1], plain[: first + 1], rtol=1e-14)
    np.testing.assert_allclose(scaled[last:], plain[last:] / 4, rtol=1e-14)
    middle = (first + last) // 2
    share = (middle - first) / (last - first)
    assert scaled[middle] == pytest.approx(plain[middle] * (1 - share + share / 4), rel=1e-13)


@pytest.mark.parametrize(
    ("more", "right"),
    [({"attention_factor": 1.5}, 1.5), ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0), ({"factor": 0.5}, 1.0)],
)
def test_yarn_factor_on_cos_and_sin(more: dict[str, float], right: float):
    assert rope_frequencies(64, 10000.0, {**YARN, **more})[1] == right
    x = normal(1, 1, 1, 64)
    np.testing.assert_allclose(rope(x, np.array([0]), scaling={**YARN, **more}), right * x, rtol=1e-14)


def test_attention_rotates_at_offset_positions():
    q, k, v = normal(2, 3, 4, 8), normal(2, 6, 2, 8, seed=1), normal(2, 6, 2, 5, seed=2)
    offset = np.array([3, 1], np.int32)
    rule = SimpleNamespace(base=500.0, rotary_dim=6, style="interleaved", scaling=2.0)
    given = {"base": 500.0, "rotary_dim": 6, "style": "interleaved", "scaling": 2.0}
    fused = attention(q, k, v, is_causal=True, query_offset=offset, rope=rule)
    turned = rope(q, np.arange(3) + offset[:, None], **given), rope(k, **given)
    np.testing.assert_allclose(fused.out, attention(*turned, v, is_causal=True, query_offset=offset).out, rtol=1e-12)


@pytest.mark.parametrize("rotary_dim", [3, 10])
def test_a_wrong_rotary_dim_raises(rotary_dim: int):
    with pytest.raises(ValueError, match="even"):
        rope(normal(1, 2, 1, 8), rotary_dim=rotary_dim)


def test_an_unknown_rule_raises():
    with pytest.raises(ValueError, match="not known"):
        rope_frequencies(8, 10000.0, {"rope_type": "longrope", "factor": 2.0})
