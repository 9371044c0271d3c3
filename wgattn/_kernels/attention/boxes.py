"""A call cut into boxes that a device can bind and finish: of batch, heads and rows; of keys, with a merge after.

One box is the rule. More are made where an operand is larger than a binding may be, where an invocation would loop
further than it may, or where one dispatch would hold the device for so long that its driver gives it up.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product

from wgattn._errors import UnsupportedError
from wgattn._kernels.kernel import Operand, bound_bytes
from wgattn._runtime.profile import Limits

Span = tuple[int, int]
Fits = Callable[[str, Operand], bool]
WORK = "work"


@dataclass(frozen=True, slots=True)
class Box:
    """Half-open ranges of B0, B1, N, T and S."""

    b0: Span
    b1: Span
    n: Span
    t: Span
    s: Span

    def size(self, axis: str) -> int:
        first, end = getattr(self, axis)
        return end - first

    @property
    def batch(self) -> int:
        return self.size("b0") * self.size("b1")


# The axes of an operand that a box cuts; query, out, key, value and scales have their elements behind them.
_AXES = {
    "query": ("b0", "b1", "t", "n"),
    "out": ("b0", "b1", "t", "n"),
    "key": ("b0", "b1", "s", "k"),
    "value": ("b0", "b1", "s", "k"),
    "scales": ("b0", "b1", "s", "k"),
    "bias": ("b0", "b1", "n", "t", "s"),
    "mask": ("b0", "b1", "n", "t", "s"),
}


POOLED = ("key", "value", "scales")


def cut(name: str, operand: Operand, box: Box, group: int, pooled: bool = False) -> Operand:
    """The part of an operand that a box touches; of `pooled` keys, whose pages lie anywhere, every token."""
    shape, offset = list(operand.shape), operand.offset
    for axis, letter in enumerate(_AXES[name]):
        if letter == "s" and pooled and name in POOLED:
            continue
        first, end = (box.n[0] // group, -(-box.n[1] // group)) if letter == "k" else getattr(box, letter)
        offset += first * operand.strides[axis]
        shape[axis] = end - first
    return Operand(operand.dtype, tuple(shape), operand.strides, offset)


def whole(operands: Mapping[str, Operand], keys: int | None = None) -> Box:
    """The box of a whole call; `keys` is S where key is a pool."""
    b0, b1, rows, heads, _ = operands["query"].shape
    return Box((0, b0), (0, b1), (0, heads), (0, rows), (0, operands["key"].shape[2] if keys is None else keys))


def cut_to_limits(
    operands: Mapping[str, Operand],
    limits: Limits,
    max_keys: int | None = None,
    partial_row_bytes: int = 0,
    splits: int = 1,
    whole_groups: bool = False,
    fits: Fits | None = None,
    most_work: int | None = None,
    pooled_keys: int | None = None,
) -> tuple[tuple[Box, ...], tuple[Span, ...]]:
    """Boxes of rows (each over all keys) and ranges of keys, by halving, so that every operand can be bound.

    `partial_row_bytes` are the bytes of partial sums a part of the keys, query row and head; they are written where
    there is more than one part, each range of keys being `splits` of them. `whole_groups` keeps the query heads of a
    key/value head in one box; `fits` says whether a part of an operand can be given to the kernel, if not by what can
    be bound; `most_work` is how many multiplications a box should have; `pooled_keys` is S where key and value are
    pools. Raises UnsupportedError where no box is small enough to be bound.
    """
    all_of = whole(operands, pooled_keys)
    pooled = pooled_keys is not None
    group = operands["query"].shape[3] // operands["key"].shape[3]
    step = replace(all_of, s=(0, min(all_of.s[1], max_keys or all_of.s[1])))
    can = fits or (lambda name, part: binds(part, limits))
    for name in POOLED if pooled else ():
        if name in operands and not can(name, operands[name]):
            raise UnsupportedError(
                f"the pool of {name} pages has {_nbytes(operands[name]):,} bytes, more than this device gives to a "
                f"kernel at once (bindings of {limits.binding_bytes:,} bytes); use fewer pages, or several caches"
            )
    while (
        name := _too_large(operands, step, group, limits, partial_row_bytes, splits, all_of.s[1], can, pooled)
        or _too_long(operands, step, most_work)
    ) is not None:
        axis = _longest_axis(
            operands.get(name), _AXES.get(name, ("b0", "b1", "n", "t")), step, group, group if whole_groups else 1
        )
        if axis is None and name == WORK:
            break
        if axis is None:
            raise UnsupportedError(
                f"one row of {name} spans more than the {limits.binding_bytes:,} bytes that this device binds at once; "
                f"make its rows lie closer together (a contiguous copy), or use fewer heads a call"
            )
        size = step.size(axis)
        # Whole tiles where there are many: a multiple of 64 rows or keys.
        multiple = 64 if axis in ("t", "s") and size > 64 else group if axis == "n" and size > group else 1
        half = -(-size // 2 // multiple) * multiple
        if axis == "n" and size <= group:  # an equal share of a group, so that no box has parts of two
            half = max(share for share in range(1, half + 1) if group % share == 0)
        step = replace(step, **{axis: (0, half)})
    spans = {axis: _spans(all_of.size(axis), step.size(axis)) for axis in ("b0", "b1", "n", "t", "s")}
    rows = product(*(spans[axis] for axis in ("b0", "b1", "n", "t")))
    return tuple(Box(b0, b1, n, t, all_of.s) for b0, b1, n, t in rows), spans["s"]


def binds(operand: Operand, limits: Limits) -> bool:
    """Whether one binding reaches all that an operand touches."""
    return _nbytes(operand, limits.offset_alignment) <= limits.binding_bytes


def _nbytes(operand: Operand, alignment: int = 4) -> int:
    """The bytes that a binding of an operand spans."""
    span, _ = bound_bytes(operand, "", alignment)
    return span.nbytes or 0


def _too_large(
    operands: Mapping[str, Operand],
    box: Box,
    group: int,
    limits: Limits,
    partial_row_bytes: int,
    splits: int,
    keys: int,
    fits: Fits,
    pooled: bool,
) -> str | None:
    for name in operands.keys() & _AXES.keys():
        if not fits(name, cut(name, operands[name], box, group, pooled)):
            return name
    parts = -(-keys // box.size("s")) * splits
    rows = box.batch * box.size("n") * box.size("t")
    return "partial" if parts > 1 and parts * rows * partial_row_bytes > limits.binding_bytes else None


def _too_long(operands: Mapping[str, Operand], box: Box, most_work: int | None) -> str | None:
    dims = operands["query"].shape[4] + operands["value"].shape[4]
    work = box.batch * box.size("n") * box.size("t") * box.size("s") * dims
    return WORK if most_work is not None and work > most_work else None


def _longest_axis(operand: Operand | None, letters: tuple[str, ...], box: Box, group: int, heads: int) -> str | None:
    """The axis whose halving shortens an operand's span most; for sums and work, the longest but for the keys.

    The longest too for rows that are broadcast along all axes: a kernel that copies them has as many as there are.
    """
    spans, counts = {}, {}
    for axis, letter in enumerate(letters):
        cuts, least = ("n", max(heads, group)) if letter == "k" else (letter, heads if letter == "n" else 1)
        if box.size(cuts) > least:
            counts[cuts] = (-(-box.size(cuts) // group) if letter == "k" else box.size(cuts)) - 1
            spans[cuts] = counts[cuts] * (1 if operand is None else abs(operand.strides[axis]))
    reach = spans if any(spans.values()) else counts
    return max(reach, key=lambda cuts: reach[cuts]) if any(reach.values()) else None


def _spans(size: int, step: int) -> tuple[Span, ...]:
    return tuple((first, min(first + step, size)) for first in range(0, size, step))
