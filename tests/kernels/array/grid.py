"""A small plan of every kind: each array kernel over its dtypes, ranks and options."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from wgattn._dtypes import COMPUTE, FLOATS, bool_, float8_e4m3fn, float8_e5m2, float16, float32, int8, int32, uint8
from wgattn._kernels.array import (
    cache_append,
    cache_move,
    cache_rows,
    copy,
    elementwise,
    fill,
    merge_parts,
    pointwise,
    reduce,
    rope,
)
from wgattn._kernels.array.elementwise import ARITY, COMPARISONS, LOGIC
from wgattn._kernels.kernel import Operand, Plan, natural_strides
from wgattn._kernels.rotation import Rope
from wgattn._runtime.profile import DeviceProfile, Limits

SHAPES = [(6,), (3, 4), (3, 5)]


def natural(dtype: np.dtype, *shape: int) -> Operand:
    """A contiguous operand."""
    return Operand(dtype, shape, natural_strides(shape))


def every_plan(profile: DeviceProfile) -> Iterator[Plan]:
    """Plans whose variants cover what the array kernels can be asked for."""
    taken = pointwise.REGISTERS
    for source, result in product(taken, taken):
        yield copy.plan(natural(source, 3, 5), natural(result, 3, 5), profile)
        turned = Operand(source, (3, 5, 2), (1, 3, 15))
        yield copy.plan(turned, natural(result, 3, 5, 2), profile)
        yield copy.plan(turned, Operand(result, (3, 5, 2), (60, 6, 2), 1), profile)
    for function, dtype in product(ARITY, COMPUTE):
        result = bool_ if function in COMPARISONS + LOGIC else dtype
        operands = [natural(dtype, 3, 5)] * ARITY[function]
        if function == "where":
            operands[0] = natural(bool_, 3, 5)
        yield elementwise.plan(function, tuple(operands), natural(result, 3, 5), profile)
        yield elementwise.plan(function, (*operands[:-1], natural(dtype, 5)), natural(result, 3, 5), profile)
    for dtype in taken:
        yield fill.plan(1, natural(dtype, 7), profile)
    for source, result, axes in product(taken, (*FLOATS, int32), [(0,), (1,), (0, 2), (0, 1, 2)]):
        kept = [n for axis, n in enumerate((3, 500, 5)) if axis not in axes]
        yield reduce.plan(natural(source, 3, 500, 5), axes, natural(result, *kept), 1, profile)
    yield reduce.plan(natural(float16, 3, 5), (1,), natural(float32, 3), 5, profile)
    x = natural(float16, 2, 3, 4, 6)
    for style, dtype, inverse in product(("half", "interleaved"), FLOATS, (False, True)):
        parameters = Rope(style=style, rotary_dim=4)
        for positions, offset in [(None, None), (natural(int32, 3), None), (None, natural(int32))]:
            yield rope.plan(x, positions, offset, natural(dtype, *x.shape), parameters, profile, inverse=inverse)
    for dtype, Hv, rows in product(FLOATS, (6, 8), ((3, 4, 2), (4, 2))):
        parts, residuals = natural(dtype, 3, *rows, Hv), natural(float32, 3, *rows)
        turned = Operand(float32, (3, *rows), tuple(reversed(natural_strides((*reversed(rows), 3)))))
        for of_parts, sinks in product((residuals, turned), (None, natural(float32, rows[-1]))):
            given = parts, of_parts, sinks, natural(dtype, *rows, Hv), natural(float32, *rows)
            yield merge_parts.plan(*given, profile)
            yield merge_parts.plan(*given, replace(profile, limits=Limits(binding_bytes=512)))
    for stored, source, small, ring, parameters in product(
        (*FLOATS, int8, uint8, float8_e4m3fn, float8_e5m2),
        FLOATS,
        SMALL,
        (None, 1),
        (None, Rope(), Rope(style="interleaved")),
    ):
        yield append(stored, source, small, ring, parameters, profile)
    indices, storage = natural(int32, 4), natural(float16, 3, 8, 2, 4)
    yield cache_move.take(storage, indices, natural(float16, 4, 8, 2, 4), profile)
    yield cache_move.replace(storage, indices, indices, profile)
    for dtype, counts in product(FLOATS, (None, natural(int32, 3))):
        rows = natural(dtype, 3, 5, 2, 4)
        yield cache_rows.plan(natural(dtype, 3, 8, 2, 4), natural(int32, 3), counts, rows, profile)
    yield copy.plan(natural(float32), natural(float16), profile)


SMALL = (("lengths",), ("lengths", "counts", "pages"))


def append(
    stored: np.dtype,
    source: np.dtype,
    small: tuple[str, ...],
    ring: int | None,
    parameters: Rope | None,
    profile: DeviceProfile,
) -> Plan:
    """Five tokens of two sequences into caches of 16 slots."""
    size = 32 if stored == uint8 else 40
    first, capacity = (6, 8) if "pages" in small else (2, 16)
    operands = {side: natural(stored, first, capacity, 3, size) for side in ("key", "value")}
    operands |= {f"new_{side}": natural(source, 2, 5, 3, 40) for side in ("key", "value")}
    if stored in (int8, uint8):
        operands["scales"] = natural(float32, first, capacity, 3, 2 if stored == int8 else 4)
    operands |= {name: natural(int32, 2, 2) if name == "pages" else natural(int32, 2) for name in small}
    return cache_append.plan(operands, ring, parameters, "new_lengths", profile)
