"""CacheHandle: a KV cache that stays on wgattn's device, as a few int32 numbers that a JAX program passes round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.custom_batching import custom_vmap

from wgattn._array import Array, apply, asarray
from wgattn._cache import LEAVES, KVCache
from wgattn._cache_form import CacheForm, Sizes
from wgattn._dtypes import float32, int32
from wgattn._errors import UnsupportedError
from wgattn._graph.operations import CacheMove
from wgattn._jit import jit
from wgattn._kernels.rotation import Rope

from ._cache_calls import CachedCall, cache_of
from ._cache_held import STORAGE, Append, Attend, Reorder, hold, release, snapshot
from ._callback import HostCallback, check_backend, operand, run_in_jax, run_in_order
from ._recorded import Avals, avals_of, lowered

ArrayLike = Any


@dataclass(frozen=True, slots=True)
class CacheHandle:
    """A KV cache on wgattn's device, for JAX programs: decoding moves the new tokens' q, k and v alone.

    `array` is int32 (2 + B,): the cache's number, a version, and the length of each sequence. An append gives a new
    handle, behind whose lengths nothing is told of. To use an older one is fine while nothing has been written over
    its tokens: a step may be run again, and a draft taken back. Else, and after `free`, its use raises. A pytree of
    one array: it goes through `jit`, `scan` and `while_loop`; not through `grad`, `vmap` or `checkpoint`.

    Calls have the order that handles give them, each consuming what another gave. With `ordered` they are ordered
    effects of JAX too, as `jax.experimental.io_callback(ordered=True)`: they run where they stand in the program.

    Example:
        >>> cache = wgattn.jax.CacheHandle.create(2, 64, kv_heads=4, head_dim=32)
        >>> kv = jnp.ones((2, 5, 4, 32))
        >>> jax.jit(lambda cache: cache.append(kv, kv))(cache).lengths.tolist()
        [5, 5]
        >>> cache.free()
    """

    array: Any
    form: CacheForm
    sizes: Sizes
    ordered: bool = False

    @classmethod
    def create(cls, *sizes: int, ordered: bool = False, **options: Any) -> CacheHandle:
        """An empty cache that this process keeps until `free`. Takes what `wgattn.KVCache.create` takes.

        `ordered`: this handle's calls, and those of all that come of it, are ordered effects. They cost more, and one
        that fails after JAX has returned fails every later ordered effect of its thread.

        Raises what that raises, and TypeError while JAX traces.
        """
        return cls._hold(KVCache.create(*sizes, **options), ordered)

    @classmethod
    def of(cls, cache: KVCache, *, ordered: bool = False) -> CacheHandle:
        """A handle of what a `wgattn.KVCache` holds, of wgattn's arrays or of JAX's. The cache itself stays as it is.

        `ordered` is that of `create`. Raises TypeError while JAX traces.
        """
        return cls._hold(cache, ordered)

    @classmethod
    def _hold(cls, cache: KVCache, ordered: bool) -> CacheHandle:
        check_backend()
        if isinstance(jnp.zeros(()), Tracer):
            raise TypeError(
                "a cache handle is made outside of what JAX traces: a traced function would make one cache, once, for "
                "all of its calls. Give the handle to the function"
            )
        given = {name: getattr(cache, name) for name in LEAVES}
        arrays = {name: None if x is None else x if isinstance(x, Array) else asarray(x) for name, x in given.items()}
        cache = replace(cache, **arrays)
        lengths = np.asarray(cache.lengths)
        pages = None if cache.pages is None else cache.key.shape[0]
        sizes = Sizes(cache.batch, cache.capacity, cache.kv_heads, pages)
        if cache.pages is not None:  # the table is the host's, whatever made it
            cache = replace(cache, pages=asarray(np.asarray(cache.pages)))
        return cls(jnp.asarray(hold(cache, sizes, lengths)), cache.form, sizes, bool(ordered))

    @property
    def lengths(self) -> jax.Array:
        """int32 (B,): the tokens that each sequence has."""
        return self.array[2:]

    def positions(self, T: int) -> jax.Array:
        """int32 (B, T): where the next T tokens of each sequence will sit."""
        return self.lengths[:, None] + jnp.arange(T, dtype=jnp.int32)

    def append(
        self, key: ArrayLike, value: ArrayLike, lengths: ArrayLike | None = None, *, rope: Rope | None = None
    ) -> CacheHandle:
        """The handle with T more tokens a sequence, written in place; a paged cache is given the pages it needs.

        key (B)TKH, value (B)TKHv, float32, float16 or bfloat16; `lengths` int32 (B,): how many of the T are real.
        `wgattn.KVCache.append` says more.

        Raises ValueError and TypeError for what does not fit, while JAX traces. When it runs, JAX's error with the text
        of a ValueError beyond the capacity, a RuntimeError for a handle that is dead or written over, a DeviceLostError
        for one of a lost device: nothing is written then.
        """
        check_backend()
        rows = [operand(key, "key"), operand(value, "value")]
        rows += [] if lengths is None else [operand(lengths, "lengths")]
        program = _append_program(self.form, self.sizes, rope, avals_of(rows))
        if not rows[0].shape[-3]:
            return self
        (array,) = self._run(program, rows)
        return replace(self, array=array)

    def truncate(self, lengths: int | ArrayLike) -> CacheHandle:
        """The handle of no more than `lengths` tokens a sequence: an int, or int32 (B,). Nothing is called or moved.

        What no longer is there raises when the handle is used next: a ValueError for lengths below 0, a RuntimeError
        for a ring whose tokens before that are overwritten.
        """
        kept = jnp.minimum(self.lengths, jnp.asarray(lengths, jnp.int32))
        return replace(self, array=jnp.concatenate([self.array[:2], kept]))

    def reorder(self, indices: ArrayLike) -> CacheHandle:
        """The handle whose sequence i is this one's sequence indices[i], int32 (B,): a step of beam search.

        Dense storage is copied on the device; paged sequences share pages, which are copied before a write. All handles
        of the cache before this one are dead then. Raises what `append` raises, for indices that are out of range a
        ValueError.

        Example:
            >>> cache = wgattn.jax.CacheHandle.create(2, 64, kv_heads=4, head_dim=32); kv = jnp.ones((2, 5, 4, 32))
            >>> cache = cache.append(kv, kv, jnp.array([5, 2])).reorder(jnp.array([1, 1]))
            >>> cache.lengths.tolist()
            [2, 2]
            >>> cache.free()
        """
        check_backend()
        given = operand(indices, "indices")
        if given.dtype != jnp.int32 or given.shape != (self.sizes.batch,):
            raise ValueError(
                f"reorder takes int32 indices of shape (B,) = ({self.sizes.batch},); got {given.dtype.name} "
                f"{given.shape}: fork gives a handle of another batch"
            )
        (array,) = self._run(_reorder_program(self.form, self.sizes), [given])
        return replace(self, array=array)

    def fork(self, indices: ArrayLike) -> CacheHandle:
        """A handle of a cache of its own, of M sequences: number i goes on where this one's sequence indices[i] is.

        indices int32 (M,). This one goes on too. Raises ValueError for indices that are out of range; TypeError while
        JAX traces, as a loop would leave a cache behind at each turn.

        Example:
            >>> prompt = wgattn.jax.CacheHandle.create(1, 64, kv_heads=4, head_dim=32); kv = jnp.ones((1, 5, 4, 32))
            >>> samples = prompt.append(kv, kv).fork([0, 0, 0])
            >>> samples.lengths.tolist()
            [5, 5, 5]
            >>> samples.free(); prompt.free()
        """
        return self.of(snapshot(self._on_host("fork")).fork(np.asarray(indices)), ordered=self.ordered)

    def cache(self) -> KVCache:
        """What the handle names, as a `wgattn.KVCache`; later appends do not change it. Not while JAX traces."""
        return snapshot(self._on_host("cache"))

    def free(self) -> None:
        """Give the memory back. All handles of the cache are dead then. Waits for this one; not while JAX traces."""
        release(self._on_host("free"))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError(
            "a CacheHandle is no array: np.asarray(handle.lengths) are its lengths, handle.cache() what it names; give "
            "the handle itself to wgattn.jax.append and cached_attention"
        )

    def _run(self, program: HostCallback, arrays: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        """The results of a callback on the cache."""
        given = _plain(self.array, *arrays)
        return run_in_order(program)(*given) if self.ordered else run_in_jax(program, *given)

    def _on_host(self, use: str) -> np.ndarray:
        if isinstance(self.array, Tracer):
            raise TypeError(
                f"{use} of a cache handle is called outside of what JAX traces: return the handle from the traced "
                f"function, and call {use} on that"
            )
        return np.asarray(self.array)

    def __repr__(self) -> str:
        form, sizes = self.form, self.sizes
        dims = f"B={sizes.batch} C={sizes.capacity} K={sizes.kv_heads} H={form.head_dim}"
        return f"CacheHandle({form.dtype.name}, {dims}{', ordered' * self.ordered})"


jax.tree_util.register_dataclass(CacheHandle, ["array"], ["form", "sizes", "ordered"])


def attend_held(handle: CacheHandle, call: CachedCall, operands: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Attention over what a handle names: out, and the residual where it is asked for."""
    program = _attend_program(handle.form, handle.sizes, call, avals_of(operands))
    if 0 in operands[0].shape:
        return tuple(jnp.zeros(aval.shape, aval.dtype) for aval in program.results)
    return handle._run(program, operands)


