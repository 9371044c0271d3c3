"""What attention may read as key and value: floats, types that only store, pools of pages, rings."""

from collections.abc import Mapping

from wgattn._dtypes import FLOATS, float32
from wgattn._kernels.attention.problem import Call
from wgattn._kernels.stored import scale_count

from .cache_rules import STORED
from .graph import Aval, describe


def check_storage(call: Call, given: Mapping[str, Aval], dims: tuple[int, int]) -> None:
    """What caches add: types that only store, with scales where they need them, and rings."""
    key, value = given["key"], given["value"]
    for name in ("query", "key", "value"):
        known = FLOATS if name == "query" else STORED
        if given[name].dtype not in known:
            raise TypeError(f"attention: {name} must not be {given[name].dtype.name}")
    counts = tuple(scale_count(x.dtype, dim) for x, dim in zip((key, value), dims, strict=True))
    if any(counts) and key.dtype != value.dtype:
        raise TypeError(f"attention: key {key.dtype.name} and value {value.dtype.name} must be quantised alike")
    if "scales" in given or any(counts):
        right = Aval((*key.shape[:-1], sum(counts)), float32)
        scales = given.get("scales")
        if not any(counts):
            raise TypeError(f"attention: keys and values of {key.dtype.name} take no scales")
        if scales is None or (scales.shape, scales.dtype) != (right.shape, float32):
            was = "none" if scales is None else describe(scales)
            raise ValueError(f"attention: keys and values of {key.dtype.name} need scales {describe(right)}; got {was}")
    if call.page_size is None and call.ring is None:
        return
    if "key_value_lengths" not in given or call.empty != "zero":
        raise ValueError("attention: paged and ring caches need key_value_lengths, and rows without keys that are zero")
    if call.ring is not None:
        beside = [name for name in ("bias", "mask", "key_segments", "pages") if name in given]
        if beside:
            raise ValueError(f"attention: a ring of keys takes no {' and no '.join(beside)}: its slots move")
        if not 0 <= call.ring < key.shape[-3]:
            raise ValueError(f"attention: a ring of {key.shape[-3]} slots cannot keep {call.ring} tokens pinned")


def check_pages(page_size: int, given: Mapping[str, Aval]) -> int:
    """The keys that a sequence's pages have room for."""
    pages, query = given.get("pages"), given["query"]
    if page_size < 8 or page_size & (page_size - 1):
        raise ValueError(f"attention: page_size must be a power of two and at least 8; got {page_size}")
    for name in ("key", "value", "scales"):
        shape = given[name].shape if name in given else (0, page_size, 0, 0)
        if len(shape) != 4 or shape[1] != page_size:
            raise ValueError(f"attention: {name} must be a pool (P, page_size = {page_size}, K, ·); got {shape}")
    if pages is None or pages.ndim != 2 or query.ndim != 4 or pages.shape[0] not in (1, query.shape[0]):
        was = "none" if pages is None else describe(pages)
        raise ValueError(f"attention: a paged call of query {query.shape} needs pages int32 (B, ·); got {was}")
    return pages.shape[1] * page_size
