"""Attention and rotary embeddings, with the meaning of `jax.nn`. A call binds its arguments once and records one node.

Letters: B batch, T queries, S keys, N query heads, K key/value heads, G = N / K, H query and key head dim, Hv value
head dim. BTNH is the shape (B, T, N, H).
"""

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from . import _run, masks
from ._array import Array, apply, asarray, bounded, broadcast, of
from ._dtypes import FLOATS, bool_, canonical, float32, int32, is_float
from ._graph.graph import Aval
from ._graph.operations import Attention, Rotate
from ._kernels.attention.choose import IMPLEMENTATIONS
from ._kernels.attention.problem import ROW_OPERANDS, Call
from ._kernels.rotation import Rope as Rope
from ._record import leaf, record
from .masks import Mask

ArrayLike = Any  # what asarray takes: NumPy, JAX, DLPack, numbers
Lengths = Int[Array, " B"] | ArrayLike


def dot_product_attention(
    query: Float[Array, "*B T N H"] | ArrayLike,
    key: Float[Array, "*B S K H"] | ArrayLike,
    value: Float[Array, "*B S K Hv"] | ArrayLike,
    bias: Float[Array, "..."] | ArrayLike | None = None,
    mask: Bool[Array, "..."] | ArrayLike | Mask | None = None,
    *,
    scale: float | Float[Array, ""] | ArrayLike | None = None,
    is_causal: bool = False,
    query_seq_lengths: Lengths | None = None,
    key_value_seq_lengths: Lengths | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
    softcap: float | None = None,
    sinks: Float[Array, " N"] | ArrayLike | None = None,
    query_offset: int | Int[Array, "..."] | ArrayLike | None = None,
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
    call = _bind(query, key, value)
    if return_residual is False and residual_dtype is not None:
        raise ValueError("residual_dtype is given without return_residual=True: there would be no residual to cast")
    if implementation is not None:
        _check_implementation(implementation)
    operands = {"query": call.query, "key": call.key, "value": call.value}
    if bias is not None:
        operands["bias"] = _scores(bias, "bias", call)
    ranges = mask if isinstance(mask, Mask) else masks.full()
    if mask is not None and not isinstance(mask, Mask):
        operands["mask"] = _scores(mask, "mask", call)
    if is_causal:
        ranges = ranges & masks.causal()
    if local_window_size is not None:
        ranges = ranges & masks.local(*_window(local_window_size))
    clauses, sources, segments = masks.bind(ranges)
    for name, given in (("query", query_seq_lengths), ("key_value", key_value_seq_lengths)):
        if given is not None:
            operands[f"{name}_lengths"] = _per_entry(given, f"{name}_seq_lengths", call.B, scalar=False)
    if query_offset is not None:
        operands["query_offset"] = _per_entry(query_offset, "query_offset", call.B)
    if sinks is not None:
        operands["sinks"] = _sinks(sinks, call.N)
    static_scale, run_time_scale = _scale(scale)
    if run_time_scale is not None:
        operands["scale"] = run_time_scale
    if segments is not None:
        operands["query_segments"] = _segments(segments[0], "q_ids", call.B, "T", call.T)
        operands["key_segments"] = _segments(segments[1], "kv_ids", call.B, "S", call.S)
    for n, source in enumerate(sources):
        operands[f"bound{n}"] = _per_entry(source, "a mask's offset or n", call.B)
    if rope is not None:
        if not isinstance(rope, Rope):
            raise TypeError(f"rope takes a wgattn.nn.Rope; got {type(rope).__name__}")
        rope.rotated(call.H)
    options = Call(clauses, static_scale, _softcap(softcap), None, float32 if return_residual else None)
    residual = _residual_dtype(residual_dtype, call.key.dtype)
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


@dataclass(frozen=True, slots=True)
class _Bound:
    """query, key and value with a batch axis each, and their sizes. `lead`: query's own batch axis, or none."""

    query: Array
    key: Array
    value: Array
    lead: tuple[int, ...]

    @property
    def B(self) -> int:
        return self.query.shape[0]

    @property
    def T(self) -> int:
        return self.query.shape[1]

    @property
    def N(self) -> int:
        return self.query.shape[2]

    @property
    def H(self) -> int:
        return self.query.shape[3]

    @property
    def S(self) -> int:
        return self.key.shape[1]

    @property
    def Hv(self) -> int:
        return self.value.shape[3]


def _bind(query: Any, key: Any, value: Any) -> _Bound:
    given = {name: asarray(x) for name, x in (("query", query), ("key", key), ("value", value))}
    for name, x in given.items():
        letters = "BTNH or TNH" if name == "query" else "BSKH or SKH"
        if x.ndim not in (3, 4):
            raise ValueError(f"{name} must have 3 or 4 axes, {letters}; got shape {x.shape}")
    dtype = given["query"].dtype
    for name, x in given.items():
        if x.dtype not in FLOATS:
            raise TypeError(
                f"{name} is {x.dtype.name}; attention takes float32, float16 or bfloat16: "
                f"cast with {name}.astype(np.{'float32' if dtype not in FLOATS else dtype.name})"
            )
    for name, x in given.items():
        if x.dtype != dtype:
            raise TypeError(
                f"{name} is {x.dtype.name} and query is {dtype.name}; attention takes one dtype for query, key and "
                f"value: cast with {name}.astype(query.dtype)"
            )
    q, k, v = (x if x.ndim == 4 else x[None] for x in given.values())
    if problem := _misfit(q.shape, k.shape, v.shape):
        raise ValueError(_legend(given, problem))
    return _Bound(q, k, v, given["query"].shape[:-3])


def _misfit(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> str | None:
    """What is wrong with shapes BTNH, BSKH and BSKHv, if anything."""
    if not q[0] == k[0] == v[0]:
        return "query, key and value must have one B"
    if q[3] != k[3]:
        return f"query and key must have one H; got {q[3]} and {k[3]}"
    if k[1:3] != v[1:3]:
        return "key and value must have one S and one K"
    if not q[3] or not v[3]:
        return f"H and Hv must be at least 1; got {q[3]} and {v[3]}"
    if q[2] and (not k[2] or q[2] % k[2]):
        return f"N={q[2]} must be a multiple of K={k[2]}"
    return None


def _legend(given: dict[str, Array], problem: str) -> str:
    """`query (2, 8, 128, 64) is read as B=2 T=8 N=128 H=64; …`, what is wrong, and the likely remedy."""
    letters = {"query": "BTNH", "key": "BSKH", "value": ("B", "S", "K", "Hv")}
    read = []
    for name, x in given.items():
        axes = letters[name][4 - x.ndim :]
        read.append(f"{name} {x.shape} is read as {' '.join(f'{a}={n}' for a, n in zip(axes, x.shape, strict=True))}")
    text = "; ".join(read) + f": {problem}."
    shapes = [x.shape if x.ndim == 4 else (1, *x.shape) for x in given.values()]
    swapped = [(s[0], s[2], s[1], s[3]) for s in shapes]
    for flips in ((1, 1, 1), (1, 0, 0), (0, 1, 1), (0, 0, 1), (0, 1, 0)):
        tried = [b if flip else a for a, b, flip in zip(shapes, swapped, flips, strict=True)]
        if _misfit(*tried) is None:
            names = [name for name, flip in zip(given, flips, strict=True) if flip]
            axes = {name: (1, 2) if given[name].ndim == 4 else (0, 1) for name in names}
            calls = " and ".join(f"{name}.swapaxes{axes[name]}" for name in names)
            return f"{text} {'These look' if len(names) > 1 else 'It looks'} like BNTH: use {calls}"
    return text


def _check_implementation(name: str) -> None:
    if name in IMPLEMENTATIONS:
        return
    hint = "; leave it out, wgattn has kernels of its own (wgattn.jax takes it and chooses)"
    raise ValueError(
        f"implementation is None or one of {', '.join(IMPLEMENTATIONS)}; got {name!r}"
        + (hint if name in ("xla", "cudnn") else "")
    )


def _scores(given: Any, name: str, call: _Bound) -> Array:
    """A bias or mask as (B or 1, N or 1, T or 1, S or 1)."""
    x = asarray(given)
    if name == "mask" and x.dtype != bool_:
        raise TypeError(
            f"mask must be bool, True where a key takes part; got {x.dtype.name}: pass an additive mask as bias, "
            "or compare it, as in mask != 0"
        )
    if name == "bias" and not is_float(x.dtype):
        raise TypeError(f"bias must be float; got {x.dtype.name}: cast with bias.astype(np.float32)")
    whole = (call.B, call.N, call.T, call.S)
    shape = (1,) * (4 - x.ndim) + x.shape
    if len(shape) != 4 or any(n not in (1, m) for n, m in zip(shape, whole, strict=True)):
        K = call.key.shape[2]
        heads = f"; its head axis is 1 or N={call.N}, not K={K}" if len(shape) == 4 and shape[1] == K != call.N else ""
        raise ValueError(f"{name} {x.shape} must broadcast to (B, N, T, S) = {whole}{heads}")
    return x.reshape(shape)


def _window(given: Any) -> tuple[int, int]:
    try:
        if isinstance(given, tuple | list):
            left, right = (operator.index(n) for n in given)
            return left, right
        return operator.index(given), operator.index(given)
    except (TypeError, ValueError):
        raise TypeError(f"local_window_size is an integer or (left, right), both integers; got {given!r}") from None


def _per_entry(given: Any, name: str, B: int, scalar: bool = True) -> Array:
    """A run-time int32 array (B,), or () where `scalar` allows it."""
    x = asarray(given)
    if x.dtype != int32:
        raise TypeError(f"{name} must be int32; got {x.dtype.name}: cast with .astype(np.int32)")
    if x.shape != (B,) and not (scalar and x.shape == ()):
        raise ValueError(f"{name} must have shape {'() or ' if scalar else ''}(B,) = ({B},); got {x.shape}")
    return x


def _segments(given: Any, name: str, B: int, letter: str, count: int) -> Array:
    x = asarray(given)
    if x.dtype != int32:
        raise TypeError(f"segments: {name} must be int32; got {x.dtype.name}: cast with .astype(np.int32)")
    if x.shape not in ((count,), (1, count), (B, count)):
        raise ValueError(f"segments: {name} must have shape ({letter},) = ({count},) or (B, {letter}); got {x.shape}")
    return x


def _sinks(given: Any, N: int) -> Array:
    x = asarray(given)
    if not is_float(x.dtype):
        raise TypeError(f"sinks must be float; got {x.dtype.name}: cast with sinks.astype(np.float32)")
    if x.shape != (N,):
        raise ValueError(f"sinks hold one logit a query head: shape (N,) = ({N},); got {x.shape}")
    return x.astype(float32)


def _scale(given: Any) -> tuple[float | None, Array | None]:
    """The scale as a static number, and the run-time array () that it is multiplied with, if there is one."""
    if given is None:
        return None, None
    if isinstance(given, int | float | np.generic):
        number = float(given)
        if not math.isfinite(number):
            raise ValueError(f"scale must be finite; got {given}")
        return number, None
    x = asarray(given)
    if x.shape != () or x.dtype == bool_:
        raise ValueError(f"scale is a number or an array (); got {x.dtype.name} {x.shape}")
    return 1.0, x.astype(float32)


def _softcap(given: Any) -> float | None:
    if given is None:
        return None
    if not isinstance(given, int | float | np.generic):
        raise TypeError(f"softcap is a number, compiled in; got {type(given).__name__}")
    cap = float(given)
    if not (math.isfinite(cap) and cap > 0):
        raise ValueError(f"softcap must be finite and above 0; got {given}: leave it out for no cap")
    return cap


def _residual_dtype(given: Any, key_dtype: np.dtype) -> np.dtype:
    dtype = key_dtype if given is None else canonical(given)
    if dtype not in FLOATS:
        raise TypeError(f"residual_dtype must be float32, float16 or bfloat16; got {dtype.name}")
    return dtype


def _rotated(rule: Rope, call: _Bound, offset: Array | None) -> tuple[Array, Array]:
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


def _without_keys(call: _Bound, sinks: Array | None, residual: bool) -> tuple[Array, Array | None]:
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
