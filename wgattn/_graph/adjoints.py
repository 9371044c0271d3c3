"""The adjoint of each operation: what its result's cotangent gives to its operands, in operations like any other."""

from dataclasses import replace

import numpy as np

from wgattn._dtypes import FLOATS, float8_e4m3fn, float8_e5m2, float32
from wgattn._errors import UnsupportedError
from wgattn._kernels.array.elementwise import COMPARISONS, LOGIC

from .cache_adjoint import append_adjoint
from .graph import Aval
from .merge_adjoint import merge_adjoint
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
    Function,
    Merge,
    Pad,
    Repeat,
    Reshape,
    Rotate,
    Slice,
    Sum,
    Transpose,
)
from .recorder import Forward, Recorder, V, reshaped, summed
from .rules import GRADIENTS

STOPPED = (*COMPARISONS, *LOGIC)  # what no gradient passes


def carries(dtype: np.dtype) -> bool:
    """Whether values of this type have cotangents."""
    return dtype in (*FLOATS, float8_e4m3fn, float8_e5m2)


def flows(operation: object, place: int) -> bool:
    """Whether a gradient reaches operand number `place`."""
    match operation:
        case Elementwise(function):
            return function not in STOPPED and not (function == "where" and place == 0)
        case Rotate():
            return place == 0
        case Attention(operands):
            return operands[place] in GRADIENTS
        case CacheAppend(operands):
            return operands[place] in ("key", "value", "new_key", "new_value")
        case CacheRows() | CacheMove():
            return place == 0
    return True


