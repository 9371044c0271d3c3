"""Attention and rotary embeddings, with the meaning of `jax.nn`. A call binds its arguments once and records one node.

Letters: B batch, T queries, S keys, N query heads, K key/value heads, G = N / K, H query and key head dim, Hv value
head dim. BTNH is the shape (B, T, N, H).
"""

from __future__ import annotations  # jaxtyping is for readers and type checkers: it loads too much for an import

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from . import _run, masks
from ._array import Array, apply, asarray, bounded, broadcast, of
from ._bind import (
    BoundCall,
    bind,
    check_implementation,
    per_entry,
    residual_dtype_of,
    scale_of,
    scores,
    segment_ids,
    sink_logits,
    softcap_of,
    window,
)
from ._dtypes import float32, int32
from ._graph.graph import Aval
from ._graph.operations import Attention, Rotate
from ._kernels.attention.problem import ROW_OPERANDS, Call
from ._kernels.rotation import Rope as Rope
from ._merge import merge_attention as merge_attention
from ._record import leaf, record
from .masks import Mask

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

ArrayLike = Any  # what asarray takes: NumPy, JAX, DLPack, numbers


def dot_product_attention(
    query: Float[Array, "*B T N H"] | ArrayLike,
    key: Float[Array, "*B S K H"] | ArrayLike,
    value: Float[Array, "*B S K Hv"] | ArrayLike,
    bias: Float[Array, ...] | ArrayLike | None = None,
    mask: Bool[Array, ...] | ArrayLike | Mask | None = None,
    *,
    scale: float | Float[Array, ""] | ArrayLike | None = None,
    is_causal: bool = False,
    query_seq_lengths: Int[Array, " B"] | ArrayLike | None = None,
    key_value_seq_lengths: Int[Array, " B"] | ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
    softcap: float | None = None,
    sinks: Float[Array, " N"] | ArrayLike | None = None,
    query_offset: int | Int[Array, ...] | ArrayLike | None = None,
    residual_dtype: Any = None,
    rope: Rope | None = None,
) -> Any:
    """softmax(scale · q·k + bias, over the keys a row keeps) · V, for each head: query's shape with Hv for H.

    Query head n reads key/value head n // G. float32, float16 or bfloat16, one dtype for query, key and value, which
    the result has; logits and softmax are float32. Order: scale (1/√H unless given), `softcap` (c · tanh(s / c)), bias,
    masks, softmax. A row that keeps no key is the mean of V over all S, as in jax, or 0 with `sinks`.

    Args:
        query, key, value: arrays, or anything `asarray` takes; without B each is one batch entry.
        bias: added to the logits; broadcastable to (B, N, T, S), the head axis 1 or N. -inf masks a key.
        mask: bool, of shapes as bias, True where a key takes part; or a value of `wgattn.masks`.
        scale: a finite number, or a run-time array ().
        is_causal: key j is kept by query i where j ≤ i + query_offset.
        query_seq_lengths, key_value_seq_lengths: int32 (B,), run-time. Rows past the first are 0, keys past the second
            reach no row that keeps a key.
        local_window_size: w or (left, right): i + query_offset - left ≤ j ≤ i + query_offset + right.
        implementation: None, or the family of kernels that must serve: plain, flash_tiled, flash_rows, decode or
            decode_lanes. One that cannot raises UnsupportedError when the call is compiled.
        return_residual: also give the natural logsumexp of the kept logits and the sink, (B)TN, in `residual_dtype`
            (key's dtype unless given).
        sinks: (N,), a logit a head that joins the softmax and adds no value.
        query_offset: the position of query 0 among the keys: an int, or run-time int32 () or (B,).
        rope: rotates query at i + query_offset and key at j, as `wgattn.nn.rope`, while they are read.

    Raises ValueError for shapes and options that do not fit, TypeError for dtypes; both when called, without a device.

    Example:
        >>> q = np.ones((2, 5, 8, 64), np.float16); kv = np.ones((2, 7, 2, 64), np.float16)
        >>> wgattn.nn.dot_product_attention(q, kv, kv, is_causal=True).shape
        (2, 5, 8, 64)
    """
    call = bind(query, key, value)
    if return_residual is False and residual_dtype is not None:
        raise ValueError("residual_dtype is given without return_residual=True: there would be no residual to cast")
    if implementation is not None:
        check_implementation(implementation)
    operands = {"query": call.query, "key": call.key, "value": call.value}
    if bias is not None:
        operands["bias"] = scores(bias, "bias", call)
    ranges = mask if isinstance(mask, Mask) else masks.full()
    if mask is not None and not isinstance(mask, Mask):
        operands["mask"] = scores(mask, "mask", call)
    if is_causal:
        ranges = ranges & masks.causal()
    if local_window_size is not None:
        ranges = ranges & masks.local(*window(local_window_size))
    clauses, sources, segments = masks.bind(ranges)
    for name, given in (("query", query_seq_lengths), ("key_value", key_value_seq_lengths)):
        if given is not None:
            operands[f"{name}_lengths"] = per_entry(given, f"{name}_seq_lengths", call.B, scalar=False)
    if query_offset is not None:
        operands["query_offset"] = per_entry(query_offset, "query_offset", call.B)
    if sinks is not None:
        operands["sinks"] = sink_logits(sinks, call.N)
    static_scale, run_time_scale = scale_of(scale)
    if run_time_scale is not None:
        operands["scale"] = run_time_scale
    if segments is not None:
        operands["query_segments"] = segment_ids(segments[0], "q_ids", call.B, "T", call.T)
        operands["key_segments"] = segment_ids(segments[1], "kv_ids", call.B, "S", call.S)
    for n, source in enumerate(sources):
        operands[f"bound{n}"] = per_entry(source, "a mask's offset or n", call.B)
    if rope is not None:
        if not isinstance(rope, Rope):
            raise TypeError(f"rope takes a wgattn.nn.Rope; got {type(rope).__name__}")
        rope.rotated(call.H)
    options = Call(clauses, static_scale, softcap_of(softcap), None, float32 if return_residual else None)
    residual = residual_dtype_of(residual_dtype, call.key.dtype)
    if 0 in (call.B, call.T, call.N, call.S):
        out, kept = _without_keys(call, operands.get("sinks"), return_residual)
    else:
        if rope is not None:
            operands["query"], operands["key"] = _rotated(rope, call, operands.get("query_offset"))
        out, kept = _record(operands, options, call.query.dtype, implementation)
    out = out.reshape((*call.lead, call.T, call.N, call.Hv))
    if not return_residual:
        return out
    assert kept is not None
    return out, kept.astype(residual).reshape((*call.lead, call.T, call.N))


