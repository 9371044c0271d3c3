"""An array with zeros around it."""

from wgattn._kernels.array import copy, fill
from wgattn._kernels.array.pointwise import cut
from wgattn._kernels.kernel import Operand, Plan
from wgattn._runtime.profile import DeviceProfile


def plan(source: Operand, low: tuple[int, ...], result: Operand, profile: DeviceProfile) -> Plan:
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
