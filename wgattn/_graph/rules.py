"""Shape and dtype rules: what an operation gives, and how a result lies. Errors are raised while recording."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wgattn._dtypes import FLOATS, STORAGE, bool_, float32, int32, is_float
from wgattn._kernels.array.elementwise import ARITY, COMPARISONS, FLOATS_ONLY, LOGIC
from wgattn._kernels.attention.problem import ROW_OPERANDS
from wgattn._kernels.stored import row_elements

from .cache_rules import append_avals, move_avals, rows_avals
from .graph import Aval, Node, Use, View, describe
from .operations import (
    Attention,
    AttentionGradient,
    BroadcastTo,
    CacheAppend,
    CacheMove,
    CacheRows,
    Cast,
    Concatenate,
    Copy,
    Elementwise,
    Merge,
    Pad,
    Repeat,
    Reshape,
    Rotate,
    Slice,
    Sum,
    Transpose,
)  # fmt: skip
from .stored import check_pages, check_storage

GRADIENTS = ("query", "key", "value", "bias", "sinks", "scale")


def attention_layout(aval: Aval, store: tuple[int, ...] | None = None) -> View:
    """How attention's out lies: axes in the order of `store`, outermost first; 16-bit rows padded to whole words.

    Example: attention_layout(Aval((2, 3), float16)).strides is (4, 1): no two rows share a 4-byte word.
    """
    strides = [1] * aval.ndim
    step = 1
    for axis in reversed(range(aval.ndim) if store is None else store):
        strides[axis] = step
        step *= max(aval.shape[axis], 1)
        if axis == aval.ndim - 1 and aval.dtype.itemsize == 2:
            step += step % 2
    return View(aval.shape, tuple(strides), 0)


def node(operation: object, uses: tuple[Use, ...], operands: Sequence[Aval]) -> Node:
    """The Node of `operation` on uses whose avals are `operands`.

    All results lie row-major, attention's out and the gradients of its rows with 16-bit rows of whole words.
    """
    return written(operation, uses, infer(operation, operands))


def written(operation: object, uses: tuple[Use, ...], avals: tuple[Aval, ...]) -> Node:
    """The Node of `operation`, whose results' avals are known."""
    layouts = [View.natural(aval.shape) for aval in avals]
    if isinstance(operation, Attention):
        layouts[0] = attention_layout(avals[0], operation.store)
    if isinstance(operation, Merge):
        layouts[0] = attention_layout(avals[0])
    if isinstance(operation, AttentionGradient):
        rows = ("query", "key", "value")
        pairs = enumerate(zip(operation.wanted, avals, strict=True))
        layouts = [attention_layout(aval) if name in rows else layouts[at] for at, (name, aval) in pairs]
    return Node(operation, uses, avals, tuple(layouts))


def infer(operation: object, operands: Sequence[Aval]) -> tuple[Aval, ...]:
    """The avals of an operation's results. Raises ValueError for shapes and TypeError for dtypes that do not fit."""
    match operation:
        case Elementwise():
            return (_elementwise(operation, operands),)
        case Attention():
            return _attention(operation, operands)
        case AttentionGradient():
            return _attention_gradient(operation, operands)
        case CacheAppend():
            return append_avals(operation, operands)
        case CacheRows():
            return rows_avals(operation, operands)
        case CacheMove():
            return move_avals(operation, operands)
        case Concatenate():
            return (_concatenate(operation, operands),)
        case Rotate():
            return (_rotate(operation, operands),)
        case Merge():
            return _merge(operands)
    (x,) = operands
    match operation:
        case Reshape(shape) if math.prod(shape) == x.size:
            return (Aval(shape, x.dtype, x.weak),)
        case Reshape(shape):
            raise ValueError(f"an array of shape {x.shape} and {x.size} elements cannot be reshaped to {shape}")
        case Transpose(axes) if sorted(axes) == list(range(x.ndim)):
            return (Aval(tuple(x.shape[a] for a in axes), x.dtype, x.weak),)
        case Transpose(axes):
            raise ValueError(f"transpose takes each of the {x.ndim} axes of {x.shape} once; got {axes}")
        case Slice():
            return (_slice(operation, x),)
        case BroadcastTo(shape):
            if not _broadcasts(x.shape, shape):
                raise ValueError(f"shape {x.shape} does not broadcast to {shape}")
            return (Aval(shape, x.dtype, x.weak),)
        case Repeat(repeats, axis):
            if repeats < 0:
                raise ValueError(f"repeats must be 0 or more; got {repeats}")
            return (Aval(_resized(x.shape, axis, x.shape[axis] * repeats), x.dtype, x.weak),)
        case Cast(dtype):
            return (Aval(x.shape, dtype),)
        case Sum(axes, keepdims):
            if not is_float(x.dtype):
                raise TypeError(
                    f"sum adds up float arrays; this one is {x.dtype.name}: cast it with .astype(np.float32)"
                )
            shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes)
            return (Aval(shape, x.dtype, x.weak),)
        case Pad(low, high):
            return (Aval(tuple(l + n + h for l, n, h in zip(low, x.shape, high, strict=True)), x.dtype, x.weak),)  # noqa: E741
        case Copy():
            return (x,)
    raise TypeError(f"{operation!r} is no operation with a rule")


