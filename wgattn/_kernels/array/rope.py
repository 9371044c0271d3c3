"""Rotary position embedding of an array, by tables of cos and sin that the host made."""

import math

from wgattn._dtypes import int32, short_name
from wgattn._kernels.array import pointwise
from wgattn._kernels.kernel import Binding, Bytes, Operand, Plan
from wgattn._kernels.rotation import DIGITS, TABLES, Rope
from wgattn._runtime.profile import DeviceProfile

NAME = "rope"


def plan(
    x: Operand,
    positions: Operand | None,
    offset: Operand | None,
    result: Operand,
    rope: Rope,
    profile: DeviceProfile,
    *,
    inverse: bool = False,
) -> Plan:
    """Rotate `x` (…, T, N, H) by its positions into `result` of that shape; `inverse` rotates back: the adjoint.

    `positions` int32 (T,) or (…, T); or `offset` int32 () or (…): row t stands at t + offset; or neither: at t.
    Elements from rotary_dim on are copied. Computed in float32, rounded once. Names: "x", "positions" or "offset",
    "result", and "rope_tables": the bytes of `rotation.tables(rope, H)`, which the caller supplies.

    Raises ValueError for shapes that do not fit, UnsupportedError as `copy.plan`.
    """
    if positions is not None and offset is not None:
        raise ValueError("rope takes positions or an offset, not both")
    if x.shape != result.shape or len(x.shape) < 3:
        raise ValueError(f"rope takes x (…, T, N, H) and a result of its shape; got {x.shape} and {result.shape}")
    rotated = rope.rotated(x.shape[-1])
    inputs, coordinates = {"x": x}, {"place": pointwise.coordinate(x.shape, -1)}
    where = "arange"
    if positions is not None:
        where = "positions"
        inputs[where] = _per_row(positions, x.shape, 2)
    else:
        coordinates = {"time": pointwise.coordinate(x.shape, -3), **coordinates}
        if offset is not None:
            where = "offset"
            inputs[where] = _per_row(offset, x.shape, 3)
    pointwise.register(x.dtype)
    pairs, stride = rotated // 2, x.strides[-1]
    step = stride * pairs if rope.style == "half" else stride
    words = [NAME, short_name(x.dtype), short_name(result.dtype), rope.style, where, f"p{pairs}"]
    words += ["inverse"] * inverse
    kernel = pointwise.Pointwise(
        family=NAME,
        name="-".join(words),
        template="array/rope.wgsl",
        result=result,
        inputs=inputs,
        coordinates=coordinates,
        constants=(("PAIRS", pairs), ("style", rope.style), ("where", where), ("inverse", inverse)),
        extra=((Binding(TABLES, "read", "vec2<f32>"), Bytes(TABLES, 0, sum(DIGITS) * pairs * 8)),),
        uncut="place",
        values=(("pair_step", "u32", step & 0xFFFFFFFF),),
    )
    if not math.prod(x.shape):
        return Plan(())
    return pointwise.plan(kernel, profile)


def _per_row(given: Operand, shape: tuple[int, ...], trailing: int) -> Operand:
    """An int32 operand over the leading axes of `shape`, made to fit all of it."""
    if given.dtype != int32:
        raise ValueError(f"rope takes int32 positions; got {given.dtype.name}")
    ones = (1,) * trailing
    spread = Operand(given.dtype, given.shape + ones, given.strides + (0,) * trailing, given.offset)
    return pointwise.broadcast(spread, shape)
