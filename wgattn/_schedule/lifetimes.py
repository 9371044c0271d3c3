"""Which values share a slot: those that are never alive together. What a step reads and what it writes are."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from wgattn._kernels.kernel import Texture

from .values import Step, Value


@dataclass(slots=True)
class Slots:
    """For each value its slot (None: no step touches it), and each slot's size: bytes or a texture."""

    of: list[int | None]
    sizes: list[int | Texture] = field(default_factory=list)


def assign_slots(
    values: Sequence[Value], steps: Sequence[Step], outputs: Collection[int], donated: Collection[int]
) -> Slots:
    """A slot for every value. `outputs` live to the end, inputs and constants throughout but for those in `donated`.

    A scratch value takes the smallest free slot that holds it, or else makes the largest free one larger. An output
    takes a free slot of exactly its size, or a donated one at least as large: none keeps more memory than it needs.
    """
    first, last = _spans(steps)
    slots = Slots([None] * len(values))
    free: set[int] = set()
    donated_bytes: dict[int, int] = {}  # of slots whose size is the caller's: how much of them may be written

    def place(number: int) -> None:
        slot = _fitting(values[number], number in outputs, slots, free, donated_bytes)
        if slot is None:
            slot = len(slots.sizes)
            slots.sizes.append(values[number].texture or values[number].nbytes)
        free.discard(slot)
        slots.of[number] = slot
        size = slots.sizes[slot]
        if not isinstance(size, Texture):
            slots.sizes[slot] = max(size, values[number].nbytes)

    def release(number: int) -> None:
        slot = slots.of[number]
        if slot is not None and number not in outputs and (values[number].made or number in donated):
            free.add(slot)

    for number, value in enumerate(values):
        if not value.made:
            slots.of[number] = len(slots.sizes)
            slots.sizes.append(value.nbytes)
            if number in donated:
                donated_bytes[len(slots.sizes) - 1] = value.reusable
                if number not in last:
                    release(number)
    for at, step in enumerate(steps):
        touched = sorted({number for number, _ in step.uses()})
        for number in touched:
            if first[number] == at and values[number].made:
                place(number)
        for number in touched:
            if last[number] == at:
                release(number)
    for number in outputs:
        if slots.of[number] is None:
            place(number)
    return slots


def _fitting(
    value: Value, output: bool, slots: Slots, free: Collection[int], donated_bytes: dict[int, int]
) -> int | None:
    """The free slot that a value takes, if any."""
    if value.texture is not None:
        return min((slot for slot in free if slots.sizes[slot] == value.texture), default=None)
    room = {slot: donated_bytes.get(slot, size) for slot in free if isinstance(size := slots.sizes[slot], int)}
    large = [(size, slot) for slot, size in room.items() if size >= value.nbytes]
    if output:
        large = [(size, slot) for size, slot in large if slot in donated_bytes or size == value.nbytes]
    if large:
        return min(large)[1]
    growing = [] if output else [(size, slot) for slot, size in room.items() if slot not in donated_bytes]
    return max(growing, default=(0, None))[1]


def _spans(steps: Sequence[Step]) -> tuple[dict[int, int], dict[int, int]]:
    """The first and the last step that touches each value."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, step in enumerate(steps):
        for number, _ in step.uses():
            first.setdefault(number, at)
            last[number] = at
    return first, last
