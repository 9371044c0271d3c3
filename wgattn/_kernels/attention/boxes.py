"""A call cut into boxes that a device can bind and finish: batch entries and query rows freely, keys with a merge after.

One box is the rule. More are made where an operand is larger than a binding may be, or where an invocation would loop further than it may.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from wgattn._errors import UnsupportedError
from wgattn._kernels.attention.inputs import Box, bound_bytes, cut
from wgattn._kernels.kernel import Operand
from wgattn._runtime.profile import Limits

CUT_OPERANDS = ("query", "key", "value", "out", "bias", "mask")


@dataclass(frozen=True, slots=True)
class Boxes:
    """The boxes of a call, by range of keys: every range of keys has the same boxes of rows."""

    key_ranges: tuple[tuple[int, int], ...]
    row_boxes: tuple[tuple[tuple[int, int], tuple[int, int], tuple[int, int]], ...]  # ranges of B0, B1 and T

    def over(self, keys: tuple[int, int]) -> tuple[Box, ...]:
        return tuple(Box(b0, b1, t, keys) for b0, b1, t in self.row_boxes)


def cut_to_limits(operands: Mapping[str, Operand], limits: Limits, names: tuple[str, ...], max_keys: int | None = None) -> Boxes:
    """The fewest boxes, by halving, in which every operand in `names` can be bound. Raises UnsupportedError where none are small enough."""
    query, key = operands["query"], operands["key"]
    b0, b1, rows, _, _ = query.shape
    keys = key.shape[2]

    def too_large(n0: int, n1: int, t: int, s: int) -> str | None:
        box = Box((0, n0), (0, n1), (0, t), (0, s))
        for name in names:
            if name in operands and bound_bytes(cut(name, operands[name], box), name, limits.offset_alignment)[0].nbytes > limits.binding_bytes:  # fmt: skip
                return name
        return None

    s_step = keys if max_keys is None else min(keys, max_keys)
    t_step = rows
    while name := too_large(1, 1, t_step, s_step):
        if name in ("key", "value") and s_step > 64:
            s_step = _half(s_step, 64)
        elif name in ("query", "out", "bias", "mask") and t_step > 1:
            t_step = _half(t_step, 64) if t_step > 64 else _half(t_step, 1)
        else:
            raise UnsupportedError(
                f"one row of {name} spans more than the {limits.binding_bytes:,} bytes that this device binds at once; "
                f"make its rows lie closer together (a contiguous copy), or use fewer heads a call"
            )
    b0_step, b1_step = b0, b1
    while too_large(b0_step, b1_step, t_step, s_step):
        if b0_step > 1:
            b0_step = _half(b0_step, 1)
        else:
            b1_step = _half(b1_step, 1)
    return Boxes(
        key_ranges=_ranges(keys, s_step),
        row_boxes=tuple(product(_ranges(b0, b0_step), _ranges(b1, b1_step), _ranges(rows, t_step))),
    )


def _half(size: int, multiple: int) -> int:
    return -(-size // 2 // multiple) * multiple


def _ranges(size: int, step: int) -> tuple[tuple[int, int], ...]:
    return tuple((first, min(first + step, size)) for first in range(0, size, step))
