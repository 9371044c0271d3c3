"""The rope kernel against rotation in float64."""

import numpy as np
import pytest

from wgattn._dtypes import bfloat16, float16, float32, short_name
from wgattn._kernels.array import rope
from wgattn._kernels.rotation import Rope, inverse_frequencies, tables

from .views import filled, operand, profile, same

pytestmark = pytest.mark.device

B, T, N, H = 2, 5, 3, 12
ATOL = {float32: 2e-6, float16: 2e-3, bfloat16: 2e-2}


def rotated(x: np.ndarray, positions: np.ndarray, parameters: Rope) -> np.ndarray:
    """x (B, T, N, H) rotated by positions (B, T) or (T,), float64."""
    size = parameters.rotated(x.shape[-1])
    frequency, factor = inverse_frequencies(parameters, size)
    angle = positions[..., None, None] * frequency
    turn = factor * np.exp(1j * angle)
    head = x[..., :size].astype(np.float64)
    split = (
        (head[..., : size // 2], head[..., size // 2 :])
        if parameters.style == "half"
        else (head[..., ::2], head[..., 1::2])
    )
    turned = (split[0] + 1j * split[1]) * turn
    out = x.astype(np.float64)
    if parameters.style == "half":
        out[..., :size] = np.concatenate([turned.real, turned.imag], -1)
    else:
        out[..., :size] = np.stack([turned.real, turned.imag], -1).reshape(head.shape)
    return out


def normal(shape: tuple[int, ...], dtype: np.dtype = float32) -> np.ndarray:
    return np.random.default_rng(7).normal(size=shape).astype(dtype)


def run(x, base, parameters, positions=None, offset=None, inverse=False):
    result = np.zeros(x.shape, x.dtype)
    given = {"positions": positions, "offset": offset}
    operands = {name: None if array is None else operand(array) for name, array in given.items()}
    plan = rope.plan(
        operand(x, base), **operands, result=operand(result), rope=parameters, profile=profile(), inverse=inverse
    )
    sources = {name: array for name, array in given.items() if array is not None}
    return filled(plan, {"x": base, rope.TABLES: tables(parameters, x.shape[-1]), **sources}, result)


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("rotary_dim", [None, 6])
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=short_name)
def test_rows_stand_at_their_index(style, rotary_dim, dtype):
    parameters, x = Rope(style=style, rotary_dim=rotary_dim), normal((B, T, N, H), dtype)
    found = run(x, x, parameters)
    np.testing.assert_allclose(found.astype(np.float64), rotated(x, np.arange(T), parameters), atol=ATOL[dtype], rtol=0)
    if rotary_dim:
        assert same(found[..., rotary_dim:].copy(), x[..., rotary_dim:].copy())


@pytest.mark.parametrize("positions", [
    np.array([0, 4095, 4096, 70_000, 2**31 - 1]),
    np.array([[7, 1, 1 << 22, (1 << 22) + 4097, 131_071], [-1, -5000, -(2**31), 3, 2]]),
], ids=["T", "BT"])  # fmt: skip
def test_any_int32_position(positions):
    parameters, x = Rope(base=1e6), normal((B, T, N, H))
    found = run(x, x, parameters, positions=positions.astype(np.int32))
    np.testing.assert_allclose(found, rotated(x, positions, parameters), atol=4e-6, rtol=0)


@pytest.mark.parametrize("offset", [np.array(9), np.array([4090, -3])], ids=["scalar", "B"])
def test_offset(offset):
    parameters, x = Rope(style="interleaved"), normal((B, T, N, H))
    found = run(x, x, parameters, offset=offset.astype(np.int32))
    wanted = rotated(x, offset[..., None] + np.arange(T), parameters)
    np.testing.assert_allclose(found, wanted, atol=4e-6, rtol=0)


def test_scaling_and_views():
    yarn = {"rule": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    parameters, base = Rope(scaling=yarn), normal((B, N, H, T))
    x = base.transpose(0, 3, 1, 2)[:, ::-1]
    found = run(x, base, parameters)
    np.testing.assert_allclose(found, rotated(x, np.arange(T), parameters), atol=4e-6, rtol=0)


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_the_inverse_is_the_adjoint(style):
    parameters, x, y = Rope(style=style, rotary_dim=8), normal((B, T, N, H)), normal((B, T, N, H))[::-1].copy()
    forward, back = run(x, x, parameters), run(y, y, parameters, inverse=True)
    assert np.isclose(np.vdot(forward.astype(np.float64), y), np.vdot(x.astype(np.float64), back), rtol=1e-5)
    np.testing.assert_allclose(run(forward, forward, parameters, inverse=True), x, atol=2e-6)


def test_a_second_batch_axis_and_empty():
    parameters, x = Rope(), normal((2, B, T, N, H))
    found = run(x, x, parameters, offset=np.array([3, 4], np.int32))
    wanted = rotated(x, np.array([3, 4])[:, None] + np.arange(T), parameters)
    np.testing.assert_allclose(found, wanted, atol=4e-6, rtol=0)
    assert run(x[:, :, :0], x, parameters).size == 0


def test_a_wrong_call_is_refused():
    x = operand(normal((B, T, N, H)))
    with pytest.raises(ValueError, match="int32"):
        rope.plan(x, operand(np.zeros(T, np.float32)), None, x, Rope(), profile())
    with pytest.raises(ValueError, match="not both"):
        rope.plan(x, operand(np.zeros(T, np.int32)), operand(np.zeros((), np.int32)), x, Rope(), profile())
