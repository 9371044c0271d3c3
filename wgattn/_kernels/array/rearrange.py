"""Arrays put together from others by strided copies: concatenate, pad, repeat."""

from dataclasses import replace

from wgattn._kernels.array import copy, fill
from wgattn._kernels.array.pointwise import cut
from wgattn._kernels.kernel import Operand, Plan
from wgattn._runtime.profile import DeviceProfile


def concatenate(sources: tuple[Operand, ...], axis: int, result: Operand, profile: DeviceProfile) -> Plan:
    """Lay `sources` one after the other along `axis` of `result`, cast to its dtype.

    Names: "source0", "source1", … and "result". Raises ValueError where sizes do not add up.
    """
    axis %= len(result.shape)
    sizes = [source.shape[axis] for source in sources]
    if sum(sizes) != result.shape[axis]:
        raise ValueError(f"sizes {sizes} along axis {axis} do not fill a result of shape {result.shape}")
    steps, start = [], 0
    for number, source in enumerate(sources):
        part = cut(result, axis, start, start + sizes[number])
        if source.shape != part.shape:
            raise ValueError(f"source{number} has shape {source.shape}; {part.shape} is needed along axis {axis}")
        steps += copy.plan(source, part, profile, f"source{number}").steps
        start += sizes[number]
    return Plan(tuple(steps))


def pad(source: Operand, low: tuple[int, ...], result: Operand, profile: DeviceProfile) -> Plan:
    """`source` at index `low` of `result`, zeros elsewhere. Names: "source", "result".

    Raises ValueError where the source does not fit there.
    """
    part = result
    for axis, (start, size) in enumerate(zip(low, source.shape, strict=True)):
        if start < 0 or start + size > result.shape[axis]:
            raise ValueError(f"a source of shape {source.shape} at {low} does not fit a result of shape {result.shape}")
        part = cut(part, axis, start, start + size)
    inner = copy.plan(source, part, profile).steps
    outer = () if part == result else fill.plan(0, result, profile).steps
    return Plan((*outer, *inner))


def repeat(source: Operand, repeats: int, axis: int, result: Operand, profile: DeviceProfile) -> Plan:
    """Each element along `axis` of `source` `repeats` times in a row, as numpy.repeat. Names: "source", "result"."""
    axis %= len(result.shape)
    if result.shape[axis] != source.shape[axis] * repeats:
        raise ValueError(f"{repeats} repeats of axis {axis} of {source.shape} do not fill {result.shape}")
    return copy.plan(_unfold(source, axis, repeats, 0), _unfold(result, axis, repeats, result.strides[axis]), profile)


def _unfold(operand: Operand, axis: int, repeats: int, step: int) -> Operand:
    """Axis `axis` as two, the second of size `repeats`: at `step` 0 it repeats, else it is cut apart."""
    size, stride = operand.shape[axis], operand.strides[axis]
    outer = (size, stride) if step == 0 else (size // max(repeats, 1), stride * repeats)
    shape = (*operand.shape[:axis], outer[0], repeats, *operand.shape[axis + 1 :])
    strides = (*operand.strides[:axis], outer[1], step, *operand.strides[axis + 1 :])
    return replace(operand, shape=shape, strides=strides)
