"""An attention call as one node of the graph, once its query, key and value are bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from . import _run, masks
from ._array import Array, apply, bounded, broadcast, of
from ._bind import (
    BoundCall,
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
from ._dtypes import float32
from ._graph.graph import Aval
from ._graph.operations import Attention, Rotate
from ._kernels.attention.problem import ROW_OPERANDS, Call
from ._kernels.rotation import Rope
from ._record import leaf, record
from .masks import Mask


def ranges_of(mask: Any, is_causal: bool, local_window_size: int | tuple[int, int] | None) -> Mask:
    """The ranges of keys that a call keeps. A dense mask is not among them."""
    ranges = mask if isinstance(mask, Mask) else masks.full()
    if is_causal:
        ranges = ranges & masks.causal()
    return ranges if local_window_size is None else ranges & masks.local(*window(local_window_size))


def attend(
    call: BoundCall,
    ranges: Mask,
    options: Call,
    *,
    query_seq_lengths: Any,
    bias: Any,
    mask: Any,
    scale: Any,
    softcap: Any,
    sinks: Any,
    implementation: str | None,
    return_residual: bool,
    residual_dtype: Any,
    usual_dtype: np.dtype,
    **run_time: Array | None,
) -> Array | tuple[Array, Array]:
    """The result of a call whose query, key, value and `run_time` operands are bound. The other options are not yet."""
    if not return_residual and residual_dtype is not None:
        raise ValueError("residual_dtype is given without return_residual=True: there would be no residual to cast")
    if implementation is not None:
        check_implementation(implementation)
    operands = {"query": call.query, "key": call.key, "value": call.value}
    operands |= {name: array for name, array in run_time.items() if array is not None}
    for name, given in (("bias", bias), ("mask", mask)):
        if given is not None:
            operands[name] = scores(given, name, call)
    clauses, sources, segments = masks.bind(ranges)
    if query_seq_lengths is not None:
        operands["query_lengths"] = per_entry(query_seq_lengths, "query_seq_lengths", call.B, scalar=False)
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
    kept_dtype = float32 if return_residual else None
    options = replace(options, clauses=clauses, scale=static_scale, softcap=softcap_of(softcap), residual=kept_dtype)
    residual = residual_dtype_of(usual_dtype if residual_dtype is None else residual_dtype)
    if 0 in (call.B, call.T, call.N, call.S):
        out, kept = _without_keys(call, operands.get("sinks"), return_residual)
    else:
        out, kept = record_attention(operands, options, call.query.dtype, implementation)
    out = out.reshape((*call.lead, call.T, call.N, call.Hv))
    if not return_residual:
        return out
    assert kept is not None
    return out, kept.astype(residual).reshape((*call.lead, call.T, call.N))


def rotated(rule: Rope, call: BoundCall, offset: Array | None) -> tuple[Array, Array]:
    """query rotated at i + query_offset and key at j, as nodes that are fused into the attention call."""
    if offset is None:
        return apply(Rotate(rule), call.query), apply(Rotate(rule), call.key)
    return apply(Rotate(rule, "offset"), call.query, offset), apply(Rotate(rule), call.key)


def record_attention(
    operands: dict[str, Array], options: Call, dtype: np.dtype, implementation: str | None
) -> tuple[Array, Array | None]:
    """One Attention node: out, and the residual if `options` keep one."""
    order = ("query", "key", "value", "scales", "bias", "mask", *ROW_OPERANDS, *options.sources)
    names = tuple(name for name in order if name in operands)
    arrays = [operands[name] for name in names]
    step = record(Attention(names, options, dtype, implementation), [(a._step, a._result) for a in arrays])
    out = of(step, 0)
    residual = None if options.residual is None else of(step, 1)
    return bounded(out), residual


def _without_keys(call: BoundCall, sinks: Array | None, residual: bool) -> tuple[Array, Array | None]:
    """The result if an axis is empty: zeros, and a residual of -inf or each head's sink. Nothing is dispatched."""
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
