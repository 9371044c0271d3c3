"""Axes that vmap maps become batch axes of one attention call; an operand that lacks one has stride 0 along it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wgattn._array import Array
from wgattn._functions import broadcast_to

# How many of an operand's last axes are not batch axes. Other operands have one number per batch entry, so 0.
TAILS = {"query": 3, "key": 3, "value": 3, "bias": 3, "mask": 3, "query_segments": 1, "key_segments": 1, "sinks": 1}


@dataclass(frozen=True, slots=True)
class Batching:
    """The sizes of the mapped axes, outermost first, and for each operand which of them it has, in front of its own."""

    sizes: tuple[int, ...]
    mapped: tuple[tuple[bool, ...], ...]

    @classmethod
    def none(cls, operands: int) -> "Batching":
        """Nothing is mapped."""
        return cls((), ((),) * operands)

    def mapped_again(self, size: int, operands: Sequence[bool]) -> "Batching":
        """With one more axis, outermost, which some operands have."""
        return Batching((size, *self.sizes), tuple((new, *old) for new, old in zip(operands, self.mapped, strict=True)))

    def own_shape(self, operand: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """An operand's shape without the mapped axes."""
        return shape[sum(self.mapped[operand]) :]

    def whole(self, operand: int, x: Array) -> Array:
        """An operand with every mapped axis; those that it lacks are broadcast."""
        own, flags = self.own_shape(operand, x.shape), self.mapped[operand]
        if all(flags):
            return x
        counts = tuple(n if has else 1 for n, has in zip(self.sizes, flags, strict=True))
        return broadcast_to(x.reshape((*counts, *own)), (*self.sizes, *own))


@dataclass(frozen=True, slots=True)
class Entries:
    """How many entries an operand has along each mapped axis and B (that axis's size, or 1), and the shape of one."""

    counts: tuple[int, ...]
    tail: tuple[int, ...]


def entries(name: str, own: tuple[int, ...], sizes: Sequence[int], mapped: Sequence[bool]) -> Entries:
    """The entries of an operand. `own` is its shape without mapped axes, and may lack axes on the left."""
    tail = TAILS.get(name, 0)
    padded = (1,) * (tail + 1 - len(own)) + own
    return Entries((*(n if has else 1 for n, has in zip(sizes, mapped, strict=True)), padded[0]), padded[1:])


def split_point(axes: Sequence[int], operands: Mapping[str, Entries]) -> int:
    """How many of the batch axes become B0, the rest becoming B1: the split that copies the fewest elements.

    An operand that has some but not all of the axes that are merged into one has no stride for the result, so it must
    be copied.
    """

    def copied(at: int) -> int:
        parts = slice(0, at), slice(at, None)
        return sum(
            math.prod(axes) * math.prod(x.tail)
            for x in operands.values()
            if any(_mixed(x.counts[part], axes[part]) for part in parts)
        )

    return min(range(len(axes) + 1), key=lambda at: (copied(at), abs(at - len(axes) + 1)))


def merged(x: Array, own: Entries, axes: tuple[int, ...], at: int) -> Array:
    """x as (B0 or 1, B1 or 1, *tail), with the batch axes before and after `at` merged."""
    outer, inner = (
        axes[part] if _mixed(own.counts[part], axes[part]) else own.counts[part]
        for part in (slice(0, at), slice(at, None))
    )
    x = x.reshape((*own.counts, *own.tail))
    whole = (*outer, *inner)
    if whole != own.counts:
        x = broadcast_to(x, (*whole, *own.tail))
    return x.reshape((math.prod(outer), math.prod(inner), *own.tail))


def _mixed(counts: Sequence[int], axes: Sequence[int]) -> bool:
    return len({mine == 1 for mine, size in zip(counts, axes, strict=True) if size > 1}) > 1