def needed(operation: object, wanted: tuple[bool, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which operands and which results the adjoint reads, where the `wanted` operands get a cotangent."""
    match operation:
        case Elementwise("multiply"):
            return tuple(1 - place for place in (0, 1) if wanted[place]), ()
        case Elementwise("divide"):
            return (1,), (0,) if wanted[1] else ()
        case Elementwise("exp"):
            return (), (0,)
        case Elementwise("maximum" | "minimum"):
            return (0, 1), ()
        case Elementwise("where"):
            return (0,), ()
        case Rotate(where="positions" | "offset"):
            return (1,), ()
        case Attention(operands):
            return tuple(range(len(operands))), (0, 1)
        case CacheAppend(operands):
            return tuple(place for place, name in enumerate(operands) if name in ("lengths", "counts")), ()
        case Merge(sinks):
            return (0, 1, 2) if sinks else (0, 1), (0, 1)
    return (), ()


def adjoint(
    record: Recorder[V], of: Forward[V], cotangents: tuple[V | None, ...], wanted: tuple[bool, ...]
) -> tuple[V | None, ...]:
    """The cotangents of a node's `wanted` operands, each of its operand's shape and dtype; None for the others.

    `cotangents` are those of its results, at least one of them given; an attention's residual has none, as in jax.
    Raises UnsupportedError for what has no adjoint: the gradient of attention itself.
    """
    if isinstance(of.operation, Merge):
        return merge_adjoint(record, of, cotangents, wanted)
    if isinstance(of.operation, CacheAppend):
        return append_adjoint(record, of, cotangents, wanted)
    if isinstance(of.operation, CacheRows | CacheMove):
        raise UnsupportedError("no gradient passes a cache that was reordered, nor the gradient of an append")
    cotangent = cotangents[0]
    assert cotangent is not None
    match of.operation:
        case Elementwise(function):
            return _elementwise(record, of, function, cotangent, wanted)
        case Attention():
            return _attention(record, of, of.operation, cotangent, wanted)
        case Concatenate(axis):
            return _concatenate(record, of, axis, cotangent, wanted)
        case Rotate():
            back = replace(of.operation, inverse=not of.operation.inverse)
            given = [value for value in of.operands[1:] if value is not None]
            return (*record.do(back, cotangent, *given), *(None for _ in given))
    return (_unary(record, of.operation, of.avals[0], cotangent),)


def _unary(record: Recorder[V], operation: object, x: Aval, cotangent: V) -> V:
    ones = (1,) * x.ndim
    match operation:
        case Copy() | Reshape():
            return reshaped(record, cotangent, x.shape)
        case Transpose(axes):
            return record.do(Transpose(tuple(axes.index(a) for a in range(x.ndim))), cotangent)[0]
        case Slice():
            return _unsliced(record, operation, x.shape, cotangent)
        case BroadcastTo():
            return summed(record, cotangent, x.shape)
        case Repeat(repeats, axis):
            at = axis % x.ndim + 1
            split = reshaped(record, cotangent, (*x.shape[:at], repeats, *x.shape[at:]))
            return record.do(Sum((at,)), split)[0]
        case Cast():
            return record.do(Cast(x.dtype), cotangent)[0]
        case Sum(axes, _, divisor):
            kept = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
            each = reshaped(record, cotangent if divisor == 1 else _over(record, cotangent, divisor), kept)
            return each if kept == x.shape else record.do(BroadcastTo(x.shape), each)[0]
        case Pad(low, _):
            return record.do(Slice(low, x.shape, ones), cotangent)[0]
    raise UnsupportedError(
        f"{type(operation).__name__} has no gradient of its own: attention is differentiated once. "
        "Compute second derivatives with jax.nn.dot_product_attention"
    )


def _over(record: Recorder[V], x: V, divisor: int) -> V:
    """x / divisor, in float32 as means are computed: a large divisor is no 16-bit number."""
    dtype = record.aval(x).dtype
    wide = x if dtype == float32 else record.do(Cast(float32), x)[0]
    (over,) = record.do(Elementwise("multiply"), wide, record.constant(1 / divisor, float32))
    return over if dtype == float32 else record.do(Cast(dtype), over)[0]


def _unsliced(record: Recorder[V], operation: Slice, shape: tuple[int, ...], cotangent: V) -> V:
    """Each element where it was taken from, zeros elsewhere: turned around, spread by the steps, padded."""
    start, size = operation.start, operation.size
    step = tuple(1 if n == 1 else by for n, by in zip(size, operation.step, strict=True))
    low = tuple(min(s, s + (n - 1) * by) for s, n, by in zip(start, size, step, strict=True))
    spread = tuple(n * abs(by) for n, by in zip(size, step, strict=True))
    span = tuple(min(n, whole - first) for n, whole, first in zip(spread, shape, low, strict=True))
    ones, zeros = (1,) * len(shape), (0,) * len(shape)
    if any(by < 0 for by in step):
        last = tuple(n - 1 if by < 0 else 0 for n, by in zip(size, step, strict=True))
        (cotangent,) = record.do(Slice(last, size, tuple(-1 if by < 0 else 1 for by in step)), cotangent)
    if any(abs(by) > 1 for by in step):
        pairs = tuple(n for each in size for n in (each, 1))
        gaps = tuple(n for by in step for n in (0, abs(by) - 1))
        (cotangent,) = record.do(Pad((0,) * len(pairs), gaps), reshaped(record, cotangent, pairs))
        cotangent = reshaped(record, cotangent, spread)
    if span != spread:
        (cotangent,) = record.do(Slice(zeros, span, ones), cotangent)
    high = tuple(n - first - reach for n, first, reach in zip(shape, low, span, strict=True))
    return record.do(Pad(low, high), cotangent)[0] if any((*low, *high)) else cotangent


def _concatenate(
    record: Recorder[V], of: Forward[V], axis: int, cotangent: V, wanted: tuple[bool, ...]
) -> tuple[V | None, ...]:
    start, parts = 0, []
    for x, want in zip(of.avals, wanted, strict=True):
        first = tuple(start if a == axis else 0 for a in range(x.ndim))
        parts.append(record.do(Slice(first, x.shape, (1,) * x.ndim), cotangent)[0] if want else None)
        start += x.shape[axis]
    return tuple(parts)


def _elementwise(
    record: Recorder[V], of: Forward[V], function: Function, cotangent: V, wanted: tuple[bool, ...]
) -> tuple[V | None, ...]:
    def do(name: Function, *operands: V | None) -> V:
        return record.do(Elementwise(name), *(x for x in operands if x is not None))[0]

    def share(place: int) -> V:
        """What operand number `place` gets, before it is summed over what was broadcast."""
        match function, place:
            case ("add", _) | ("subtract", 0):
                return cotangent
            case ("negative", _) | ("subtract", 1):
                return do("negative", cotangent)
            case "multiply", _:
                return do("multiply", cotangent, of.operands[1 - place])
            case "divide", 0:
                return do("divide", cotangent, of.operands[1])
            case "divide", _:
                return do("negative", do("multiply", do("divide", cotangent, of.operands[1]), of.results[0]))
            case "exp", _:
                return do("multiply", cotangent, of.results[0])
            case "where", _:
                sides = (cotangent, zero) if place == 1 else (zero, cotangent)
                return do("where", of.operands[0], *sides)
            case "maximum" | "minimum", _:  # equal operands share it
                chosen: Function = "greater" if function == "maximum" else "less"
                x, other = of.operands[place], of.operands[1 - place]
                half = do("multiply", cotangent, record.constant(0.5, dtype))
                return do("where", do(chosen, x, other), cotangent, do("where", do("equal", x, other), half, zero))
        raise UnsupportedError(f"{function} has no gradient")

    dtype = record.aval(cotangent).dtype
    zero = record.constant(0.0, dtype)
    return tuple(
        summed(record, share(place), x.shape) if want else None
        for place, (x, want) in enumerate(zip(of.avals, wanted, strict=True))
    )


def _attention(
    record: Recorder[V], of: Forward[V], attention: Attention, cotangent: V, wanted: tuple[bool, ...]
) -> tuple[V | None, ...]:
    """One node for all that is wanted; it reads what the forward launch kept."""
    _check_has_gradient(attention, of.avals)
    given = [x for x in (*of.operands, *of.results, cotangent) if x is not None]
    asked = {name: x for name, x, want in zip(attention.operands, of.avals, wanted, strict=True) if want}
    gradient = AttentionGradient(
        (*attention.operands, "out", "residual", "grad_out"),
        replace(attention.call, residual=None),
        tuple(asked),
        tuple(x.dtype for x in asked.values()),
    )
    found = dict(zip(asked, record.do(gradient, *given), strict=True))
    return tuple(
        summed(record, found[name], x.shape) if name in found else None
        for name, x in zip(attention.operands, of.avals, strict=True)
    )


def _check_has_gradient(attention: Attention, avals: tuple[Aval, ...]) -> None:
    """Raise UnsupportedError for attention over what a cache holds in another form than rows of floats."""
    key = avals[attention.operands.index("key")]
    ring, paged = attention.call.ring is not None, attention.call.page_size is not None
    if ring or paged or key.dtype not in FLOATS:
        held = "a window" if ring else "pages" if paged else key.dtype.name
        raise UnsupportedError(
            f"attention over a cache with {held} has no gradient: only a dense cache of float32, float16 or bfloat16 "
            "has; differentiate nn.dot_product_attention of the keys and values themselves"
        )
