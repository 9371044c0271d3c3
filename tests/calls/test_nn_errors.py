"""What a call refuses, it refuses at once, without a device, and says what was given, what is taken and what to do."""

from typing import Any

import numpy as np
import pytest

import wgattn as wa
from wgattn import nn
from wgattn._record import build


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


Q, K, V = ones(2, 5, 8, 16), ones(2, 7, 2, 16), ones(2, 7, 2, 24)


@pytest.mark.parametrize(
    ("operands", "text"),
    [
        (
            (ones(2, 8, 128, 64), ones(2, 6, 100, 64), ones(2, 6, 100, 64)),
            "query (2, 8, 128, 64) is read as B=2 T=8 N=128 H=64; key (2, 6, 100, 64) is read as B=2 S=6 K=100 H=64; "
            "value (2, 6, 100, 64) is read as B=2 S=6 K=100 Hv=64: N=128 must be a multiple of K=100.",
        ),
        (
            (ones(2, 8, 128, 64), ones(2, 2, 100, 64), ones(2, 2, 100, 64)),
            "N=128 must be a multiple of K=100. These look like BNTH: "
            "use query.swapaxes(1, 2) and key.swapaxes(1, 2) and value.swapaxes(1, 2)",
        ),
        (
            (ones(2, 16, 8, 32), ones(2, 16, 3, 32), ones(2, 16, 3, 32)),
            "N=8 must be a multiple of K=3. If these are BNTH, use query.swapaxes(1, 2) and",
        ),
        (
            (ones(2, 8, 100, 64), ones(2, 100, 3, 64), ones(2, 100, 3, 64)),
            "N=100 must be a multiple of K=3.",
        ),
        (
            (ones(2, 9, 100, 64), ones(2, 100, 3, 64), ones(2, 100, 3, 64)),
            "It looks like BNTH: use query.swapaxes(1, 2)",
        ),
        (
            (ones(9, 100, 64), ones(100, 3, 64), ones(100, 3, 64)),
            "query (9, 100, 64) is read as T=9 N=100 H=64; key (100, 3, 64) is read as S=100 K=3 H=64; "
            "value (100, 3, 64) is read as S=100 K=3 Hv=64: N=100 must be a multiple of K=3. "
            "It looks like BNTH: use query.swapaxes(0, 1)",
        ),
        ((ones(3, 5, 8, 16), K, V), "query, key and value must have the same B."),
        ((Q, K[:1], V[:1]), "must have the same B: wgattn.broadcast_to repeats a batch of one without a copy."),
        ((ones(2, 5, 8, 15), K, V), "query and key must have the same H; got 15 and 16."),
        ((Q, K, ones(2, 6, 2, 16)), "key and value must have the same S and the same K."),
        ((Q, K, ones(2, 2, 7, 16)), "It looks like BNTH: use value.swapaxes(1, 2)"),
        ((Q, K, ones(2, 7, 2, 0)), "H and Hv must be at least 1; got 16 and 0."),
        ((ones(5, 16), K, V), "query must have 3 or 4 axes, BTNH or TNH; got shape (5, 16): query[:, None]"),
        (
            (Q, ones(1, 2, 7, 2, 16), V),
            "key must have 3 or 4 axes, BSKH or SKH; got shape (1, 2, 7, 2, 16): key.reshape(-1, *key.shape[-3:])",
        ),
    ],
)
def test_shapes(operands: tuple[Any, Any, Any], text: str):
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        nn.dot_product_attention(*operands)
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("operands", "text"),
    [
        ((Q, K.astype(np.float16), V), "key is float16 and query is float32; .*cast with key.astype\\(query.dtype\\)"),
        ((Q, K, V.astype(np.int32)), "value is int32; .*cast with value.astype\\(np.float32\\)"),
        ((Q.astype(np.int8), K, V), "query is int8; .*cast with query.astype\\(np.float32\\)"),
        ((Q.astype(np.float16), K.astype(bool), V), "key is bool; .*cast with key.astype\\(np.float16\\)"),
    ],
)
def test_dtypes_of_query_key_and_value(operands: tuple[Any, Any, Any], text: str):
    with pytest.raises(TypeError, match=text):
        nn.dot_product_attention(*operands)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"bias": ones(5, 6)}, ValueError, r"bias \(5, 6\) must broadcast to \(B, N, T, S\) = \(2, 8, 5, 7\)"),
        ({"bias": ones(2, 2, 5, 7)}, ValueError, "its head axis is 1 or N=8, not K=2"),
        ({"bias": ones(1, 2, 8, 5, 7)}, ValueError, "must broadcast"),
        ({"bias": ones(5, 7, dtype=np.int32)}, TypeError, "bias must be float; got int32"),
        ({"mask": ones(5, 7)}, TypeError, "pass an additive mask as bias"),
        ({"mask": ones(3, 1, 5, 7, dtype=bool)}, ValueError, "mask .* must broadcast"),
        (
            {"query_seq_lengths": ones(3, dtype=np.int32)},
            ValueError,
            r"query_seq_lengths must have shape \(B,\) = \(2,\)",
        ),
        ({"key_value_seq_lengths": np.int32(3)}, ValueError, r"key_value_seq_lengths must have shape \(B,\) = \(2,\)"),
        ({"key_value_seq_lengths": ones(2)}, TypeError, "key_value_seq_lengths must be int32; got float32"),
        ({"key_value_seq_lengths": ones(2, dtype=np.uint32)}, TypeError, "must be int32; got uint32"),
        ({"query_offset": 1.5}, TypeError, "query_offset must be int32; got float32"),
        ({"query_offset": ones(3, dtype=np.int32)}, ValueError, r"query_offset must have shape \(\) or \(B,\)"),
        ({"local_window_size": (1, 2, 3)}, TypeError, r"an integer, or a pair \(left, right\) of integers"),
        ({"local_window_size": 2.0}, TypeError, r"an integer, or a pair \(left, right\) of integers"),
        ({"local_window_size": wa.asarray(np.ones(2, np.int32))}, TypeError, "name it in static_argnums, or give"),
        ({"scale": float("inf")}, ValueError, "scale must be finite; got inf"),
        ({"scale": ones(2)}, ValueError, r"scale is a number or an array \(\); got float32 \(2,\)"),
        ({"softcap": 0.0}, ValueError, "softcap must be finite and above 0; got 0.0"),
        ({"softcap": float("nan")}, ValueError, "softcap must be finite and above 0; got nan"),
        ({"softcap": ones()}, TypeError, "softcap is a static number"),
        ({"sinks": ones(2)}, ValueError, r"shape \(N,\) = \(8,\); got \(2,\)"),
        ({"sinks": ones(8, dtype=np.int32)}, TypeError, "sinks must be float; got int32"),
        ({"implementation": "xla"}, ValueError, "leave it out, wgattn has kernels of its own"),
        (
            {"implementation": "flash"},
            ValueError,
            "decode_matrix, decode_subgroups, decode, decode_lanes, flash_rows, flash_matrix, flash_tiled, plain; got",
        ),
        ({"residual_dtype": np.int32, "return_residual": True}, TypeError, "residual_dtype must be float32"),
        ({"residual_dtype": np.float32}, ValueError, "without return_residual=True"),
        ({"rope": "half"}, TypeError, "rope takes a wgattn.nn.Rope; got str"),
        ({"rope": nn.Rope(rotary_dim=32)}, ValueError, "rope rotates 32 of head_dim 16"),
        ({"mask": wa.masks.causal(ones(3, dtype=np.int32))}, ValueError, r"a mask's offset or n must have shape"),
        ({"mask": wa.masks.segments(*2 * (np.arange(5),))}, ValueError, r"kv_ids must have shape \(S,\) = \(7,\)"),
        ({"dropout_rate": 0.1}, TypeError, "dropout_rate"),
    ],
)
def test_options(options: dict[str, Any], error: type[Exception], text: str):
    with pytest.raises(error, match=text):
        nn.dot_product_attention(Q, K, V, **options)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: nn.rope(ones(2, 16)), ValueError, "rope takes x as BTNH or TNH"),
        (lambda: nn.rope(Q, rotary_dim=18), ValueError, "rope rotates 18 of head_dim 16"),
        (lambda: nn.rope(Q, rotary_dim=3), ValueError, "rotary_dim must be even"),
        (lambda: nn.rope(Q, style="neox"), ValueError, 'rope style is "half" or "interleaved"'),
        (lambda: nn.rope(Q, base=0.0), ValueError, "rope base must be finite and above 0"),
        (lambda: nn.rope(Q, scaling={"rule": "ntk"}), ValueError, '"linear", "llama3" or "yarn"'),
        (lambda: nn.rope(Q, ones(5)), TypeError, "positions must be int32; got float32"),
        (lambda: nn.rope(Q, ones(4, dtype=np.int32)), ValueError, r"must have shape \(5,\)"),
        (lambda: nn.rope(Q.astype(np.int32)), TypeError, "x is int32: cast with x.astype"),
    ],
)
def test_rope(call: Any, error: type[Exception], text: str):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"value": None}, TypeError, "value: asarray takes .*; got NoneType"),
        ({"query": "q"}, TypeError, "query: asarray takes .*; got str"),
        ({"key": [[1.0], [1.0, 2.0]]}, ValueError, "key: "),
        ({"scale": "x"}, TypeError, "scale: asarray takes .*; got str"),
        ({"sinks": object()}, TypeError, "sinks: asarray takes .*; got object"),
        ({"query_offset": 2**40}, OverflowError, "query_offset: the Python integer"),
        ({"key_value_seq_lengths": "all"}, TypeError, "key_value_seq_lengths: asarray takes .*; got str"),
        ({"bias": "alibi"}, TypeError, "bias: asarray takes .*; got str"),
        ({"mask": "causal"}, TypeError, "mask is a bool array or .*; got 'causal': is_causal=True is the causal one"),
        ({"mask": "full"}, TypeError, "mask is a bool array or a value of wgattn.masks; got 'full'$"),
        ({"mask": wa.masks.causal}, TypeError, r"mask is the function causal; call it: wgattn.masks.causal\(\)"),
        ({"mask": lambda i, j: i >= j}, TypeError, "mask is a bool array or a value of wgattn.masks; got <function"),
    ],
)
def test_arguments_are_named(arguments: dict[str, Any], error: type[Exception], text: str):
    for called in (nn.dot_product_attention, wa.validate):
        with pytest.raises(error, match=text):
            called(**{"query": Q, "key": K, "value": V, **arguments})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"mask": ones(2, 7, dtype=bool)},
            r"a padding mask \(B, S\) is mask\[:, None, None, :\], or give key_value_seq_lengths",
        ),
        ({"bias": ones(2, 7)}, r"a padding bias \(B, S\) is bias\[:, None, None, :\]$"),
        ({"mask": ones(2, 5, 7, dtype=bool)}, r"; \(B, T, S\) is mask\[:, None\]$"),
        ({"mask": ones(4, 7, dtype=bool)}, r"\(2, 8, 5, 7\)$"),
    ],
)
def test_masks_that_lack_axes(options: dict[str, Any], text: str):
    with pytest.raises(ValueError, match=text):
        nn.dot_product_attention(Q, K, V, **options)


