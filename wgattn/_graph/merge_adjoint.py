"""The adjoint of Merge: what the cotangents of out and residual give to the parts, their residuals and the sinks.

A part's share is p = exp(its residual - total), total being the merge's residual. With the cotangents g of out and h of
total, and c = h - g · out of each row, output gets p · g, its residual p · (g · output + c), and a sink, of its own p,
the sum of p · c.
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
    """The cotangents of outputs, residuals and sinks. A part whose row keeps no key gets zeros, whatever it holds."""
    outputs, residuals, out, total = (x for x in (*of.operands[:2], *of.results) if x is not None)
    g, h = (None if x is None else _wide(record, x) for x in cotangents)

    def do(name: Function, *operands: V) -> V:
        return record.do(Elementwise(name), *operands)[0]

    def number(value: float) -> V:
        return record.constant(value, float32)

    def product(rows: V) -> V:
        """g · each row."""
        each = do("multiply", g, _wide(record, rows))  # type: ignore[arg-type]
        return record.do(Sum((record.aval(each).ndim - 1,)), each)[0]

    zero = number(0.0)
    first, last = (number(value) for value in WITHOUT_KEYS)
    unlike = do("logical_and", do("greater_equal", residuals, first), do("less_equal", residuals, last))
    without = do("logical_or", do("less", residuals, number(LOWEST)), unlike)
    share = do("where", without, zero, do("exp", do("subtract", residuals, total)))
    found: list[V | None] = [None] * len(wanted)
    if wanted[0] and g is not None:
        given = do("multiply", reshaped(record, share, (*record.aval(share).shape, 1)), g)
        dtype = of.avals[0].dtype
        found[0] = given if dtype == float32 else record.do(Cast(dtype), given)[0]
    if not any(wanted[1:]):
        return tuple(found)

    less = None if g is None else product(out)
    c = h if less is None else do("negative", less) if h is None else do("subtract", h, less)
    assert c is not None
    if wanted[1]:
        by_share = c if g is None else do("add", product(outputs), c)
        found[1] = do("where", without, zero, do("multiply", share, by_share))
    if any(wanted[2:]):
        sinks = of.operands[2]
        assert sinks is not None
        share = do("where", do("less", sinks, number(LOWEST)), zero, do("exp", do("subtract", sinks, total)))
        found[2] = summed(record, do("multiply", share, c), of.avals[2].shape)
    return tuple(found)


def _wide(record: Recorder[V], x: V) -> V:
    return x if record.aval(x).dtype == float32 else record.do(Cast(float32), x)[0]