def rope(
    x: Float[Array, "*B T N H"] | ArrayLike,
    positions: Int[Array, "*B T"] | ArrayLike | None = None,
    *,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    style: Literal["half", "interleaved"] = "half",
    scaling: float | Mapping[str, float | str] | None = None,
) -> Float[Array, "*B T N H"]:
    """Rotary position embedding: each pair of features turned by position · frequency, in float32; x's shape and dtype.

    Args:
        x: (B)TNH, float32, float16 or bfloat16.
        positions: int32 (T,) or (B, T), run-time; 0 … T-1 unless given.
        base: frequencies are base^(-2i / rotary_dim).
        rotary_dim: how many features are turned, from the first; all H unless given.
        style: "half" pairs feature i with i + rotary_dim / 2 (NeoX; Llama as Hugging Face has it), "interleaved" pairs
            2i with 2i + 1.
        scaling: a factor that positions are divided by, or a mapping with `rule` "linear", "llama3" or "yarn" and its
            parameters under the names of published configurations.

    A `rope` whose result goes into `dot_product_attention` is done there, while query and key are read.

    Example:
        >>> wgattn.nn.rope(np.ones((2, 5, 8, 64), np.float32)).shape
        (2, 5, 8, 64)
    """
    array = asarray(x)
    if array.ndim not in (3, 4):
        raise ValueError(f"rope takes x as BTNH or TNH; got shape {array.shape}")
    rule = Rope(base, rotary_dim, style, dict(scaling) if isinstance(scaling, Mapping) else scaling)  # type: ignore[arg-type]
    whole = array if array.ndim == 4 else array[None]
    if positions is None:
        return apply(Rotate(rule), whole).reshape(array.shape)
    at = asarray(positions)
    if at.dtype != int32:
        raise TypeError(f"positions must be int32; got {at.dtype.name}: cast with positions.astype(np.int32)")
    return apply(Rotate(rule, "positions"), whole, at).reshape(array.shape)


def _rotated(rule: Rope, call: BoundCall, offset: Array | None) -> tuple[Array, Array]:
    """query at i + query_offset and key at j, as nodes that fold into the attention call."""
    if offset is None:
        return apply(Rotate(rule), call.query), apply(Rotate(rule), call.key)
    return apply(Rotate(rule, "offset"), call.query, offset), apply(Rotate(rule), call.key)


def _record(
    operands: dict[str, Array], options: Call, dtype: np.dtype, implementation: str | None
) -> tuple[Array, Array | None]:
    order = ("query", "key", "value", "bias", "mask", *ROW_OPERANDS, *options.sources)
    names = tuple(name for name in order if name in operands)
    arrays = [operands[name] for name in names]
    step = record(Attention(names, options, dtype, implementation), [(a._step, a._result) for a in arrays])
    out = of(step, 0)
    residual = None if options.residual is None else of(step, 1)
    return bounded(out), residual


def _without_keys(call: BoundCall, sinks: Array | None, residual: bool) -> tuple[Array, Array | None]:
    """The result where an axis is empty: zeros, the residual -inf or each head's sink. Nothing is dispatched."""
    shape = (call.B, call.T, call.N)
    out = np.zeros((*shape, call.Hv), call.query.dtype)
    kept: Array | None = None
    if residual:
        empty = np.full(shape, -np.inf, np.float32)
        kept = of(leaf(empty, Aval(shape, float32))) if sinks is None else broadcast(sinks, shape)
    return of(leaf(out, Aval(out.shape, out.dtype))), kept


@_run.on_attention
def _check_attention(
    attention: Attention, operands: dict[str, np.ndarray], results: dict[str, np.ndarray], variant: str
) -> None:
    from ._validate.launch import check_launch

    check_launch(attention.call, operands, results["out"], results.get("residual"), variant)