@lru_cache(maxsize=256)
def _append_program(form: CacheForm, sizes: Sizes, rope: Rope | None, avals: Avals) -> Append:
    own = _avals(form, sizes)

    def append(*arrays: Array) -> tuple[Array, ...]:
        cache = cache_of(tuple(own), arrays[: len(own)], form)
        found = cache.append(*arrays[len(own) :], rope=rope)
        return tuple(x for x in (found.key, found.value, found.scales) if x is not None)

    def copy_pages(*arrays: Array) -> tuple[Array, ...]:
        *pools, source, destination = arrays
        return tuple(apply(CacheMove(True), pool, source, destination) for pool in pools)

    copying = None
    if form.page_size is not None:
        pools = [aval for name, aval in own.items() if name in STORAGE]
        copying = lowered(jit(copy_pages), (*pools, *[((sizes.batch,), np.dtype(int32))] * 2))
    return Append(form, sizes, lowered(jit(append), (*own.values(), *avals)), copying)


@lru_cache(maxsize=256)
def _reorder_program(form: CacheForm, sizes: Sizes) -> Reorder:
    return Reorder(form, sizes)


@lru_cache(maxsize=256)
def _attend_program(form: CacheForm, sizes: Sizes, call: CachedCall, avals: Avals) -> Attend:
    own = _avals(form, sizes)

    def attention(*arrays: Array) -> Any:
        return call.record(cache_of(tuple(own), arrays[: len(own)], form), arrays[len(own) :])

    return Attend(form, sizes, lowered(jit(attention), (*own.values(), *avals)))


