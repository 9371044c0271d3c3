"""Masks as values: the ranges of keys that query rows keep, combined by & and |, never made dense on the device.

Query row i is at position p = i + query_offset. Every mask is defined in terms of p, and its offset is added to p.
Making a mask computes nothing; `mask[rows, columns]` and `mask.dense(T, S)` show it as NumPy bools.
"""

import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np

from ._kernels.attention.problem import EVERY_KEY, Bound, Clause
from ._kernels.kernel import FAR

__all__ = ["Mask", "causal", "chunked", "full", "local", "prefix", "segments"]


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """The keys that each row keeps: those of any of the `clauses` whose segment ids also agree, if there are any.

    Made by the functions of this module. `sources` are the run-time values that bounds add; a bound names its value
    "bound0", "bound1", … Static masks hash and compare by what they keep; run-time values are equal only if they are
    the same object.
    """

    clauses: tuple[Clause, ...] = EVERY_KEY
    sources: tuple[Any, ...] = ()
    segments: tuple[Any, Any] | None = None
    text: str = "full()"
    _union: bool = False

    __array_ufunc__ = None  # so that NumPy leaves & and | to us

    def __repr__(self) -> str:
        return self.text

    def _key(self) -> tuple[Any, ...]:
        return self.clauses, tuple(map(id, self.sources)), tuple(map(id, self.segments or ()))

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Mask) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __and__(self, other: "Mask") -> "Mask":
        """The keys that both masks keep.

        Raises TypeError unless each row keeps one range, or a range and a prefix, and for two masks with segments.
        """
        _check_mask(other)
        pairs = {tuple(map(id, m.segments)) for m in (self, other) if m.segments is not None}
        if len(pairs) > 1:
            raise TypeError(
                f"{self} & {other}: one mask holds one pair of segment ids; give ids that differ where either pair "
                "does, as in segments(a_q * n + b_q, a_kv * n + b_kv)"
            )
        sources, clauses = _joined(self, other)
        mine, theirs = clauses
        text = " & ".join(f"({m})" if m._union else str(m) for m in (self, other) if m.text != "full()") or "full()"
        kept = _union_of([_tightened((*a, *b)) for a in mine for b in theirs], text)
        return _mask(kept, sources, self.segments or other.segments, text)

    def __or__(self, other: "Mask") -> "Mask":
        """The keys that either mask keeps. Raises TypeError unless a row keeps one range, or a range and a prefix."""
        _check_mask(other)
        text = f"{self} | {other}"
        if self == other:
            return self
        if self.segments is not None or other.segments is not None:
            raise TypeError(f"{text}: a union with segments is no range of keys; give a dense bool mask")
        sources, (mine, theirs) = _joined(self, other)
        return replace(_mask(_union_of([*mine, *theirs], text), sources, None, text), _union=True)

    def __bool__(self) -> bool:
        raise TypeError(f"{self} is neither true nor false: join masks with & and |, not with `and` and `or`")

    def __invert__(self) -> "Mask":
        raise TypeError(
            f"~ of {self} is not supported, as it need not be a range of keys: give ~mask.dense(T, S) as mask"
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError(f"{self} has no shape of its own: mask.dense(T, S) gives bools, mask[:T, :S] the same")

    def dense(self, T: int, S: int, query_offset: Any = 0) -> np.ndarray:
        """The mask as bools (T, S), for checks and other libraries; (B, 1, T, S) where a run-time value is (B,).

        Example:
            >>> causal().dense(2, 3).astype(int).tolist()
            [[1, 0, 0], [1, 1, 0]]
        """
        return self._at(np.arange(T), np.arange(S), query_offset)

    def __getitem__(self, index: tuple[int | slice, int | slice]) -> np.ndarray:
        """mask[rows, columns] as bools. Both indices are integers, or slices with a stop, counted from 0."""
        if not isinstance(index, tuple) or len(index) != 2:
            raise IndexError("a mask takes two indices: mask[rows, columns]")
        rows, columns = (_chosen(part) for part in index)
        kept = self._at(np.atleast_1d(rows), np.atleast_1d(columns), 0)
        drop = tuple(axis - 2 for axis, part in enumerate((rows, columns)) if not np.ndim(part))
        return kept.squeeze(drop)

    def _at(self, rows: np.ndarray, columns: np.ndarray, query_offset: Any) -> np.ndarray:
        sources = {f"bound{n}": _column(value) for n, value in enumerate(self.sources)}
        position = rows[:, None] + _column(query_offset)
        kept = np.zeros((1, 1), bool)
        for clause in self.clauses:
            inside = np.ones((len(rows), len(columns)), bool)
            for bound in clause:
                edge = _edge(bound, position, sources)
                inside = inside & (edge <= columns if bound.side == "lower" else columns <= edge)
            kept = kept | inside
        if self.segments is not None:
            asked, stored = (np.asarray(ids) for ids in self.segments)
            same = asked[..., rows, None] == stored[..., None, columns]
            kept = kept & (same if same.ndim == 2 else same[:, None])
        return np.array(np.broadcast_to(kept, np.broadcast_shapes(kept.shape, (len(rows), len(columns)))))


def full() -> Mask:
    """Every key.

    Example:
        >>> full() & causal()
        causal()
    """
    return Mask()


def causal(offset: Any = 0) -> Mask:
    """Keys up to the query's own position: j ≤ p + offset.

    `offset` is an int, or a run-time int32 array of shape () or (B,).

    Example:
        >>> (causal() & local(255, 0)).clauses == local(255, 0).clauses
        True
    """
    upper, sources, shown = _bound("upper", "diagonal", offset)
    return _mask(((upper,),), sources, None, f"causal({'' if shown == '0' else shown})")


def local(left: int, right: int, offset: Any = 0) -> Mask:
    """A window around the query: p + offset - left ≤ j ≤ p + offset + right, both ends included.

    `offset` is as in `causal`. A negative size moves that end to the other side of the query. Raises TypeError for
    sizes that are not integers.

    Example:
        >>> local(1, 0).dense(3, 3).astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    before, after = _integer(left, "local: left"), _integer(right, "local: right")
    lower, sources, shown = _bound("lower", "diagonal", offset, -before)
    upper, _, _ = _bound("upper", "diagonal", offset, after)
    tail = "" if shown == "0" else f", offset={shown}"
    return _mask((_tightened((lower, upper)),), sources, None, f"local({before}, {after}{tail})")


def prefix(n: Any) -> Mask:
    """The first n keys, j < n, in every row. `n` is an int, or a run-time int32 array of shape () or (B,).

    Prefix-LM is `prefix(n) | causal()`.

    Example:
        >>> (prefix(2) | causal()).dense(3, 3).astype(int).tolist()
        [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """
    upper, sources, shown = _bound("upper", "constant", n, -1)
    return _mask(((upper,),), sources, None, f"prefix({shown})")


def chunked(size: int) -> Mask:
    """Keys in the query's own chunk of `size` positions: j // size = p // size.

    Raises TypeError for a size that is not an integer, ValueError for one below 1.

    Example:
        >>> chunked(2).dense(3, 4).astype(int).tolist()
        [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]]
    """
    length = _integer(size, "chunked: size")
    if length < 1:
        raise ValueError(f"chunked takes a size of at least 1; got {length}")
    length = min(length, FAR)
    edges = (Bound("lower", "chunk", length), Bound("upper", "chunk", length))
    return _mask((edges,), (), None, f"chunked({length})")


def segments(q_ids: Any, kv_ids: Any) -> Mask:
    """Keys that have the query's segment id, for packed sequences.

    `q_ids` is int32 (T,) or (B, T) and `kv_ids` int32 (S,) or (B, S), both run-time. The kernel compares ids and skips
    tiles whose ranges of ids do not overlap. Raises TypeError for other arrays.

    Example:
        >>> ids = np.array([0, 0, 1], np.int32); segments(ids, ids).dense(3, 3).astype(int).tolist()
        [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """
    for name, ids in (("q_ids", q_ids), ("kv_ids", kv_ids)):
        if not _is_ints(ids, 1, 2):
            raise TypeError(
                f"segments takes int32 ids (T,) or (B, T), and (S,) or (B, S); {name} is {_named(ids)}: "
                f"give np.asarray({name}, np.int32)"
            )
    return _mask(EVERY_KEY, (), (q_ids, kv_ids), "segments(…)")


def __dir__() -> list[str]:
    return __all__


def bind(mask: Mask) -> tuple[tuple[Clause, ...], tuple[Any, ...], tuple[Any, Any] | None]:
    """The parts of a mask that a call binds: its clauses, the values of "bound0", "bound1", …, and the segment ids."""
    return mask.clauses, mask.sources, mask.segments


def _mask(clauses: Iterable[Clause], sources: tuple[Any, ...], ids: tuple[Any, Any] | None, text: str) -> Mask:
    """A Mask with only the sources that its clauses name, renumbered in order."""
    kept = tuple(clauses)
    used = dict.fromkeys(b.source for clause in kept for b in clause if b.source is not None)
    renamed = {old: f"bound{n}" for n, old in enumerate(used)}
    numbered = tuple(
        tuple(replace(b, source=renamed[b.source]) if b.source is not None else b for b in clause) for clause in kept
    )
    return Mask(numbered, tuple(sources[int(name[5:])] for name in used), ids, text)


def _bound(side: Any, kind: Any, given: Any, addend: int = 0) -> tuple[Bound, tuple[Any, ...], str]:
    """A bound at `given` + addend, the run-time values that it needs, and the text that shows `given`."""
    if _is_ints(given, 0, 1) and not isinstance(given, np.generic):
        return Bound(side, kind, _near(addend), "bound0"), (given,), "…"
    if not hasattr(given, "__index__") or getattr(given, "ndim", 0):
        hint = ": give np.asarray(it, np.int32)" if isinstance(given, list | tuple) else ""
        raise TypeError(f"an offset, or n, is an int or an int32 array () or (B,); got {_named(given)}{hint}")
    number = int(given)
    return Bound(side, kind, _near(number + addend)), (), str(number)


def _integer(given: Any, name: str) -> int:
    try:
        return operator.index(given)
    except TypeError:
        raise TypeError(f"{name} is an integer that is compiled in; got {_named(given)}") from None


def _is_ints(given: Any, *ndims: int) -> bool:
    if not hasattr(given, "dtype") or not hasattr(given, "shape"):
        return False
    return np.dtype(given.dtype).kind in "iu" and len(given.shape) in ndims


def _named(given: Any) -> str:
    if hasattr(given, "dtype") and hasattr(given, "shape"):
        return f"{np.dtype(given.dtype).name} {tuple(given.shape)}"
    return f"a {type(given).__name__}"


def _check_mask(other: object) -> None:
    if not isinstance(other, Mask):
        raise TypeError(
            f"masks join with masks; got {_named(other)}: join a dense bool array with mask.dense(T, S) and give that"
        )


def _near(addend: int) -> int:
    return max(-FAR, min(FAR, addend))


def _joined(a: Mask, b: Mask) -> tuple[tuple[Any, ...], tuple[tuple[Clause, ...], tuple[Clause, ...]]]:
    """The run-time values of both masks without repetition, and both masks' clauses with names for those values."""
    sources = list(a.sources)
    names: dict[str, str] = {}
    for n, value in enumerate(b.sources):
        place = next((i for i, known in enumerate(sources) if known is value), len(sources))
        if place == len(sources):
            sources.append(value)
        names[f"bound{n}"] = f"bound{place}"
    renamed = tuple(
        tuple(replace(x, source=names[x.source]) if x.source is not None else x for x in clause) for clause in b.clauses
    )
    return tuple(sources), (a.clauses, renamed)


def _tightened(clause: Clause) -> Clause:
    """The same range from as few bounds as possible, in canonical order."""
    order = sorted(set(clause), key=lambda b: (b.side, b.kind, b.source or "", b.addend))
    kept = [b for b in order if not any(_implies(other, b) for other in order if other != b)]
    return tuple(kept)


def _implies(a: Bound, b: Bound) -> bool:
    """Whether every key within bound a is certain to be within bound b."""
    if a.side != b.side:
        return False
    if a.kind == "chunk" and b.kind == "chunk":
        return b.addend % a.addend == 0
    if b.kind == "chunk":  # a chunk's edges lie around p
        return a.kind == "diagonal" and a.source is None and (a.addend >= 0 if a.side == "lower" else a.addend <= 0)
    if (a.kind, a.source) != (b.kind, b.source):
        return False
    return a.addend >= b.addend if a.side == "lower" else a.addend <= b.addend


def _within(a: Clause, b: Clause) -> bool:
    """Whether every key that clause a keeps is certain to be kept by b."""
    return all(any(_implies(x, y) for x in a) for y in b)


def _union_of(clauses: list[Clause], text: str) -> tuple[Clause, ...]:
    """The clauses reduced to at most two: one within another is dropped, and two that overlap become one."""
    left = list(dict.fromkeys(clauses))
    while (found := _joinable(left)) is not None:
        a, b, both = found
        left = [*(c for c in left if c not in (a, b, both)), both]
    if len(left) > 2 or (len(left) == 2 and not _range_and_prefix(*left)):
        raise TypeError(
            f"{text} keeps, in some rows, neither one range of keys nor a range and a prefix: give a dense bool mask, "
            "broadcastable to (B, N, T, S)"
        )
    return tuple(sorted(left, key=lambda clause: (any(b.side == "lower" for b in clause), str(clause))))


def _joinable(clauses: list[Clause]) -> tuple[Clause, Clause, Clause] | None:
    """Two of the clauses and the single clause that keeps their union; None if no two have one."""
    for a, b in permutations(clauses, 2):
        both = b if _within(a, b) else _merged(a, b)
        if both is not None:
            return a, b, both
    return None


def _range_and_prefix(a: Clause, b: Clause) -> bool:
    """Whether one of them starts at the first key, or both have the same start."""
    starts = [frozenset(x for x in clause if x.side == "lower") for clause in (a, b)]
    return not all(starts) or starts[0] == starts[1]


def _merged(a: Clause, b: Clause) -> Clause | None:
    """The union of two ranges of static width around the same diagonal, if they overlap or touch."""
    sides = {(n, x.side): x for n, clause in enumerate((a, b)) for x in clause}
    if not (len(a) == len(b) == 2 and len(sides) == 4) or len({(x.kind, x.source) for x in sides.values()}) > 1:
        return None
    if a[0].kind != "diagonal":
        return None
    (low_a, high_a), (low_b, high_b) = ((sides[n, "lower"].addend, sides[n, "upper"].addend) for n in (0, 1))
    if low_a > high_a or low_b > high_b or max(low_a, low_b) > min(high_a, high_b) + 1:
        return None
    lower = replace(sides[0, "lower"], addend=min(low_a, low_b))
    return _tightened((lower, replace(sides[0, "upper"], addend=max(high_a, high_b))))


def _edge(bound: Bound, position: np.ndarray, sources: dict[str, np.ndarray]) -> np.ndarray:
    added = 0 if bound.source is None else sources[bound.source]
    if bound.kind == "chunk":
        start = position // bound.addend * bound.addend
        return start if bound.side == "lower" else start + bound.addend - 1
    edge = bound.addend + added
    return np.asarray(edge) if bound.kind == "constant" else position + edge


def _column(value: Any) -> np.ndarray:
    """A run-time value shaped to broadcast against (rows, columns)."""
    given = np.asarray(value).astype(np.int64)
    return given.reshape(-1, 1, 1, 1) if given.ndim else given


def _chosen(part: int | slice) -> np.ndarray | int:
    if isinstance(part, slice):
        if part.stop is None or min(part.start or 0, part.stop) < 0:
            raise IndexError("a mask has no last row or column: give slices with a stop, from 0 on")
        return np.arange(part.start or 0, part.stop, part.step or 1)
    at = operator.index(part)
    if at < 0:
        raise IndexError(f"a mask has no last row or column to count {at} from")
    return at
