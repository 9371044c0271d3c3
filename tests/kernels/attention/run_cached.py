"""Attention over a cache's storage through a family's plan alone, and the contract's answer to the same call."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from tests.kernels.attention.run_attention import five, operand
from tests.kernels.run_plan import run_plan
from wgattn import _runtime
from wgattn._dtypes import float32
from wgattn._kernels.attention.problem import Bound, Call, describe
from wgattn._kernels.kernel import Operand, natural_strides
from wgattn._kernels.rotation import Rope, tables
from wgattn._reference_cache import blocks, cached_attention, dequantise, gather, quantise, ring_positions

DTYPES = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "i8": np.dtype(np.int8),
    "i4": np.dtype(ml_dtypes.int4),
}


@dataclass(frozen=True, slots=True)
class Cache:
    """Storage (B, C, K, ·), or pools (P, page_size, K, ·): what holds no token, or pads a row, is poisoned."""

    key: np.ndarray
    value: np.ndarray
    scales: np.ndarray | None
    lengths: np.ndarray
    head_dims: tuple[int, int]
    dtype: np.dtype
    pages: np.ndarray | None = None
    ring: int | None = None

    @property
    def page_size(self) -> int | None:
        return None if self.pages is None else self.key.shape[1]


def cache_of(
    dtype: str,
    lengths: list[int],
    C: int,
    *,
    K: int = 2,
    H: int = 32,
    Hv: int | None = None,
    page_size: int | None = None,
    ring: int | None = None,
    shared: int = 0,
    seed: int = 0,
) -> Cache:
    """A cache of unit-normal tokens. Pages lie in any order among unused ones; the first `shared` are of sequence 0."""
    draw, kind, Hv = np.random.default_rng(seed), DTYPES[dtype], Hv or H
    B = len(lengths)
    held = np.asarray(lengths, np.int32)
    positions = ring_positions(held, C, ring) if ring is not None else np.arange(C)
    empty = (positions < 0) | (positions >= held[:, None])
    stored, scales = [], []
    for dim in (H, Hv):
        made, scale = quantise(draw.standard_normal((B, C, K, dim), dtype=np.float32), kind)
        width = made.shape[-1] if dtype == "i4" else -(-dim // 4) * 4
        whole = np.empty((B, C, K, width), made.dtype)
        whole[...] = _poison(made.dtype)
        whole[..., : made.shape[-1]] = made
        whole[empty] = _poison(made.dtype)
        stored.append(whole)
        if scale is not None:
            scale[empty] = np.nan
            scales.append(scale)
    parts = [*stored, *([np.concatenate(scales, -1)] if scales else [])]
    pages = None
    if page_size is not None:
        parts, pages = _paged(parts, held, page_size, shared, draw)
    return Cache(parts[0], parts[1], parts[2] if scales else None, held, (H, Hv), kind, pages, ring)


def _poison(dtype: np.dtype) -> Any:
    return dtype.type(127) if dtype.kind in "iu" else dtype.type(np.nan)


def _paged(
    parts: list[np.ndarray], lengths: np.ndarray, size: int, shared: int, draw: np.random.Generator
) -> tuple[list[np.ndarray], np.ndarray]:
    B, C = parts[0].shape[:2]
    count = C // size
    places = draw.permutation(B * count + 3)
    table = places[: B * count].reshape(B, count).astype(np.int32)
    table[:, :shared] = table[0, :shared]
    table[np.arange(count) * size >= lengths[:, None]] = -1
    pools = []
    for part in parts:
        pool = np.empty((len(places), size, *part.shape[2:]), part.dtype)
        pool[...] = _poison(part.dtype)
        blocks_of = part.reshape(B, count, size, *part.shape[2:])
        for b in reversed(range(B)):
            for page in range(count):
                if table[b, page] >= 0:
                    pool[table[b, page]] = blocks_of[b, page]
        pools.append(pool)
    return pools, table


def run_cached(
    family: ModuleType,
    query: np.ndarray,
    cache: Cache,
    *,
    is_causal: bool = True,
    window: int | None = None,
    bias: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    softcap: float | None = None,
    rope: Rope | None = None,
    sinks: np.ndarray | None = None,
    profile: Any = None,
    kept: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Output and float32 residual of query BTNH, whose last token is the sequence's last; not `kept`, it is all 0."""
    profile = profile or _runtime.current_profile()
    B, T, N, H = query.shape
    Hv = cache.head_dims[1]
    S = cache.key.shape[1] if cache.pages is None else cache.pages.shape[1] * cache.key.shape[1]
    clauses: tuple[tuple[Bound, ...], ...] = ((Bound("upper", "diagonal"),) if is_causal else (),)
    if window is not None:
        clauses = ((Bound("lower", "diagonal", 1 - window), *clauses[0]),)
        if cache.ring:
            clauses = (*clauses, (Bound("upper", "constant", cache.ring - 1), Bound("upper", "diagonal")))
    call = Call(
        clauses=clauses, softcap=softcap, rope=rope, residual=float32 if kept else None, empty="zero",
        page_size=cache.page_size, ring=cache.ring,
    )  # fmt: skip
    given: dict[str, np.ndarray] = {
        "query": five(query),
        "key_value_lengths": cache.lengths,
        "query_offset": (cache.lengths - T).astype(np.int32),
    }
    if cache.pages is not None:
        given["pages"] = cache.pages
    if sinks is not None:
        given["sinks"] = sinks
    operands = {name: operand(array) for name, array in given.items()}
    for name, array, dim in (("key", cache.key, H), ("value", cache.value, Hv), ("scales", cache.scales, None)):
        if array is not None:
            given[name] = array
            operands[name] = _rows(array, B, dim, cache)
    for name, dense in (("bias", bias), ("mask", mask)):
        if dense is not None:
            given[name] = dense
            strides = tuple(0 if n == 1 else s for n, s in zip(dense.shape, natural_strides(dense.shape), strict=True))
            operands[name] = Operand(dense.dtype, (1, B, N, T, S), (0, *strides))
    pitch = Hv + (Hv % 2 if query.dtype.itemsize == 2 else 0)
    operands["out"] = Operand(query.dtype, (1, B, T, N, Hv), natural_strides((1, B, T, N, pitch)))
    if rope is not None:
        given["rope_tables"] = tables(rope, H)
    problem = describe(call, operands)
    support = family.supports(problem, profile)
    assert support, support.reason
    plan = family.plan(problem, call, operands, profile)
    results = {"out": B * T * N * pitch * query.dtype.itemsize} | ({"residual": B * T * N * 4} if kept else {})
    made = run_plan(plan, given, results)
    answer = made["out"].view(query.dtype).reshape(B, T, N, pitch)[..., :Hv]
    return answer, made["residual"].view(np.float32).reshape(B, T, N) if kept else np.zeros((B, T, N), np.float32)