def _avals(form: CacheForm, sizes: Sizes) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """The shapes and dtypes of a cache's arrays by name, in the order that it has them."""
    rows, (key, value) = sizes.rows(form), form.dims
    found: dict[str, tuple[tuple[int, ...], np.dtype]] = {
        "key": ((*rows, key), form.storage),
        "value": ((*rows, value), form.storage),
    }
    if form.scale_count:
        found["scales"] = ((*rows, form.scale_count), float32)
    if form.page_size is not None:
        found["pages"] = (sizes.table(form), int32)
    return found | {"lengths": ((sizes.batch,), int32)}


def _plain(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The same arrays. Raises where JAX differentiates or maps them: what a handle names is no value of JAX's."""
    return _unmapped(*arrays)


def _refused(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"a cache handle does not go through {what}: no grad, vmap or checkpoint, as it names memory that is written "
        "in place. Use a cache of JAX arrays there (wgattn.jax.new_cache), or jax.lax.stop_gradient"
    )


@jax.custom_jvp
def _constant(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    return arrays


@_constant.defjvp
def _refuse_jvp(primals: Any, tangents: Any) -> NoReturn:
    raise _refused("grad")


@custom_vmap
def _unmapped(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    return _constant(*arrays)


@_unmapped.def_vmap
def _refuse_vmap(size: int, mapped: Sequence[bool], *arrays: jax.Array) -> NoReturn:
    raise _refused("vmap")
