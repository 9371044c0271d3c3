"""Arithmetic, comparisons and logic element by element, under jax.numpy's rules."""

from collections.abc import Mapping

import numpy as np

from wgattn._dtypes import short_name
from wgattn._kernels.array import pointwise
from wgattn._kernels.kernel import Operand, Plan
from wgattn._runtime.profile import DeviceProfile

ARITY: Mapping[str, int] = {
    "add": 2, "subtract": 2, "multiply": 2, "divide": 2, "negative": 1, "exp": 1, "maximum": 2, "minimum": 2,
    "logical_and": 2, "logical_or": 2, "logical_not": 1,
    "equal": 2, "not_equal": 2, "less": 2, "less_equal": 2, "greater": 2, "greater_equal": 2, "where": 3,
}  # fmt: skip
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
LOGIC = ("logical_and", "logical_or", "logical_not")
FLOATS_ONLY = ("divide", "exp")


def plan(function: str, operands: tuple[Operand, ...], result: Operand, profile: DeviceProfile) -> Plan:
    """`function` of `operands`, each broadcast to `result`'s shape. Names: "operand0", … and "result".

    Floats are computed in float32 and rounded once to the result's dtype; integers wrap; comparisons with NaN are
    false (`not_equal` true), `maximum` and `minimum` pass NaN on; logic takes x ≠ 0. `where`'s condition comes first.

    Raises ValueError for a wrong number of operands or shapes that do not broadcast, UnsupportedError as `copy.plan`.

    Example:
        plan("add", (x, x), x, DeviceProfile()) with x = Operand(float32, (8,), (1,))
    """
    if function not in ARITY or len(operands) != ARITY[function]:
        known = ", ".join(f"{name} ({arity})" for name, arity in ARITY.items())
        raise ValueError(f"{function} of {len(operands)} operands is no elementwise function; there are {known}")
    pointwise.register(result.dtype)
    compute = computed_in(function, tuple(operand.dtype for operand in operands))
    dtypes = [short_name(operand.dtype) for operand in operands]
    names = dtypes[:1] if len(set(dtypes)) == 1 else dtypes
    kernel = pointwise.Pointwise(
        family="elementwise",
        name="-".join((function, *names, short_name(result.dtype))),
        template="array/elementwise.wgsl",
        result=result,
        inputs={f"operand{n}": operand for n, operand in enumerate(operands)},
        constants=(
            ("function", function),
            ("compute", compute),
            ("produced", "bool" if function in COMPARISONS + LOGIC else compute),
        ),
    )
    return pointwise.plan(kernel, profile)


def computed_in(function: str, dtypes: tuple[np.dtype, ...]) -> str:
    """The WGSL type that `function` is computed in: float32 beside any float, int32 for mixed integers."""
    registers = [pointwise.register(dtype) for dtype in (dtypes[1:] if function == "where" else dtypes)]
    if function in LOGIC:
        return "bool"
    if "f32" in registers or function in FLOATS_ONLY:
        return "f32"
    if "i32" in registers:
        return "i32"
    if "u32" in registers or function in ("less", "less_equal", "greater", "greater_equal"):
        return "u32"
    return "bool"
