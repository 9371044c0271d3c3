"""Caches that stay on wgattn's device while a JAX program passes their handles round. Nothing here uses jax.

A handle holds (id, version, length of each sequence), int32. An append writes the positions from these lengths on, so
that one that is repeated writes the same again, and gives a version that never was. Handles that an append has written
over are known by their versions, and refused.
"""

import itertools
import secrets
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import ref

import numpy as np

from wgattn import _run
from wgattn._array import Array, asarray, of
from wgattn._cache import KVCache
from wgattn._cache_checks import check_capacity, check_counts, check_indices, check_pages
from wgattn._cache_form import CacheForm, Sizes
from wgattn._cache_pages import dealt, has_room, learn_room, released
from wgattn._dtypes import int32
from wgattn._errors import DeviceLostError
from wgattn._graph.graph import Aval, View
from wgattn._graph.operations import Input
from wgattn._known import known
from wgattn._record import Stored, leaf
from wgattn._trace import Traced

from ._callback import HostCallback, result_avals

VERSIONS = 1024  # of a cache that are known: an append may be repeated from so far back
STORAGE = ("key", "value", "scales")
Rewrite = Callable[[list[Stored], frozenset[int]], list[Stored]]

_numbers = itertools.count(1 + secrets.randbelow(1 << 30))  # another process's handles are not taken for this one's
_held: "dict[int, Held]" = {}


@dataclass(slots=True)
class Held:
    """A cache, the lengths up to which each version's tokens are there still, and what was ever written of a ring."""

    cache: KVCache
    sizes: Sizes
    versions: dict[int, np.ndarray]
    written: np.ndarray
    newest: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self, number: int, version: int, lengths: np.ndarray) -> None:
        """Raise RuntimeError for a handle whose tokens are not there any more, ValueError for lengths below 0."""
        there = self.versions.get(version)
        if (lengths < 0).any():
            raise ValueError(
                f"a handle was truncated to lengths {lengths.tolist()}, and they are at least 0: go on with the handle "
                "before that"
            )
        if there is None or (lengths > there).any():
            raise RuntimeError(
                f"this handle is an older version of cache {number}: (version {version}, lengths {lengths.tolist()}); "
                f"the newest has lengths {self.newest_lengths.tolist()}. What it named has been written over, or is "
                f"more than {VERSIONS} appends ago: go on with the handle that the last append gave, and give each "
                "line of appends a cache of its own"
            )

    def check_ring(self, number: int, lengths: np.ndarray, written: np.ndarray) -> None:
        """Raise RuntimeError where a ring to which so much was written has lost tokens that these lengths see."""
        if self.cache.form.ring is None:
            return
        spare = self.cache.form.spare(self.sizes.capacity)
        if ((written > self.sizes.capacity) & (written - lengths > spare)).any():
            raise RuntimeError(
                f"this handle is an older version of cache {number}, a ring: lengths {lengths.tolist()}, where "
                f"{written.tolist()} tokens were written and the last {spare} can be taken back. Use what attention "
                "gives before the next append, or create the cache with more capacity"
            )

    def appended(self, version: int, before: np.ndarray, after: np.ndarray) -> int:
        """The version of the tokens up to `after`, written behind `before` of `version`."""
        while (later := next(reversed(self.versions))) != version:
            del self.versions[later]
        if (before < self.versions[version]).any():  # taken back first: so for the versions before it
            self.versions = {v: np.minimum(there, before) for v, there in self.versions.items()}
        self.newest += 1
        self.versions[self.newest] = after
        if len(self.versions) > VERSIONS:
            del self.versions[next(iter(self.versions))]
        self.written = np.maximum(self.written, after)
        return self.newest

    def reordered(self, indices: np.ndarray, lengths: np.ndarray) -> int:
        """The version of what is there once sequences have moved; all others are dead."""
        self.newest += 1
        self.versions, self.written = {self.newest: lengths}, self.written[indices]
        return self.newest

    def rewrite(self, run: Rewrite) -> None:
        """Replace the storage by what `run` makes of it, which may write over the arrays that nobody else holds."""
        names = [name for name in STORAGE if getattr(self.cache, name) is not None]
        arrays = [getattr(self.cache, name) for name in names]
        there = [_run.stored(x._step, x._result) for x in arrays]
        avals, steps = [x._aval for x in arrays], [ref(x._step) for x in arrays]
        arrays.clear()
        self.cache = replace(self.cache, **dict.fromkeys(names))  # snapshots, and what is computed of them, hold steps
        alone = [i for i, step in enumerate(steps) if step() is None and not there[i].shared]
        try:
            there = run(there, frozenset(alone))
        finally:
            arrays += [of(leaf(stored, aval)) for stored, aval in zip(there, avals, strict=True)]
            self.cache = replace(self.cache, **dict(zip(names, arrays, strict=True)))

    @property
    def newest_lengths(self) -> np.ndarray:
        return next(reversed(self.versions.values()))