def test_result_shapes():
    for lead in ((), (2,)):
        q, k, v = (x if lead else x[0] for x in (Q, K, V))
        assert nn.dot_product_attention(q, k, v).shape == (*lead, 5, 8, 24)
        out, residual = nn.dot_product_attention(q, k, v, return_residual=True)
        assert (out.shape, residual.shape) == ((*lead, 5, 8, 24), (*lead, 5, 8))
        assert nn.rope(q).shape == q.shape
    assert nn.dot_product_attention(Q[0], K[:1], V[0]).shape == (5, 8, 24), "each argument's batch axis is its own"
    assert nn.dot_product_attention(Q[:1], K[0], V[0]).shape == (1, 5, 8, 24)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_result_dtypes(dtype: Any):
    operands = (x.astype(dtype) for x in (Q, K, V))
    out, residual = nn.dot_product_attention(*operands, return_residual=True)
    assert out.dtype == residual.dtype == dtype
    operands = (x.astype(dtype) for x in (Q, K, V))
    assert nn.dot_product_attention(*operands, return_residual=True, residual_dtype=np.float32)[1].dtype == np.float32


def test_float64_input_is_float32():
    assert nn.dot_product_attention(Q.astype(np.float64), K, V).dtype == np.float32


@pytest.mark.parametrize("axis", ["B", "T", "S", "N"])
@pytest.mark.parametrize("sinks", [False, True])
def test_empty_axes_need_no_device(axis: str, sinks: bool):
    size = {"B": 2, "T": 5, "S": 7, "N": 8, axis: 0}
    q, kv = ones(size["B"], size["T"], size["N"], 16), ones(size["B"], size["S"], 2, 16)
    logits = np.arange(size["N"], dtype=np.float32)
    out, residual = nn.dot_product_attention(
        q, kv, kv, sinks=logits if sinks else None, return_residual=True, is_causal=True, rope=nn.Rope()
    )
    assert out.shape == q.shape
    assert residual.shape == q.shape[:-1]
    assert np.asarray(out).sum() == 0
    if not sinks:
        assert np.all(np.asarray(residual) == -np.inf)


