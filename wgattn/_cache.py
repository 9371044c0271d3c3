"""KVCache: keys and values on the device, a value that appends give anew. What the host must know, it knows."""

from __future__ import annotations  # jaxtyping is for readers and type checkers: it loads too much for an import

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ._array import Array, apply, asarray, bounded, broadcast, elementwise, of
from ._bind import per_entry, rope_of
from ._cache_bind import new_rows, new_tokens
from ._cache_checks import (
    check_appended,
    check_capacity,
    check_counts,
    check_indices,
    check_not_negative,
    check_pages,
    check_ring_left,
    check_written,
)
from ._cache_form import CacheForm, integer, made
from ._cache_pages import dealt, has_room, learn_room, released
from ._dtypes import float32, int32
from ._graph.graph import Aval
from ._graph.operations import CacheAppend, CacheMove
from ._kernels.rotation import Rope
from ._known import known, require
from ._record import Dead, current_trace, leaf, record
from ._tree import register, tree_class

if TYPE_CHECKING:
    from jaxtyping import Float, Int

ArrayLike = Any  # what asarray takes: NumPy, JAX, DLPack, numbers
ARRAYS = ("key", "value", "scales", "pages", "lengths")
LEAVES = (*ARRAYS, "written")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KVCache:
    """Keys and values of B sequences on the device, each of its own length. Made by `KVCache.create`.

    A functional value: `append` and the like give a new cache and leave this one as it is. A pytree of Arrays, so it
    goes through `wgattn.jit`; donated there (`donate_argnums`) it is written in place, else it is copied. One token
    more compiles nothing.

    Its storage, which no user needs: `key` (B, C, K, ·) and `value`, or pools of pages (pages, page_size, K, ·) that
    `pages` int32 (B, C / page_size) deals to sequences, -1 for none; `scales` float32 of int8 and int4; `lengths`; and
    of a window cache `written`, the lengths that were truncated: what they wrote over is gone.

    Example:
        >>> cache = wgattn.KVCache.create(2, 64, kv_heads=4, head_dim=32)
        >>> cache = cache.append(np.ones((2, 5, 4, 32), np.float32), np.ones((2, 5, 4, 32), np.float32))
        >>> np.asarray(cache.lengths).tolist()
        [5, 5]
    """

    key: Any
    value: Any
    scales: Any
    pages: Any
    lengths: Any  # int32 (B,): the tokens that each sequence has; those that a ring ever had
    form: CacheForm
    written: Any = None  # int32 (B,), of a ring: the most tokens that a sequence had when it was truncated

    @classmethod
    def create(
        cls,
        batch: int,
        capacity: int,
        kv_heads: int,
        head_dim: int,
        v_head_dim: int | None = None,
        *,
        dtype: Any = np.float16,
        layout: Literal["dense", "paged"] = "dense",
        page_size: int | None = None,
        pages: int | None = None,
        window: int | None = None,
        pinned: int = 0,
    ) -> KVCache:
        """An empty cache for `batch` sequences of up to `capacity` tokens each.

        Args:
            batch, capacity, kv_heads, head_dim: B, C, K and H; `v_head_dim` is Hv, H unless given.
            dtype: float32, float16 or bfloat16; float8_e4m3fn or float8_e5m2 (saturating casts); int8, with one float32
                scale a token and head; or int4, in blocks of 32 values with a scale each. Queries have their own dtype.
            layout: "dense" has C slots a sequence. "paged" has a pool of `pages` pages (B · C / page_size unless given)
                of `page_size` tokens (a power of two from 8 on, 32 unless given), which sequences may share; capacity
                is rounded up to whole pages.
            window: keep the newest `window` tokens, each query's own among them, and the first `pinned` ones: C slots
                are a ring, and lengths may pass C. Attention then sees these tokens alone.

        Raises ValueError and TypeError for numbers that do not fit; no device is needed.

        Example:
            >>> wgattn.KVCache.create(1, 100, 8, 128, dtype="int4", layout="paged")
            KVCache(int4, B=1 C=128 K=8 H=128, paged: 4 pages of 32)
        """
        form, sizes = made(
            batch, capacity, kv_heads, head_dim, v_head_dim, dtype, layout, page_size, pages, window, pinned
        )
        register()
        rows, scales = sizes.rows(form), form.scale_count
        key, value = (_zeros((*rows, dim), form.storage) for dim in form.dims)
        return cls(
            key,
            value,
            _zeros((*rows, scales), float32) if scales else None,
            None if form.page_size is None else asarray(np.full(sizes.table(form), -1, np.int32)),
            asarray(np.zeros(sizes.batch, np.int32)),
            form,
            None if form.ring is None else asarray(np.zeros(sizes.batch, np.int32)),
        )

    @property
    def batch(self) -> int:
        """B, the sequences."""
        return self.lengths.shape[0]

    @property
    def capacity(self) -> int:
        """C, the tokens that a sequence has room for; of a window cache, its slots."""
        return self.key.shape[1] * (1 if self.pages is None else self.pages.shape[1])

    @property
    def kv_heads(self) -> int:
        """K."""
        return self.key.shape[2]

    @property
    def head_dim(self) -> int:
        """H, of keys."""
        return self.form.head_dim

    @property
    def v_head_dim(self) -> int:
        """Hv, of values."""
        return self.form.v_head_dim

    @property
    def dtype(self) -> np.dtype:
        """What the cache holds."""
        return self.form.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the storage on the device."""
        return sum(array.nbytes for array in self._arrays().values())

    def __repr__(self) -> str:
        form = self.form
        dims = f"H={form.head_dim}" + f" Hv={form.v_head_dim}" * (form.v_head_dim != form.head_dim)
        text = f"KVCache({form.dtype.name}, B={self.batch} C={self.capacity} K={self.kv_heads} {dims}"
        if form.page_size is not None:
            text += f", paged: {self.key.shape[0]} pages of {form.page_size}"
        if form.window is not None:
            text += f", window={form.window}" + f" pinned={form.pinned}" * (form.pinned > 0)
        return text + ")"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError(
            "a KVCache is no array: np.asarray(cache.lengths) are its lengths, key and value its storage; give the "
            "cache itself to wgattn.nn.cached_attention"
        )

    def append(
        self,
        key: Float[Array, "*B T K H"] | ArrayLike,
        value: Float[Array, "*B T K Hv"] | ArrayLike,
        lengths: Int[Array, " B"] | ArrayLike | None = None,
        *,
        rope: Rope | None = None,
    ) -> KVCache:
        """The cache with T more tokens a sequence: cast, or quantised, to its dtype, in one dispatch.

        Args:
            key, value: BTKH, or TKH where the cache has one sequence; float32, float16 or bfloat16.
            lengths: int32 (B,), run-time: how many of the T tokens of each sequence are real, the first ones.
            rope: rotates the keys, as `wgattn.nn.rope` does, at the positions where they come to lie.

        Outside jit a paged cache is given the pages that it needs; inside, call `reserve` before the function.

        Raises ValueError for shapes that do not fit, for tokens beyond the capacity and for a page that is not there or
        shared, and RuntimeError for a donated cache: nothing is written then. Lengths that the host does not know
        (computed on the device from floats) are not checked; tokens beyond the capacity are then dropped.

        Example:
            >>> cache = wgattn.KVCache.create(2, 64, kv_heads=4, head_dim=32)
            >>> kv = np.ones((2, 3, 4, 32), np.float32)
            >>> np.asarray(cache.append(kv, kv, lengths=np.array([3, 1], np.int32)).lengths).tolist()
            [3, 1]
        """
        self._alive()
        rows = new_rows(self, key, value)
        tokens = rows[0].shape[1]
        if rope is not None:
            rope_of(rope).rotated(self.head_dim)
        counts = None if lengths is None else per_entry(lengths, "lengths", self.batch, scalar=False)
        if counts is not None:
            require(partial(check_counts, tokens), counts)
        if not tokens:
            return self
        cache = self
        if (limit := self._limit()) is not None:
            require(partial(check_appended, tokens, limit), self.lengths, *([] if counts is None else [counts]))
        if self.pages is not None:
            if current_trace() is None:
                cache = self._reserved(tokens if counts is None else _on_host(counts), "append")
            else:
                pages, page_size = self.key.shape[:2]
                told = [self.pages, self.lengths, *([] if counts is None else [counts])]
                require(partial(check_written, tokens, page_size, pages), *told)
        return cache._appended(rows, counts, rope)

    def positions(self, T: int) -> Int[Array, "B T"]:
        """int32 (B, T): where the next T tokens of each sequence will sit, for `wgattn.nn.rope` before `append`.

        Example:
            >>> np.asarray(wgattn.KVCache.create(2, 64, 4, 32).positions(3)).tolist()
            [[0, 1, 2], [0, 1, 2]]
        """
        return self._alive().lengths[:, None] + np.arange(integer(T, "T"), dtype=np.int32)

    def truncate(self, lengths: int | Int[Array, " B"] | ArrayLike) -> KVCache:
        """The cache with no more than `lengths` tokens a sequence: an int, or int32 (B,), run-time. Nothing is copied.

        What a speculative decode does with tokens that were refused. Outside jit, pages without a token are free again.

        Raises ValueError for negative lengths, and of a ring whose tokens before that are overwritten.

        Example:
            >>> kv = np.ones((1, 5, 4, 32), np.float32)
            >>> cache = wgattn.KVCache.create(1, 64, 4, 32).append(kv, kv).truncate(3)
            >>> np.asarray(cache.lengths).tolist()
            [3]
        """
        self._alive()
        kept = per_entry(lengths, "lengths", self.batch)
        require(check_not_negative, kept)
        shorter = self._with(lengths=elementwise("minimum", self.lengths, kept))
        if self.written is not None:
            most = elementwise("maximum", self.lengths, self.written)
            spare = self.form.spare(self.capacity)
            require(partial(check_ring_left, self.capacity, spare), most, shorter.lengths)
            shorter = replace(shorter, written=most)
        if self.pages is None or current_trace() is not None:
            return shorter
        assert self.form.page_size is not None
        table = released(_on_host(self.pages), _on_host(shorter.lengths), self.form.page_size)
        return replace(shorter, pages=asarray(table))

    def reorder(self, indices: Int[Array, " B"] | ArrayLike) -> KVCache:
        """The cache whose sequence i is this one's sequence indices[i], int32 (B,), run-time: a step of beam search.

        Dense storage is copied. Of a paged cache the table alone changes: sequences share pages until they write.

        Raises ValueError for indices that are out of range, or not B.

        Example:
            >>> kv = np.ones((2, 3, 4, 32), np.float32)
            >>> cache = wgattn.KVCache.create(2, 64, 4, 32).append(kv, kv, lengths=np.array([3, 1], np.int32))
            >>> np.asarray(cache.reorder([1, 1]).lengths).tolist()
            [1, 1]
        """
        self._alive()
        if np.shape(indices) != (self.batch,):
            raise ValueError(
                f"reorder takes one index a sequence: shape (B,) = ({self.batch},); got {np.shape(indices)}: "
                "fork gives a cache of another batch"
            )
        return self.fork(indices)

    def fork(self, indices: Int[Array, " M"] | ArrayLike) -> KVCache:
        """A cache of M sequences: number i goes on where this one's sequence indices[i] is. int32 (M,), run-time.

        Many samples of one prompt are `cache.fork([0] * M)`; paged, they share the prompt's pages, and `append` copies
        a page that is shared before it writes into it.

        Raises ValueError for indices that are out of range.

        Example:
            >>> cache = wgattn.KVCache.create(1, 64, 4, 32, layout="paged", pages=8)
            >>> cache.fork([0, 0, 0])
            KVCache(float16, B=3 C=64 K=4 H=32, paged: 8 pages of 32)
        """
        self._alive()
        source = asarray(indices)
        if source.dtype != int32 or source.ndim != 1 or not source.size:
            raise ValueError(f"indices are int32 (M,), at least one; got {source.dtype.name} {source.shape}")
        require(partial(check_indices, self.batch), source)
        kept = ("key", "value", "scales") if self.pages is not None else ()  # sequences share the pool
        moved = {name: getattr(self, name) for name in LEAVES if name not in kept}
        return self._with(**{name: apply(CacheMove(), x, source) for name, x in moved.items() if x is not None})

    def reserve(self, tokens: int | Int[np.ndarray, " B"] | ArrayLike) -> KVCache:
        """The cache with pages for `tokens` more tokens a sequence, an int or (B,), that no other sequence has.

        For a paged cache, before a jitted function that appends as many. Shared pages that would be written are copied.
        Others come back as they are.

        Raises ValueError beyond the capacity, and where no page is free; TypeError while a function is traced.

        Example:
            >>> cache = wgattn.KVCache.create(1, 64, 4, 32, layout="paged", pages=8)
            >>> np.asarray(cache.reserve(40).pages).tolist()
            [[0, 1]]
        """
        self._alive()
        return self._reserved(tokens, "reserve")

    def _reserved(self, tokens: int | ArrayLike, caller: str) -> KVCache:
        counts = new_tokens(tokens, self.batch)
        if self.pages is None:
            require(partial(check_capacity, counts, self._limit(), caller=caller), self.lengths)
            return self
        if current_trace() is not None and (known(*_goal(self.pages)) is None or known(*_goal(self.lengths)) is None):
            raise TypeError(
                "reserve deals pages out on the host, where a traced cache is not known: call it before the jitted "
                "function, with as many tokens as that appends"
            )
        assert self.form.page_size is not None
        page_size, pages = self.form.page_size, self.key.shape[0]
        lengths, table = _on_host(self.lengths), _on_host(self.pages)
        if has_room(table, lengths, counts, page_size, pages):
            return self
        check_capacity(counts, self._limit(), lengths, caller)
        check_pages(table, pages)
        plan = dealt(table, lengths, counts, page_size, pages)
        if np.array_equal(plan.table, table):
            learn_room(table, lengths, page_size, pages)
            return self
        changed = {"pages": asarray(plan.table)}
        if plan.copies:
            pairs = asarray(plan.source), asarray(plan.destination)
            pools = {name: array for name, array in self._arrays().items() if name in ("key", "value", "scales")}
            changed |= {name: apply(CacheMove(True), pool, *pairs) for name, pool in pools.items()}
        return self._with(**changed)

    def _appended(self, rows: tuple[Array, Array], counts: Array | None, rope: Rope | None) -> KVCache:
        operands = self._arrays() | {"new_key": rows[0], "new_value": rows[1]}
        if counts is not None:
            operands["counts"] = counts
        operation = CacheAppend(tuple(operands), self.form.ring, rope)
        step = record(operation, [_goal(array) for array in operands.values()])
        results = {name: of(step, number) for number, name in enumerate(operation.results)}
        bounded(results["key"])
        return self._with(**results)

    def _with(self, **changed: Array) -> KVCache:
        """The cache with other arrays. Small ones that it keeps are its own: they live on where this one is donated."""
        small = {name: getattr(self, name) for name in ("pages", "lengths", "written") if name not in changed}
        return replace(self, **{name: of(*_goal(x)) for name, x in small.items() if x is not None}, **changed)

    def _arrays(self) -> dict[str, Array]:
        """The Arrays by name, in the order that operations take them."""
        found = {name: getattr(self, name) for name in ARRAYS}
        return {name: array for name, array in found.items() if array is not None}

    def _alive(self) -> KVCache:
        """This cache. Raises RuntimeError for one that was donated, TypeError for one of other arrays."""
        for array in self._arrays().values():
            if not isinstance(array, Array):
                raise TypeError(
                    f"this KVCache holds arrays of type {type(array).__name__}, not wgattn's: wgattn.jax.append, "
                    "truncate and cached_attention take it in JAX programs; jax.tree.map(wgattn.asarray, cache) makes "
                    "it wgattn's"
                )
            value = array._step.values[array._result]
            if isinstance(value, Dead):
                raise RuntimeError(value.reason.replace("this Array", "this KVCache", 1))
        return self

    def _limit(self) -> int | None:
        """The tokens that a sequence can have; a ring has no end."""
        return self.capacity if self.form.ring is None else None


tree_class(KVCache, LEAVES, ("form",))


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Zeros that are made on the device."""
    return broadcast(of(leaf(np.zeros((), dtype), Aval((), dtype))), shape)


def _goal(array: Array) -> Any:
    return array._step, array._result


def _on_host(array: Array) -> np.ndarray:
    """An int array's value: what the host knows, or else read back."""
    value = known(*_goal(array))
    return np.asarray(array) if value is None else value