def hold(cache: KVCache, sizes: Sizes, lengths: np.ndarray) -> np.ndarray:
    """The first handle of a cache, which is kept until `release`."""
    number = next(_numbers)
    written = lengths if cache.written is None else np.maximum(lengths, np.asarray(cache.written))
    _held[number] = Held(cache, sizes, {0: lengths}, written)
    return np.array([number, 0, *lengths], np.int32)


def release(handle: np.ndarray) -> None:
    """Forget a cache; its memory is free when what runs is done."""
    _held.pop(int(handle[0]), None)


def snapshot(handle: np.ndarray) -> KVCache:
    """What a handle names, as a value: while it is there, the next append copies."""
    held, lengths = _find(handle), handle[2:]
    with held.lock:
        held.check(int(handle[0]), int(handle[1]), lengths)
        held.check_ring(int(handle[0]), lengths, held.written)
        written = None if held.cache.form.window is None else asarray(held.written)
        return replace(held.cache, lengths=asarray(lengths), written=written)


def _find(handle: np.ndarray) -> Held:
    held = _held.get(int(handle[0]))
    if held is None:
        raise RuntimeError(
            f"the cache of this handle, number {int(handle[0])}, is not there: it was freed, or another process made "
            "it. wgattn.jax.CacheHandle.create makes one"
        )
    return held


