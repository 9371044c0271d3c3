"""What a cache refuses, told from lengths and page tables that the host knows: at once, or at every jitted call."""

from collections.abc import Sequence
from weakref import ref

import numpy as np

from ._cache_form import CacheForm
from ._cache_pages import has_room, learn_room, touched


def check_counts(tokens: int, counts: np.ndarray) -> None:
    if ((counts < 0) | (counts > tokens)).any():
        raise ValueError(
            f"append: lengths say how many of the {tokens} new tokens are real, 0 to {tokens}; got {counts.tolist()}"
        )


def check_appended(tokens: int, limit: int, lengths: np.ndarray, counts: np.ndarray | None = None) -> None:
    if counts is None and max(lengths.tolist(), default=0) + tokens <= limit:
        return
    check_capacity(np.full(len(lengths), tokens) if counts is None else counts, limit, lengths)


def check_capacity(counts: np.ndarray, limit: int | None, lengths: np.ndarray, caller: str = "append") -> None:
    if limit is None:
        return
    over = lengths + counts > limit
    if over.any():
        b = int(np.flatnonzero(over)[0])
        asked = "given" if caller == "append" else "asked for"
        raise ValueError(
            f"{caller}: sequence {b} holds {lengths[b]} tokens, {counts[b]} more are {asked}, and the capacity is "
            f"{limit}: create the cache with more, truncate it first, or give it a window"
        )


class TableCheck:
    """`check_pages` for a pool of so many pages: a table that is the one before is not looked through again."""

    __slots__ = ("_pages", "_seen")

    def __init__(self, pages: int) -> None:
        self._pages, self._seen = pages, _nothing

    def __call__(self, table: np.ndarray) -> None:
        if self._seen() is not table:
            check_pages(table, self._pages)
            self._seen = ref(table)


def check_written(
    tokens: int, page_size: int, pages: int, table: np.ndarray, lengths: np.ndarray, counts: np.ndarray | None = None
) -> None:
    """What a jitted append needs of the page table: pages of its own for new tokens, of a pool of so many.

    Of a table that stays only the lengths are looked at from call to call.
    """
    if has_room(table, lengths, tokens if counts is None else counts, page_size, pages):
        return
    check_pages(table, pages)
    check_room(table, lengths, np.full(len(lengths), tokens) if counts is None else counts, page_size, pages)
    learn_room(table, lengths, page_size, pages)


def _nothing() -> None:
    """A reference to nothing."""


def check_not_negative(lengths: np.ndarray) -> None:
    if (lengths < 0).any():
        raise ValueError(f"truncate takes lengths of at least 0; got {lengths.tolist()}")


def check_ring_left(capacity: int, spare: int, most: np.ndarray, kept: np.ndarray) -> None:
    lost = (most > capacity) & (most - kept > spare)
    if lost.any():
        b = int(np.flatnonzero(lost)[0])
        raise ValueError(
            f"truncate: sequence {b} of a ring had {most[b]} tokens and can lose {spare} of them, as older ones are "
            f"overwritten; got {kept[b]}: create the cache with more capacity"
        )


def check_ring_seen(form: CacheForm, T: int, capacity: int, given: Sequence[str], *values: np.ndarray) -> None:
    """Raise ValueError where the first of T queries sees tokens that a ring had and has no more."""
    found = dict(zip(given, values, strict=True))
    lengths, window = found["lengths"], form.window or 0
    most = np.maximum(lengths, found.get("written", 0))
    offset = np.broadcast_to(found.get("offset", lengths - T), lengths.shape)
    first = np.maximum(offset - window + 1, form.pinned)
    lost = (most > capacity) & (first < most - (capacity - form.pinned))
    if lost.any():
        b = int(np.flatnonzero(lost)[0])
        raise ValueError(
            f"cached_attention: query 0 of sequence {b} sits at {offset[b]} and sees tokens from {first[b]} on; the "
            f"cache's ring had {most[b]} tokens and holds those from {most[b] - (capacity - form.pinned)} on: attend "
            "before more are appended, truncate less, or create it with more capacity"
        )


def check_indices(batch: int, indices: np.ndarray) -> None:
    if ((indices < 0) | (indices >= batch)).any():
        raise ValueError(f"indices name sequences 0 to {batch - 1}; got {indices.tolist()}")


def check_pages(table: np.ndarray, pages: int) -> None:
    """Raise ValueError for a table that names a page outside the pool."""
    outside = (table < -1) | (table >= pages)
    if outside.any():
        b, n = np.argwhere(outside)[0]
        raise ValueError(
            f"the page table points outside: entry ({b}, {n}) is {table[b, n]}, and there are {pages} pages, 0 to "
            f"{pages - 1}, and -1 for none"
        )


def check_room(table: np.ndarray, lengths: np.ndarray, counts: np.ndarray, page_size: int, pages: int) -> None:
    """Raise ValueError where new tokens have no page, or one that another sequence has too."""
    b, n = touched(lengths, counts, page_size)
    page = table[b, n]
    most = int(counts.max(initial=0))
    if (page < 0).any():
        raise ValueError(
            f"append: sequence {b[page < 0][0]} has no page for its new tokens: call cache.reserve({most}) before the "
            "jitted function, which deals pages out on the host"
        )
    written = np.zeros(pages + 1, bool)  # the last one is where -1 looks
    written[page] = True
    if np.count_nonzero(written[table]) > np.count_nonzero(written):
        shared = np.bincount(table[table >= 0])[page] > 1
        raise ValueError(
            f"append: sequence {b[shared][0]} shares the page that its new tokens go to: call cache.reserve({most}) "
            "before the jitted function, which copies shared pages"
        )