def _elementwise(operation: Elementwise, operands: Sequence[Aval]) -> Aval:
    name = operation.function
    if len(operands) != ARITY[name]:
        raise TypeError(f"{name} takes {ARITY[name]} operands; got {len(operands)}")
    chosen = operands[1:] if name == "where" else operands
    dtypes = {a.dtype for a in chosen}
    if len(dtypes) > 1:
        raise TypeError(f"{name} takes operands of one dtype; got {', '.join(a.dtype.name for a in chosen)}")
    (dtype,) = dtypes
    if dtype in STORAGE:
        raise TypeError(f"{dtype.name} is a storage type and {name} does not compute in it: cast with .astype first")
    if name == "where" and operands[0].dtype != bool_:
        raise TypeError(f"the condition of where must be bool; got {operands[0].dtype.name}: compare it, as in c != 0")
    if name in LOGIC and dtype != bool_:
        raise TypeError(f"{name} (&, |, ~) takes bool arrays; got {dtype.name}")
    if dtype == bool_ and name not in (*COMPARISONS, *LOGIC, "where"):
        raise TypeError(f"{name} does not take bool arrays: cast with .astype first")
    if name in FLOATS_ONLY and not is_float(dtype):
        raise TypeError(f"{name} takes float arrays; got {dtype.name}")
    try:
        shape = np.broadcast_shapes(*(a.shape for a in operands))
    except ValueError:
        shapes = " and ".join(str(a.shape) for a in operands)
        raise ValueError(f"{name}: shapes {shapes} do not broadcast against each other") from None
    if name in COMPARISONS:
        return Aval(shape, bool_)
    return Aval(shape, dtype, all(a.weak for a in chosen))


def _slice(operation: Slice, x: Aval) -> Aval:
    for start, size, step, n in zip(operation.start, operation.size, operation.step, x.shape, strict=True):
        if size and not (0 <= start < n and 0 <= start + (size - 1) * step < n):
            raise ValueError(f"a slice of {size} from {start} by {step} leaves an axis of {n}")
    return Aval(operation.size, x.dtype, x.weak)


def _concatenate(operation: Concatenate, operands: Sequence[Aval]) -> Aval:
    if not operands:
        raise ValueError("concatenate needs at least one array")
    first, axis = operands[0], operation.axis
    for other in operands[1:]:
        if other.dtype != first.dtype:
            raise TypeError(f"concatenate takes arrays of one dtype; got {first.dtype.name} and {other.dtype.name}")
        if other.ndim != first.ndim or _resized(other.shape, axis, 0) != _resized(first.shape, axis, 0):
            raise ValueError(f"concatenate along axis {axis}: shapes {first.shape} and {other.shape} differ elsewhere")
    return Aval(
        _resized(first.shape, axis, sum(a.shape[axis] for a in operands)), first.dtype, all(a.weak for a in operands)
    )


