"""The contract's edges in every family, and what a call's results and run-time values are."""

import re
from typing import Any

import numpy as np
import pytest

import wgattn
from tests.calls.measured import measured, normal, qkv
from tests.cases import DTYPES
from tests.tolerance import check, check_residual
from wgattn import UnsupportedError, _run, nn
from wgattn._kernels.attention.choose import IMPLEMENTATIONS
from wgattn._reference import EMPTY_RESIDUAL, attention
from wgattn._runtime import pipelines

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("poisoned")]

ROWS = {"decode_matrix": 1, "decode_subgroups": 1, "decode": 1, "decode_lanes": 1}  # T, where a family takes no more
# What a device may lack, and the families that float32 is too wide for.
NOT_HERE = "is for CPU adapters|has no subgroups|needs subgroups|reads 3 textures|matri|multiplies float16|one byte"

LOWEST = np.finfo(np.float32).min


def served(family: str, *arrays: np.ndarray, **options: Any) -> np.ndarray | None:
    """What a family gives, having failed unless it is the reference's; None where the device lacks something."""
    given = {**options, "return_residual": True, "residual_dtype": np.float32, "implementation": family}
    try:
        out, residual = (np.asarray(x) for x in nn.dot_product_attention(*arrays, **given))
    except UnsupportedError as refused:
        assert re.search(NOT_HERE, str(refused)), refused  # noqa: PT017
        return None
    right = attention(*arrays, **options)
    check(out, right.out, S=arrays[1].shape[1])
    check_residual(residual, right.residual)
    return out


@pytest.mark.parametrize("family", IMPLEMENTATIONS)
def test_nan_empty_rows_and_lengths(family: str):
    T = ROWS.get(family, 9)
    query, key, value = qkv(B=4, T=T, S=70, N=4, K=2)
    mask = np.random.default_rng(3).random((4, 1, T, 70)) < 0.5
    mask[0, :, :, 40:] = True
    mask[1, :, T - 1] = False
    mask[..., 5] = False
    key[:, 5] = np.nan  # masked everywhere
    query[0, 0, 3, 2] = np.nan  # that row
    key[0, 41, 0, 1] = np.nan  # rows of heads 0 and 1
    value[1, 3, 1, 7] = np.nan  # a column of heads 2 and 3, in the rows that keep key 3, and in the mean
    mask[1, :, : T - 1, 3] = True
    lengths = np.array([70, 70, 33, 0], np.int32)
    key[2, 33:], value[2, 33:] = np.nan, np.inf  # past the length
    value[3, 60:, :, 4] = np.nan  # past the length, but of rows that keep no key
    ends = np.array([T, T, T, T - 1], np.int32)
    options = {"mask": mask, "key_value_seq_lengths": lengths, "query_seq_lengths": ends}
    out = served(family, query, key, value, **options)
    if out is not None:
        assert (out[3, T - 1] == 0).all()
        assert out.tobytes() == (served(family, query, key, value, **options)).tobytes()  # pyright: ignore


@pytest.mark.parametrize("family", IMPLEMENTATIONS)
def test_ranges_that_are_empty_in_some_rows(family: str):
    T = ROWS.get(family, 40)
    arrays = qkv(B=4, T=T, S=70, N=4, K=2, dtype=np.float16)
    offset = np.array([-2, 31, 69 + 6, 100], np.int32)
    served(family, *arrays, is_causal=True, local_window_size=(5, 3), query_offset=offset)


@pytest.mark.parametrize("family", IMPLEMENTATIONS)
def test_bias_that_hides_and_bias_that_is_lowest(family: str):
    T = ROWS.get(family, 6)
    arrays = qkv(B=6, T=T, S=70, N=4, K=2)
    bias = normal(6, 1, T, 70, seed=8)
    bias[0, :, T - 1] = -np.inf
    bias[1, :, T - 1] = LOWEST
    bias[2, :, :, ::2], bias[3, :, :, 1::2] = -np.inf, LOWEST
    bias[4, :, :, :69], bias[4, :, :, 69] = -np.inf, LOWEST
    bias[5, :, 0, 7] = np.nan
    served(family, *arrays, bias=bias)


@pytest.mark.parametrize("family", IMPLEMENTATIONS)
def test_sinks_where_no_key_is_kept(family: str):
    T = ROWS.get(family, 6)
    arrays = qkv(B=2, T=T, S=20, N=4, K=2)
    sinks = np.array([0.5, -60.0, 60.0, -np.inf], np.float32)
    served(family, *arrays, sinks=sinks, key_value_seq_lengths=np.array([0, 20], np.int32))