def recorded(*operands: Any, **options: Any) -> str:
    names = list(options)
    fn = wa.make_graph(lambda q, k, v, *more: nn.dot_product_attention(q, k, v, **dict(zip(names, more, strict=True))))
    return repr(fn(*operands, *options.values()))


def test_run_time_values_make_no_new_graph():
    def graph(**options: Any) -> Any:
        x = nn.dot_product_attention(Q, K, V, **options)
        return build([(x._step, x._result)]).graph

    assert graph(query_offset=3) == graph(query_offset=1000)
    assert graph(key_value_seq_lengths=[1, 2]) == graph(key_value_seq_lengths=np.array([5, 6]))
    assert graph(scale=np.array(0.5, np.float32)) != graph(scale=0.5)
    n = [wa.asarray(np.int32(i)) for i in (3, 4)]
    assert graph(mask=wa.masks.prefix(n[0])) == graph(mask=wa.masks.prefix(n[1]))
    assert graph(mask=wa.masks.prefix(3)) != graph(mask=wa.masks.prefix(4))


def test_masks_of_every_kind_become_one_set_of_ranges():
    def graph(**options: Any) -> Any:
        x = nn.dot_product_attention(Q, K, V, **options)
        return build([(x._step, x._result)]).graph

    assert graph(is_causal=True) == graph(mask=wa.masks.causal())
    assert graph(is_causal=True, local_window_size=(2, 9)) == graph(mask=wa.masks.local(2, 0))
    assert graph(local_window_size=np.int8(2)) == graph(local_window_size=(2, 2)) == graph(mask=wa.masks.local(2, 2))
    assert graph(mask=wa.masks.full()) == graph()


def test_masks_with_traced_values():
    text = recorded(Q, K, V, query_offset=3, key_value_seq_lengths=np.array([1, 2], np.int32))
    assert "key_value_lengths=e" in text
    fn = wa.make_graph(
        lambda q, k, v, n: nn.dot_product_attention(q, k, v, mask=wa.masks.prefix(n) | wa.masks.causal())
    )
    assert "keys j ≤ d-1 or j ≤ i" in repr(fn(Q, K, V, np.int32(3)))