class OnHeld(HostCallback):
    """A callback on the cache of a handle, which is its first argument."""

    effect = True

    def __init__(self, form: CacheForm, sizes: Sizes) -> None:
        self._form, self._sizes = form, sizes

    def _run(self, arrays: Sequence[np.ndarray], places: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        handle = arrays[0].copy()
        held = _find(handle)
        with held.lock:
            if (held.cache.form, held.sizes) != (self._form, self._sizes):
                raise ValueError(
                    f"this handle is that of another cache, {held.cache!r}, and not of the one that JAX traced this "
                    "call for: keep a handle's array with its own form and sizes"
                )
            held.check(int(handle[0]), int(handle[1]), handle[2:])
            try:
                return self._on(held, handle, arrays[1:], places)
            except DeviceLostError as error:
                raise DeviceLostError(
                    f"cache {int(handle[0])} was on a device that is lost, and its tokens with it: make another with "
                    f"wgattn.jax.CacheHandle.create, and append them again. {error}"
                ) from error

    @abstractmethod
    def _on(
        self, held: Held, handle: np.ndarray, given: Sequence[np.ndarray], places: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, ...]:
        """The results; `held` is locked, and the handle is one of its versions."""


class Reorder(OnHeld):
    """Sequences moved, or written over by others. Gives the one handle that names what is there then."""

    def __init__(self, form: CacheForm, sizes: Sizes) -> None:
        super().__init__(form, sizes)
        self.results = (Aval((2 + sizes.batch,), int32),)

    def _on(
        self, held: Held, handle: np.ndarray, given: Sequence[np.ndarray], places: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, ...]:
        number, before, indices = int(handle[0]), handle[2:], given[0]
        check_indices(self._sizes.batch, indices)
        held.check_ring(number, before, held.written)
        moved = replace(held.cache, lengths=asarray(before)).reorder(indices)
        for array in moved._arrays().values():
            _run.stored(array._step, array._result)
        # `written` is counted by `held`: what is recorded of it is never computed
        held.cache = replace(moved, written=held.cache.written)
        return (np.array([number, held.reordered(indices, before[indices]), *before[indices]], np.int32),)


class OnTraced(OnHeld):
    """A callback that runs `traced`: it takes the cache's arrays, `lengths` the last of them, then the arguments."""

    def __init__(self, form: CacheForm, sizes: Sizes, traced: Traced) -> None:
        super().__init__(form, sizes)
        self._traced = traced

    def _inputs(self, cache: KVCache, given: Sequence[np.ndarray]) -> list[Stored | np.ndarray]:
        """The program's inputs: arrays on the device, then NumPy arrays. Raises what the call's checks raise."""
        own = list(cache._arrays().values())
        values = [known(x._step, x._result) for x in own] + list(given)
        self._traced.host.run(lambda i: values[i])
        stored = [_run.stored(x._step, x._result) for x in own[:-1]]
        captured = [_run.stored(step, result) for step, result in self._traced.captured]
        return [*stored, np.asarray(cache.lengths), *given, *captured]


class Append(OnTraced):
    """New tokens written behind a handle's. Gives the handle that names them too."""

    def __init__(self, form: CacheForm, sizes: Sizes, traced: Traced, copying: Traced | None) -> None:
        super().__init__(form, sizes, traced)
        self._copying = copying  # of a paged cache: pages of the storage copied, from int32 (B,) to int32 (B,)
        self.results = (Aval((2 + sizes.batch,), int32),)

    def _on(
        self, held: Held, handle: np.ndarray, given: Sequence[np.ndarray], places: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, ...]:
        number, version, before = int(handle[0]), int(handle[1]), handle[2:]
        key, _, *counted = given
        tokens = key.shape[-3]
        counts = counted[0] if counted else np.full(len(before), tokens, np.int32)
        check_counts(tokens, counts)
        after = before + counts
        held.check_ring(number, after, np.maximum(held.written, after))
        pages = self._room(held, before, counts)
        inputs = self._inputs(replace(held.cache, lengths=asarray(before), pages=pages), given)

        def written(storage: list[Stored], alone: frozenset[int]) -> list[Stored]:
            rest = [x if isinstance(x, Stored) else _run.upload(x) for x in inputs[len(storage) :]]
            return self._traced.run([*storage, *rest], alone, _run.validating())

        held.rewrite(written)
        held.cache = replace(held.cache, pages=pages)
        return (np.array([number, held.appended(version, before, after), *after], np.int32),)

    def _room(self, held: Held, before: np.ndarray, counts: np.ndarray) -> Array | None:
        """The page table with pages for so many more tokens behind these lengths; shared ones are copied."""
        pages, page_size = held.cache.pages, self._form.page_size
        if pages is None or page_size is None:
            return None
        table, count = known(pages._step, pages._result), held.cache.key.shape[0]
        assert table is not None
        kept = released(table, before, page_size) if (before < held.newest_lengths).any() else table
        if has_room(kept, before, counts, page_size, count):
            return pages
        check_capacity(counts, self._sizes.capacity, before)
        check_pages(kept, count)
        plan = dealt(kept, before, counts, page_size, count)
        if np.array_equal(plan.table, table):
            learn_room(table, before, page_size, count)
            return pages
        if plan.copies:
            copying = self._copying
            assert copying is not None
            pairs = [_run.upload(plan.source), _run.upload(plan.destination)]
            held.rewrite(lambda storage, alone: copying.run([*storage, *pairs], alone, False))
        return asarray(plan.table)


class Attend(OnTraced):
    """Attention over what a handle names."""

    def __init__(self, form: CacheForm, sizes: Sizes, traced: Traced) -> None:
        super().__init__(form, sizes, traced)
        inputs = {n.operation.index: n.avals[0] for n in traced.graph.nodes if isinstance(n.operation, Input)}
        self.results = result_avals(traced, tuple(inputs[i] for i in range(traced.arguments)))
        self._programs: dict[tuple[View, ...], Any] = {}

    def _on(
        self, held: Held, handle: np.ndarray, given: Sequence[np.ndarray], places: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, ...]:
        held.check_ring(int(handle[0]), handle[2:], held.written)
        inputs = self._inputs(replace(held.cache, lengths=asarray(handle[2:])), given)
        if _run.validating():
            there = [x if isinstance(x, Stored) else _run.upload(x) for x in inputs]
            found = self._traced.run(there, frozenset(), True)
            return tuple(
                _run.download(x.buffer, x.view, aval.dtype) for x, aval in zip(found, self.results, strict=True)
            )
        layouts = tuple(x.view if isinstance(x, Stored) else View.natural(x.shape) for x in inputs)
        program = self._programs.get(layouts)
        if program is None:
            program = self._programs[layouts] = _run.executable(self._traced.graph_for(layouts))
        flat = [x.buffer if isinstance(x, Stored) else x for x in inputs]
        return tuple(program.run_on_host(flat, dict(enumerate(places))))