@pytest.mark.parametrize("family", IMPLEMENTATIONS)
def test_more_than_4096_keys(family: str):
    served(family, *qkv(T=ROWS.get(family, 3), S=5001, N=2, K=1))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_dtypes_of_results(dtype: np.dtype):
    query, key, value = qkv(B=2, T=3, dtype=dtype)
    lengths = np.array([8, 0], np.int32)
    options = {"key_value_seq_lengths": lengths, "return_residual": True}
    out, residual = nn.dot_product_attention(query, key, value, **options)
    assert out.dtype == residual.dtype == dtype
    with np.errstate(over="ignore"):  # float16 has no -0.7 · float32 max, so it is -inf
        assert (np.asarray(residual)[1] == np.float64(EMPTY_RESIDUAL).astype(dtype)).all()
    right = attention(query, key, value, key_value_seq_lengths=lengths).residual
    for wanted in DTYPES.values():
        _, residual = nn.dot_product_attention(query, key, value, **options, residual_dtype=wanted)
        assert residual.dtype == wanted
        check(np.asarray(residual)[0], right[0].astype(np.float32), magnitude=4.0)


@pytest.mark.parametrize("lead", [(0, 0, 0), (1, 0, 0), (0, 1, 1), (1, 1, 0)])
def test_each_argument_may_lack_its_batch_axis(lead: tuple[int, int, int]):
    arrays = [x if keep else x[0] for x, keep in zip(qkv(T=5, Hv=4), lead, strict=True)]
    out, residual = nn.dot_product_attention(*arrays, return_residual=True)
    assert out.shape == (*arrays[0].shape[:-1], 4)
    assert residual.shape == arrays[0].shape[:-1]
    check(np.asarray(out), attention(*arrays).out)


def test_float64_is_float32():
    arrays = [x.astype(np.float64) + 1e-12 for x in qkv()]
    out = nn.dot_product_attention(*arrays)
    assert out.dtype == np.float32
    check(np.asarray(out), attention(*(x.astype(np.float32) for x in arrays)).out)


@pytest.mark.parametrize("window", [np.int64(2), np.uint8(2), (np.int32(1), 3), [2, 0]])
def test_windows_of_any_integer_type(window: Any):
    measured(*qkv(T=9, S=9), local_window_size=window)


@pytest.mark.parametrize("shape", [(), (11,), (9, 11), (9, 1), (4, 1, 11), (1, 9, 1), (2, 1, 1, 1), (2, 4, 9, 11)])
def test_bias_and_mask_broadcast_from_any_rank(shape: tuple[int, ...]):
    arrays = qkv(B=2, T=9, S=11, N=4)
    bias, mask = normal(*shape, seed=4), np.random.default_rng(5).random(shape) < 0.7
    measured(*arrays, bias=np.asarray(bias))
    measured(*arrays, mask=np.asarray(mask))
    spread = wgattn.broadcast_to(wgattn.asarray(bias), (2, 4, 9, 11))
    out = np.asarray(nn.dot_product_attention(*arrays, bias=spread))
    check(out, attention(*arrays, bias=np.asarray(bias)).out)


def test_run_time_values_compile_nothing(monkeypatch: pytest.MonkeyPatch):
    query, key, value = qkv(B=2, T=20, S=50, N=4)

    def attend(n: int) -> None:
        lengths = np.array([n, 2 * n], np.int32)
        options = {
            "query_seq_lengths": lengths,
            "key_value_seq_lengths": lengths,
            "scale": np.array(n / 10, np.float32),
        }
        options |= {"query_offset": np.array(n, np.int32), "is_causal": True, "sinks": normal(4, seed=n)}
        measured(query, key, value, **options)

    attend(3)
    programs, shaders = len(_run._compiled), []
    monkeypatch.setattr(pipelines.Pipelines, "_make", lambda self, shader: shaders.append(shader))
    attend(4)
    attend(19)
    assert len(_run._compiled) == programs
    for T, S in ((21, 50), (20, 51), (19, 77)):  # sizes are parameters of the shaders
        measured(*qkv(B=2, T=T, S=S, N=4), query_seq_lengths=np.array([1, 2], np.int32), **SAME)
    assert not shaders


SAME: dict[str, Any] = {
    "key_value_seq_lengths": np.array([9, 40], np.int32),
    "scale": np.array(0.2, np.float32),
    "query_offset": np.array(1, np.int32),
    "is_causal": True,
    "sinks": np.zeros(4, np.float32),
}


def test_lengths_may_be_computed_on_the_device():
    query, key, value = qkv(B=2)
    lengths = wgattn.asarray(np.array([2, 3], np.int32)) + wgattn.asarray(np.array([1, 5], np.int32))
    out = nn.dot_product_attention(query, key, value, key_value_seq_lengths=lengths)
    check(np.asarray(out), attention(query, key, value, key_value_seq_lengths=np.array([3, 8])).out)
