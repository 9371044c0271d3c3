"""Sums over axes, in a fixed order: float32 for floats, exact for integers."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from wgattn._dtypes import bool_, float32, int32, is_float, short_name, uint32
from wgattn._errors import UnsupportedError
from wgattn._kernels.array import fill, pointwise
from wgattn._kernels.kernel import Launch, Operand, Plan, Scratch, natural_strides
from wgattn._runtime.profile import DeviceProfile

NAME = "sum"
CHUNK = 256  # elements that one invocation adds, in four interleaved sums
SMALL_CHUNK = 64  # where there would be too few invocations to fill a GPU
ENOUGH = 4096


def plan(source: Operand, axes: tuple[int, ...], result: Operand, divisor: float, profile: DeviceProfile) -> Plan:
    """Sum `source` over `axes`, divide by `divisor` where it is not 1, and cast to `result`'s dtype.

    `result` has the axes that are kept, with or without the summed ones as 1. A float result is accumulated in float32,
    an integer one in its own type, and wraps. Long sums are made of sums of at most 256 elements, in as many launches
    as it takes. Names: "source", "result".

    Raises ValueError for shapes that do not fit or a divisor of an integer sum, UnsupportedError as `copy.plan`.

    Example:
        plan(Operand(float32, (8, 100), (100, 1)), (1,), Operand(float32, (8,), (1,)), 100, DeviceProfile()) is a mean.
    """
    pointwise.register(source.dtype)
    accumulator = _accumulator(result.dtype)
    if divisor != 1 and accumulator != float32:
        raise ValueError(f"a mean of {result.dtype.name} is not taken: cast the result to a float dtype")
    summed = {axis % len(source.shape) for axis in axes}
    kept = [axis for axis in range(len(source.shape)) if axis not in summed]
    shape = tuple(source.shape[axis] for axis in kept)
    if len(result.shape) == len(source.shape):
        result = _take(result, kept)
    if result.shape != shape:
        raise ValueError(f"a sum of {source.shape} over axes {axes} has shape {shape}; got {result.shape}")
    if 0 in shape:
        return Plan(())
    over = _take(source, sorted(summed))
    if 0 in over.shape:
        return fill.plan(float("nan") if divisor == 0 else 0, result, profile)

    steps: list[Launch] = []
    scratch: dict[str, Scratch] = {}
    name, base = "source", _take(source, kept)
    while True:
        sections = tuple(_sections(over, profile))
        parts = [_parts(math.prod(section.shape), math.prod(shape)) for section in sections]
        if sum(parts) == 1:
            steps += _launches(base, name, over, 1, result, "result", divisor, profile)
            return Plan(tuple(steps), scratch)
        partial = f"partial{len(scratch)}"
        scratch[partial] = Scratch(4 * sum(parts) * math.prod(shape))
        made = _partials(accumulator, sum(parts), shape, base, over)
        first = 0
        for section, count in zip(sections, parts, strict=True):
            rows = pointwise.cut(made, 0, first, first + count)
            steps += _launches(replace(base, offset=section.offset), name, section, count, rows, partial, 1, profile)
            first += count
        name, base, over = partial, _take(made, list(range(1, len(made.shape)))), _take(made, [0])


def _parts(count: int, sums: int) -> int:
    """Into how many partial sums each of `sums` sums of `count` elements is cut."""
    parts = -(-count // CHUNK)
    return parts if parts == 1 or parts * sums >= ENOUGH else -(-count // SMALL_CHUNK)


def _accumulator(dtype: np.dtype) -> np.dtype:
    if is_float(dtype):
        return float32
    if dtype == bool_:
        raise UnsupportedError("a sum has no bool result: jax.numpy's sum of bool is int32")
    return uint32 if pointwise.register(dtype) == "u32" else int32


def _take(operand: Operand, axes: list[int]) -> Operand:
    shape = tuple(operand.shape[axis] for axis in axes)
    return replace(operand, shape=shape, strides=tuple(operand.strides[axis] for axis in axes))


def _sections(over: Operand, profile: DeviceProfile) -> Iterator[Operand]:
    """What is summed, cut so that half of what can be bound holds each section."""
    half = replace(profile, limits=replace(profile.limits, binding_bytes=pointwise.binding_limit(profile) // 2))
    for (piece,) in pointwise.pieces((over,), ((0, 0),), half):
        yield piece


def _partials(dtype: np.dtype, parts: int, shape: tuple[int, ...], base: Operand, over: Operand) -> Operand:
    """(parts, …) in scratch, laid out so that neighbours there are neighbours in the source."""
    steps = [abs(stride) for stride, size in zip(base.strides, base.shape, strict=True) if size > 1 and stride]
    inner = min((abs(s) for s, n in zip(over.strides, over.shape, strict=True) if n > 1), default=0)
    if steps and min(steps) < inner:
        return Operand(dtype, (parts, *shape), natural_strides((parts, *shape)))
    strides = natural_strides((*shape, parts))
    return Operand(dtype, (parts, *shape), (strides[-1], *strides[:-1]))


def _launches(
    base: Operand,
    source_name: str,
    over: Operand,
    parts: int,
    result: Operand,
    result_name: str,
    divisor: float,
    profile: DeviceProfile,
) -> list[Launch]:
    """Sum every `parts`-th element of `over` into each row of `result`: (parts, …), or (…) where there is one part."""
    if parts == 1 and len(result.shape) == len(base.shape):
        result = replace(result, shape=(1, *result.shape), strides=(0, *result.strides))
    (inner,) = pointwise.simplify((replace(over, offset=0),))
    low, high = inner.extent()
    base = replace(base, offset=base.offset + inner.offset)
    count = math.prod(over.shape)
    if count >= 1 << 31:
        raise UnsupportedError(f"a sum of {count:,} elements is not taken: the most is {(1 << 31) - 1:,}")
    rank = len(inner.shape)
    values = [("count", "u32", count), ("parts", "u32", parts), ("divisor", "f32", divisor)]
    for axis in range(rank):
        values += [(f"over_size{axis}", "u32", inner.shape[axis]), (f"over_stride{axis}", "u32", inner.strides[axis])]
    kernel = pointwise.Pointwise(
        family=NAME,
        name=f"{NAME}-{short_name(base.dtype)}-{short_name(result.dtype)}-r{rank}" + ("-mean" if divisor != 1 else ""),
        template="array/reduce.wgsl",
        result=result,
        inputs={"source": base},
        coordinates={"part": pointwise.coordinate(result.shape, 0)},
        constants=(
            ("over_rank", rank),
            ("accumulator", short_name(_accumulator(result.dtype))),
            ("divide", divisor != 1),
        ),
        values=tuple(values),
        reach={"source": (low - inner.offset, high - 1 - inner.offset)},
        buffers={"source": source_name, "result": result_name},
    )
    return [step for step in pointwise.plan(kernel, profile).steps if isinstance(step, Launch)]