def _resized(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _rotate(operation: Rotate, operands: Sequence[Aval]) -> Aval:
    x = operands[0]
    if x.ndim != 4:
        raise ValueError(f"rope takes x as BTNH or TNH; got shape {x.shape}")
    if x.dtype not in FLOATS:
        raise TypeError(f"rope takes float32, float16 or bfloat16; x is {x.dtype.name}: cast with x.astype(np.float32)")
    operation.rope.rotated(x.shape[-1])
    B, T = x.shape[:2]
    if operation.where == "arange":
        return Aval(x.shape, x.dtype)
    given = operands[1]
    taken = {"positions": ((T,), (1, T), (B, T)), "offset": ((), (1,), (B,))}[operation.where]
    if given.dtype != int32:
        raise TypeError(f"rope {operation.where} must be int32; got {given.dtype.name}: cast with .astype(np.int32)")
    if given.shape not in taken:
        shapes = " or ".join(str(s) for s in dict.fromkeys(taken))
        raise ValueError(f"rope {operation.where} of x with B={B} T={T} must have shape {shapes}; got {given.shape}")
    return Aval(x.shape, x.dtype)


def _merge(operands: Sequence[Aval]) -> tuple[Aval, ...]:
    outputs, residuals = operands[:2]
    P, *rows = residuals.shape
    if outputs.shape[:-1] != residuals.shape or not (rows and P and outputs.shape[-1]):
        raise ValueError(f"merge: outputs {outputs.shape} and residuals {residuals.shape} do not fit together")
    if outputs.dtype not in FLOATS or residuals.dtype != float32:
        raise TypeError(f"merge: outputs must not be {outputs.dtype.name}, nor residuals {residuals.dtype.name}")
    for sinks in operands[2:]:
        if sinks.dtype != float32 or not _broadcasts(sinks.shape, tuple(rows)):
            raise ValueError(f"merge: sinks {describe(sinks)} are not float32 that broadcast to {tuple(rows)}")
    return Aval(outputs.shape[1:], outputs.dtype), Aval(tuple(rows), float32)


def _attention(operation: Attention, operands: Sequence[Aval]) -> tuple[Aval, ...]:
    """`nn` has checked what a user gave; these hold for every Attention node, recorded or made by a rewrite.

    bias and mask are (B or 1, N or 1, T or 1, S or 1); lengths, offsets, bound sources and scale () or (B,); sinks
    (N,), segments (T,) and (S,), or these with B in front. B may be two axes. What key and value may hold: Attention.
    """
    given = dict(zip(operation.operands, operands, strict=True))
    query, key, value = given["query"], given["key"], given["value"]
    *batch, T, N, H = query.shape
    *key_batch, S, K, key_dim = key.shape
    *value_batch, values, value_heads, value_dim = value.shape
    Hv = operation.call.value_dim or value_dim
    dims = tuple(row_elements(x.dtype, n) for x, n in ((key, H), (value, Hv)))
    if (key_dim, value_dim) != dims or (values, value_heads) != (S, K) or not K or N % K:
        raise ValueError(f"attention: query {query.shape}, key {key.shape} and value {value.shape} do not fit together")
    if operation.call.page_size is not None:
        S = check_pages(operation.call.page_size, given)
    else:
        for other in (key_batch, value_batch):
            if len(other) != len(batch) or any(n not in (1, b) for n, b in zip(other, batch, strict=True)):
                raise ValueError(f"attention: batch axes {tuple(batch)} and {tuple(other)} do not fit together")
    check_storage(operation.call, given, (H, Hv))
    for name in ("bias", "mask"):
        if name in given and not _broadcasts(given[name].shape, (*batch, N, T, S)):
            raise ValueError(f"attention: {name} {given[name].shape} does not broadcast to {(*batch, N, T, S)}")
    if "sinks" in given and not (given["sinks"].shape[-1:] == (N,) and _broadcasts(given["sinks"].shape, (*batch, N))):
        raise ValueError(f"attention: sinks {given['sinks'].shape} are neither (N,) = ({N},) nor {(*batch, N)}")
    for name in (*ROW_OPERANDS, *operation.call.sources):
        if name in given and given[name].dtype != (float32 if name in ("sinks", "scale") else int32):
            raise TypeError(f"attention: {name} must not be {given[name].dtype.name}")
    out = Aval((*batch, T, N, Hv), operation.dtype)
    if operation.call.residual is None:
        return (out,)
    return out, Aval((*batch, T, N), operation.call.residual)


def _attention_gradient(operation: AttentionGradient, operands: Sequence[Aval]) -> tuple[Aval, ...]:
    given = dict(zip(operation.operands, operands, strict=True))
    forward = tuple(name for name in operation.operands if name not in ("out", "residual", "grad_out"))
    call = replace(operation.call, residual=float32)
    out, residual = _attention(Attention(forward, call, given["out"].dtype), [given[name] for name in forward])
    for name, right in (("out", out), ("grad_out", out), ("residual", residual)):
        if given[name].shape != right.shape:
            raise ValueError(f"attention's gradient: {name} has shape {given[name].shape}, the call's is {right.shape}")
    for name in ("out", "grad_out"):
        if given[name].dtype not in FLOATS:
            raise TypeError(f"attention's gradient: {name} must not be {given[name].dtype.name}")
    if given["residual"].dtype != float32:
        raise TypeError(f"attention's gradient takes a float32 residual; got {given['residual'].dtype.name}")
    batch = given["query"].shape[:-3]
    found = []
    for name, dtype in zip(operation.wanted, operation.dtypes, strict=True):
        if name not in GRADIENTS or name not in given:
            raise ValueError(f"attention has no gradient by {name}: the call's operands are {', '.join(forward)}")
        if dtype not in FLOATS or (name == "sinks" and dtype != float32):
            raise TypeError(f"attention's gradient by {name} must not be {dtype.name}")
        shape = given[name].shape
        if name == "sinks" and shape not in (shape[-1:], (*batch, shape[-1])):
            raise ValueError(f"attention's gradient: sinks {shape} are neither {shape[-1:]} nor {(*batch, shape[-1])}")
        found.append(Aval((*batch, *shape[len(batch) :]) if name in ("key", "value") else shape, dtype))
    return tuple(found)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    return len(shape) <= len(to) and all(n in (1, m) for n, m in zip(reversed(shape), reversed(to), strict=False))
