"""Whole entries of a cache moved: batch entries gathered into a new array, or pages copied within their pool."""

import math
from collections.abc import Iterator

from wgattn._errors import UnsupportedError
from wgattn._kernels.array import pointwise
from wgattn._kernels.kernel import (
    Binding,
    Bytes,
    Launch,
    Operand,
    Parameters,
    Plan,
    Variant,
    bound_bytes,
    fold_workgroups,
)
from wgattn._runtime.profile import DeviceProfile

NAME = "cache_move"
WORKGROUP = 64
WORD = 4


def take(storage: Operand, source: Operand, result: Operand, profile: DeviceProfile) -> Plan:
    """result[m] = storage[source[m]], indices clamped to those there are.

    storage (N, …) and result (M, …) are contiguous, an entry is whole words; source is int32 (M,). Names: "cache",
    "source", "result". Arrays wider than a binding take several launches.
    """
    if 0 in result.shape:
        return Plan(())
    words, alignment = _words(storage), profile.limits.offset_alignment
    indices, first_index = bound_bytes(source, "source", alignment)
    launches = []
    for taken, made, span in _parts(storage.shape[0], result.shape[0], words, profile):
        held, held_at = _bound("cache", storage, taken, span, alignment)
        into, into_at = _bound("result", result, made, span, alignment)
        resources = {"cache": held, "source": indices, "result": into}
        values = {
            "entries": storage.shape[0],
            "words": words,
            "span": len(span),
            "moved": len(made),
            "first_taken": taken.start,
            "taken": len(taken),
            "source_at": first_index + made.start,
            "cache_at": held_at,
            "result_at": into_at,
        }
        launches.append(_launch("take", resources, values, profile))
    return Plan(tuple(launches))


def replace(storage: Operand, source: Operand, destination: Operand, profile: DeviceProfile) -> Plan:
    """storage[destination[m]] = storage[source[m]] where it lies; a pair with an index that is none moves nothing.

    As `take`, with destination int32 (M,): of one call no two are equal, and none is a source. Names: "cache",
    "source", "destination". Raises UnsupportedError for storage wider than a binding.
    """
    if 0 in source.shape or 0 in storage.shape:
        return Plan(())
    words, alignment, limit = _words(storage), profile.limits.offset_alignment, pointwise.binding_limit(profile)
    entries = range(storage.shape[0])
    held, held_at = _bound("cache", storage, entries, range(words), alignment)
    if held.nbytes is not None and held.nbytes > limit:
        raise UnsupportedError(
            f"entries of {held.nbytes:,} bytes in one array are not moved in place: {profile.name} binds {limit:,}"
        )
    sources, source_at = bound_bytes(source, "source", alignment)
    destinations, destination_at = bound_bytes(destination, "destination", alignment)
    resources = {"cache": held, "source": sources, "destination": destinations}
    values = {
        "entries": len(entries),
        "words": words,
        "span": words,
        "moved": source.shape[0],
        "source_at": source_at,
        "destination_at": destination_at,
        "cache_at": held_at,
    }
    return Plan((_launch("replace", resources, values, profile),))


def _words(storage: Operand) -> int:
    """The words of an entry."""
    return math.prod(storage.shape[1:]) * storage.itemsize // WORD


def _parts(entries: int, moved: int, words: int, profile: DeviceProfile) -> Iterator[tuple[range, range, range]]:
    """Entries of storage, of the result, and words of each, that can be bound: together all there are."""
    limit = pointwise.binding_limit(profile) // WORD
    if max(entries, moved) * words <= limit - profile.limits.offset_alignment // WORD:
        yield range(entries), range(moved), range(words)
        return
    limit -= profile.limits.offset_alignment // WORD
    each = max(limit // words, 1)
    for span in _runs(words, limit):
        for taken in _runs(entries, each):
            for made in _runs(moved, each):
                yield taken, made, span


def _runs(count: int, each: int) -> Iterator[range]:
    return (range(first, min(first + each, count)) for first in range(0, count, each))


def _bound(name: str, operand: Operand, entries: range, span: range, alignment: int) -> tuple[Bytes, int]:
    """The bytes that hold the words `span` of `entries`, and the first one's place in them."""
    words = _words(operand)
    first = operand.offset * operand.itemsize // WORD + entries.start * words + span.start
    end = first + (len(entries) - 1) * words + len(span)
    start = first * WORD // alignment * alignment
    return Bytes(name, start, end * WORD - start), first - start // WORD


def _launch(how: str, resources: dict[str, Bytes], values: dict[str, int], profile: DeviceProfile) -> Launch:
    """A thread for each word that may be moved."""
    written = "result" if how == "take" else "cache"
    bindings = tuple(
        Binding(name, "write" if name == written else "read", "u32" if name in ("cache", "result") else "i32")
        for name in resources
    )
    variant = Variant(
        family=NAME,
        name=f"{NAME}-{how}",
        template="array/cache_move.wgsl",
        constants=(("WORKGROUP", WORKGROUP), ("how", how)),
        bindings=bindings,
        parameters=Parameters(tuple((name, "u32") for name in values)),
    )
    groups = -(-values["moved"] * values["span"] // WORKGROUP)
    grid = fold_workgroups(groups, profile.limits.workgroups_per_dimension)
    return Launch(variant, resources, variant.parameters.pack(**values), grid)
