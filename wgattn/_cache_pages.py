"""A page table on the host: where new tokens fall, free pages dealt out, shared ones copied before a write."""

from dataclasses import dataclass
from itertools import repeat
from operator import add, le
from weakref import ref

import numpy as np


@dataclass(frozen=True, slots=True)
class Dealt:
    """A table with room for new tokens, and the pages to be copied for it: pairs of -1 copy nothing."""

    table: np.ndarray  # int32 (B, pages a sequence)
    source: np.ndarray  # int32 (B,)
    destination: np.ndarray

    @property
    def copies(self) -> bool:
        return bool((self.source >= 0).any())


@dataclass(frozen=True, slots=True)
class _Room:
    """Of a table, the tokens from `first` to `end` of each sequence that lie in pages which no other has."""

    table: ref[np.ndarray]
    sizes: tuple[int, int]
    first: list[int]
    end: list[int]


_rooms: dict[int, _Room] = {}  # by the table's id


def touched(lengths: np.ndarray, counts: np.ndarray, page_size: int) -> tuple[np.ndarray, np.ndarray]:
    """The table entries that `counts` tokens after `lengths` fall into: sequences, and which page of each."""
    first = lengths // page_size
    spans = np.where(counts > 0, (lengths + counts - 1) // page_size - first + 1, 0)
    sequence = np.repeat(np.arange(len(lengths)), spans)
    start = np.repeat(np.cumsum(spans) - spans - first, spans)
    return sequence, np.arange(len(sequence)) - start


def dealt(table: np.ndarray, lengths: np.ndarray, counts: np.ndarray, page_size: int, pages: int) -> Dealt:
    """The table with pages for `counts` more tokens a sequence, none of them shared. Raises ValueError without a page.

    Of a shared page that holds tokens the last sequence to write keeps it, and the others get copies. Where no page is
    free, those past all tokens are taken back: a jitted truncate leaves such.
    """
    named = table[table >= 0]
    uses = np.bincount(named, minlength=pages)
    source, destination = np.full((2, len(lengths)), -1, np.int32)
    found = table.copy()
    wanted = [
        (b, n)
        for b, n in zip(*touched(lengths, counts, page_size), strict=True)
        if table[b, n] < 0 or uses[table[b, n]] > 1
    ]
    free = iter(np.flatnonzero(uses == 0))
    for b, n in wanted:
        page = table[b, n]
        if page >= 0 and uses[page] == 1:
            continue
        new = next(free, None)
        if new is None:
            shorter = released(table, lengths + counts, page_size)
            if (shorter != table).any():
                return dealt(shorter, lengths, counts, page_size, pages)
            raise ValueError(
                f"a page for sequence {b} is needed and none of the {pages} is free: create the cache with more pages, "
                "or free some by truncate or by leaving out sequences with fork"
            )
        if page >= 0:
            uses[page] -= 1
            if n * page_size < lengths[b]:
                source[b], destination[b] = page, new
        found[b, n] = new
    return Dealt(found, source, destination)


def released(table: np.ndarray, lengths: np.ndarray, page_size: int) -> np.ndarray:
    """The table without the pages that hold no token."""
    return np.where(np.arange(table.shape[1]) * page_size < lengths[:, None], table, -1).astype(np.int32)


def has_room(table: np.ndarray, lengths: np.ndarray, counts: np.ndarray | int, page_size: int, pages: int) -> bool:
    """Whether it is known of this table, from before, that `counts` more tokens fall into pages that no other has."""
    found = _rooms.get(id(table))
    if found is None or found.table() is not table or found.sizes != (page_size, pages):
        return False
    starts = lengths.tolist()
    ends = map(add, starts, repeat(counts) if isinstance(counts, int) else counts.tolist())
    return all(map(le, found.first, starts)) and all(map(le, ends, found.end))


def learn_room(table: np.ndarray, lengths: np.ndarray, page_size: int, pages: int) -> None:
    """Keep, while this table is there, from where to where each sequence has pages for itself about its last token."""
    first, end = own_pages(table, lengths // page_size, pages)
    number = id(table)
    gone = ref(table, lambda _: _rooms.pop(number, None))
    _rooms[number] = _Room(gone, (page_size, pages), (first * page_size).tolist(), (end * page_size).tolist())


def own_pages(table: np.ndarray, at: np.ndarray, pages: int) -> tuple[np.ndarray, np.ndarray]:
    """The pages from `first` to `end` about number `at` of each sequence that it has for itself, of a pool of so many.

    Of one whose page there is another's too, or none, `end` is `at`.
    """
    uses = np.bincount(table[table >= 0], minlength=pages)
    own = (table >= 0) & (uses[table] == 1)
    number, at = np.arange(table.shape[1]), at[:, None]
    first = np.where(own | (number > at), -1, number).max(1, initial=-1) + 1
    return first, np.where(own | (number < at), len(number), number).min(1, initial=len(number))
