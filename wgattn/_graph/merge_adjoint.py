"""The adjoint of Merge: what the cotangents of out and residual give to the parts, their residuals and the sinks.

A part's share is p = exp(residual - total), total being the merge's residual. With the cotangents g of out and h of
total, output gets p · g, residual p · (g · (output - out) + h), and a sink its own p · (h - g · out), summed.
"""

import numpy as np

from wgattn._dtypes import float32
from wgattn._kernels.array.merge_parts import WITHOUT_KEYS

from .operations import Cast, Elementwise, Function, Sum
from .recorder import Forward, Recorder, V, reshaped, summed

LOWEST = float(np.finfo(np.float32).min)


def merge_adjoint(
    record: Recorder[V], of: Forward[V], cotangents: tuple[V | None, ...], wanted: tuple[bool, ...]
) -> tuple[V | None, ...]:
    """The cotangents of outputs, residuals and sinks. A part whose row keeps no key gets zeros, and is not read."""
    outputs, residuals, out, total = (x for x in (*of.operands[:2], *of.results) if x is not None)
    g, h = (None if x is None else _wide(record, x) for x in cotangents)

    def do(name: Function, *operands: V) -> V:
        return record.do(Elementwise(name), *operands)[0]

    def number(value: float) -> V:
        return record.constant(value, float32)

    def wide(x: V) -> V:
        return _wide(record, x)

    def along(x: V) -> V:
        """x with an axis for the elements of a row."""
        return reshaped(record, x, (*record.aval(x).shape, 1))

    def over_row(x: V) -> V:
        return record.do(Sum((record.aval(x).ndim - 1,)), x)[0]

    def plus_h(x: V | None) -> V:
        """What a logit gets before it is weighed: x, which comes by out, and h."""
        return h if x is None else x if h is None else do("add", x, h)  # type: ignore[return-value]

    zero = number(0.0)
    first, last = (number(value) for value in WITHOUT_KEYS)
    unlike = do("logical_and", do("greater_equal", residuals, first), do("less_equal", residuals, last))
    without = do("logical_or", do("less", residuals, number(LOWEST)), unlike)
    share = do("where", without, zero, do("exp", do("subtract", residuals, total)))
    found: list[V | None] = [None] * len(wanted)
    if wanted[0] and g is not None:
        given = do("multiply", along(share), g)
        dtype = of.avals[0].dtype
        found[0] = given if dtype == float32 else record.do(Cast(dtype), given)[0]
    if wanted[1]:
        by_out = None
        if g is not None:
            part = do("where", along(without), zero, wide(outputs))
            by_out = over_row(do("multiply", g, do("subtract", part, wide(out))))
        found[1] = do("where", without, zero, do("multiply", share, plus_h(by_out)))
    if len(wanted) > 2 and wanted[2]:
        sinks = of.operands[2]
        assert sinks is not None
        by_out = None if g is None else do("negative", over_row(do("multiply", g, wide(out))))
        each = do("multiply", do("exp", do("subtract", sinks, total)), plus_h(by_out))
        kept = do("where", do("less", sinks, number(LOWEST)), zero, each)
        found[2] = summed(record, kept, of.avals[2].shape)
    return tuple(found)


def _wide(record: Recorder[V], x: V) -> V:
    return x if record.aval(x).dtype == float32 else record.do(Cast(float32), x)[0]
