"""One value written to every element of an array, or of a slice of one."""

import numpy as np

from wgattn._dtypes import short_name
from wgattn._kernels.array import pointwise
from wgattn._kernels.kernel import Operand, Plan
from wgattn._runtime.profile import DeviceProfile

NAME = "fill"


def plan(value: float | int | bool, result: Operand, profile: DeviceProfile) -> Plan:
    """Write `value`, cast to the dtype, to all of `result`. Name: "result"; bytes beside a slice are kept.

    Raises UnsupportedError for dtypes without kernels or a rank above 8, OverflowError for an integer out of range.

    Example:
        plan(0.0, Operand(float16, (3, 5), (5, 1)), DeviceProfile())
    """
    pointwise.register(result.dtype)
    bits = int.from_bytes(np.asarray(value, result.dtype).tobytes(), "little")
    kernel = pointwise.Pointwise(
        family=NAME,
        name=f"{NAME}-{short_name(result.dtype)}",
        template="array/fill.wgsl",
        result=result,
        inputs={},
        values=(("value_bits", "u32", bits),),
    )
    return pointwise.plan(kernel, profile)
