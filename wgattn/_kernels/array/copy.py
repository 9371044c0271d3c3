"""Strided copy and cast: any view of an array to any layout, from and to every dtype that array kernels take."""

import math

from wgattn._dtypes import short_name
from wgattn._kernels.array import pointwise
from wgattn._kernels.kernel import Bytes, Copy, Operand, Plan
from wgattn._runtime.profile import DeviceProfile

NAME = "copy"


def plan(source: Operand, result: Operand, profile: DeviceProfile, name: str = "source") -> Plan:
    """Copy `source`, broadcast to `result`'s shape, into `result`, with a cast where the dtypes differ.

    Names: "source" (or `name`) and "result", two different buffers. `result` may be a slice of a larger array: the
    bytes beside it are kept. Floats round half to even; a float outside an integer's range is clamped to it, NaN gives
    0; integers wrap; bool is x ≠ 0; elements of one dtype go over bit for bit.

    Raises UnsupportedError for dtypes without kernels, a rank above 8, or a binding above the device's limit that
    cannot be split.

    Example:
        plan(Operand(float32, (4, 3), (1, 4)), Operand(float16, (4, 3), (3, 1)), DeviceProfile()) transposes and casts.
    """
    pointwise.register(source.dtype)
    pointwise.register(result.dtype)
    if straight := _straight(source, result, name):
        return Plan((straight,))
    kernel = pointwise.Pointwise(
        family=NAME,
        name=f"{NAME}-{short_name(source.dtype)}-{short_name(result.dtype)}",
        template="array/copy.wgsl",
        result=result,
        inputs={"source": source},
        buffers={"source": name},
    )
    return pointwise.plan(kernel, profile)


def _straight(source: Operand, result: Operand, name: str) -> Copy | None:
    """The plain copy of bytes that does the same, or None."""
    if (
        source.dtype != result.dtype
        or source.shape != result.shape
        or not (source.contiguous() and result.contiguous())
    ):
        return None
    nbytes = math.prod(source.shape) * source.itemsize
    start, end = source.offset * source.itemsize, result.offset * result.itemsize
    if nbytes == 0 or any(n % pointwise.WORD for n in (nbytes, start, end)):
        return None
    return Copy(Bytes(name, start, nbytes), "result", end)