def _rows(array: np.ndarray, B: int, dim: int | None, cache: Cache) -> Operand:
    """Storage on the axes that kernels take: (1, B, S, K, ·), a pool's tokens the same for every entry."""
    width = array.shape[-1] if dim is None or array.dtype == np.uint8 else dim
    *_, K, _ = array.shape
    strides = natural_strides(array.shape)
    if cache.pages is not None:
        return Operand(array.dtype, (1, B, array.shape[0] * array.shape[1], K, width), (0, 0, *strides[1:]))
    return Operand(array.dtype, (1, *array.shape[:-1], width), (0, *strides))


def reference_cached(
    query: np.ndarray, cache: Cache, *, window: int | None = None, profile: Any = None, **options: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The contract's answer: float64 attention over what the cache holds, dequantised."""
    H, Hv = cache.head_dims
    key_scales = value_scales = None
    if cache.scales is not None:
        first = blocks(H, cache.dtype)
        key_scales, value_scales = cache.scales[..., :first], cache.scales[..., first:]
    keys = dequantise(cache.key, key_scales, H, cache.dtype)
    values = dequantise(cache.value, value_scales, Hv, cache.dtype)
    if cache.ring is None:  # dense operands stand in the order of slots, as bias and mask do
        keys, positions = gather(keys, cache.lengths, pages=cache.pages)
    else:
        keys, positions = gather(keys, cache.lengths, ring=cache.ring)
        options["pinned"] = cache.ring
    values, _ = gather(values, cache.lengths, pages=cache.pages, ring=cache.ring)
    result = cached_attention(query, keys, values, cache.lengths, positions=positions, window=window, **options)
    return result.out, result.residual
