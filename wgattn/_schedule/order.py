"""The order of steps: as recorded, but for small copies, which move forward so that dispatches share passes."""

from collections.abc import Sequence

from wgattn._kernels.kernel import Copy

from .values import Step

SMALL = 1 << 16  # bytes; a larger copy stays, since moving it would keep its memory longer


def gather_copies(steps: Sequence[Step]) -> list[Step]:
    """`steps` with every small copy behind the earliest other copy it may follow, or at the front."""
    ordered: list[Step] = []
    for step in steps:
        place = len(ordered)
        if isinstance(step.planned, Copy) and (step.planned.source.nbytes or SMALL) < SMALL:
            first = _earliest(ordered, step)
            copies = (at + 1 for at in range(first, len(ordered)) if isinstance(ordered[at].planned, Copy))
            place = 0 if first == 0 and not _starts_with_copies(ordered) else next(copies, len(ordered))
        ordered.insert(place, step)
    return ordered


def _starts_with_copies(ordered: Sequence[Step]) -> bool:
    return bool(ordered) and isinstance(ordered[0].planned, Copy)


def _earliest(ordered: Sequence[Step], step: Step) -> int:
    """The first place where all that `step` reads is written, and nothing touches what it writes any more."""
    reads = {value for value, how in step.uses() if how == "read"}
    writes = {value for value, how in step.uses() if how == "write"}
    for at in reversed(range(len(ordered))):
        for value, how in ordered[at].uses():
            beside = how == "write" and isinstance(ordered[at].planned, Copy)  # another part of the same buffer
            if (how == "write" and value in reads) or (value in writes and not beside):
                return at + 1
    return 0
