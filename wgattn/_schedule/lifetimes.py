"""Which values share a slot: those that are never alive together. What a step reads and what it writes are."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from wgattn._kernels.kernel import Texture

from .values import Step, Value


@dataclass(frozen=True, slots=True)
class Slots:
    """For each value its slot (None: no step touches it), and each slot's size: bytes or a texture."""

    of: tuple[int | None, ...]
    sizes: tuple[int | Texture, ...]


def assign_slots(
    values: Sequence[Value], steps: Sequence[Step], outputs: Collection[int], donated: Collection[int]
) -> Slots:
    """A slot for every value. `outputs` live to the end, inputs and constants throughout but for those in `donated`.

    A scratch value takes the smallest free slot that holds it, or else makes the largest free one larger. An output
    takes a free slot of exactly its size, or a donated one at least as large: none keeps more memory than it needs.
    """
    first, last = _spans(values, steps)
    sizes: list[int | Texture] = []
    of: list[int | None] = [None] * len(values)
    free: list[int] = []
    fixed: set[int] = set()  # slots whose size is the caller's

    def place(number: int) -> None:
        fit = _fitting(
            values[number],
            [s for s in free if number not in outputs or s in fixed or sizes[s] == values[number].nbytes],
            sizes,
            fixed,
        )
        if fit is None:
            of[number] = len(sizes)
            sizes.append(values[number].texture or values[number].nbytes)
            return
        of[number] = fit
        free.remove(fit)
        size = sizes[fit]
        if not isinstance(size, Texture):
            sizes[fit] = max(size, values[number].nbytes)

    for number, value in enumerate(values):
        if not value.made:
            place(number)
            if value.argument is not None:
                fixed.add(len(sizes) - 1)
                if number in donated and number not in last and number not in outputs:
                    free.append(len(sizes) - 1)
    starts, ends = _by_step(first), _by_step(last)
    for at in range(len(steps)):
        for number in starts.get(at, ()):
            if values[number].made:
                place(number)
        for number in ends.get(at, ()):
            slot = of[number]
            if slot is not None and number not in outputs and (values[number].made or number in donated):
                free.append(slot)
    for number in outputs:
        if of[number] is None:
            place(number)
    return Slots(tuple(of), tuple(sizes))


def _fitting(value: Value, free: Sequence[int], sizes: Sequence[int | Texture], fixed: Collection[int]) -> int | None:
    if value.texture is not None:
        return next((slot for slot in free if sizes[slot] == value.texture), None)
    if not value.made:
        return None
    buffers = [(size, slot) for slot in free if isinstance(size := sizes[slot], int)]
    large = [found for found in buffers if found[0] >= value.nbytes]
    if large:
        return min(large)[1]
    return max((found for found in buffers if found[1] not in fixed), default=(0, None))[1]


def _spans(values: Sequence[Value], steps: Sequence[Step]) -> tuple[dict[int, int], dict[int, int]]:
    """The first and the last step that touches each value."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, step in enumerate(steps):
        for number, _ in step.uses():
            first.setdefault(number, at)
            last[number] = at
    return first, last


def _by_step(spans: dict[int, int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number, at in spans.items():
        found.setdefault(at, []).append(number)
    return found
