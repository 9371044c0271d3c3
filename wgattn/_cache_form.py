"""What is static in a KV cache: its sizes and types, checked when it is made, and the shapes of its storage."""

import operator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ._dtypes import bfloat16, float8_e4m3fn, float8_e5m2, float16, float32, int4, int8, named, uint8
from ._kernels.kernel import FAR
from ._kernels.stored import row_size, scale_count

DTYPES = (float32, float16, bfloat16, int8, float8_e4m3fn, float8_e5m2, int4)
PAGE_SIZE = 32  # tokens a page, unless told


@dataclass(frozen=True, slots=True)
class CacheForm:
    """The static numbers of a cache; what is in its arrays is not repeated here."""

    head_dim: int
    v_head_dim: int
    dtype: np.dtype  # of the values; int4 where storage holds two a byte
    page_size: int | None = None
    window: int | None = None
    pinned: int = 0

    @property
    def storage(self) -> np.dtype:
        return uint8 if self.dtype == int4 else self.dtype

    @property
    def ring(self) -> int | None:
        """The pinned tokens of a cache whose other slots go round; None where tokens stay where they are."""
        return None if self.window is None else self.pinned

    def spare(self, capacity: int) -> int:
        """How many of its newest tokens a ring can lose and still hold a whole window."""
        return capacity - self.pinned - (self.window or 0)

    @property
    def dims(self) -> tuple[int, int]:
        """The elements of a stored row of key and of value."""
        return row_size(self.storage, self.head_dim), row_size(self.storage, self.v_head_dim)

    @property
    def scale_count(self) -> int:
        """The scales of a token's head, those of the key first."""
        return scale_count(self.storage, self.head_dim) + scale_count(self.storage, self.v_head_dim)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many of what a new cache holds."""

    batch: int
    capacity: int
    kv_heads: int
    pages: int | None  # of its pool

    def rows(self, form: CacheForm) -> tuple[int, int, int]:
        """The axes of storage in front of its rows."""
        if form.page_size is None:
            return self.batch, self.capacity, self.kv_heads
        assert self.pages is not None
        return self.pages, form.page_size, self.kv_heads

    def table(self, form: CacheForm) -> tuple[int, int]:
        assert form.page_size is not None
        return self.batch, self.capacity // form.page_size


def made(
    batch: Any,
    capacity: Any,
    kv_heads: Any,
    head_dim: Any,
    v_head_dim: Any,
    dtype: Any,
    layout: Literal["dense", "paged"],
    page_size: Any,
    pages: Any,
    window: Any,
    pinned: Any,
) -> tuple[CacheForm, Sizes]:
    """The form and sizes that `KVCache.create` is asked for. Raises ValueError and TypeError for what does not fit."""
    sizes = {"batch": batch, "capacity": capacity, "kv_heads": kv_heads, "head_dim": head_dim}
    B, C, K, H = (_count(value, name) for name, value in sizes.items())
    Hv = H if v_head_dim is None else _count(v_head_dim, "v_head_dim")
    paged = _paged(layout, page_size, pages, window)
    kept = integer(pinned, "pinned")
    if kept and window is None:
        raise ValueError(f"pinned is the number of first tokens that a window cache keeps; got {kept}, window={window}")
    if paged:
        size = PAGE_SIZE if page_size is None else _count(page_size, "page_size")
        if size < 8 or size & (size - 1):
            raise ValueError(f"page_size must be a power of two and at least 8; got {size}: {PAGE_SIZE} is usual")
        C = -(-C // size) * size
        count = B * C // size if pages is None else _count(pages, "pages")
        return CacheForm(H, Hv, dtype_of(dtype), size), Sizes(B, C, K, count)
    ring = None if window is None else _count(window, "window")
    if ring is not None and kept + ring > C:
        raise ValueError(
            f"capacity {C} does not hold a window of {ring} tokens and {kept} pinned ones: give at least "
            f"{kept + ring}, and as many more as the longest chunk that is attended at once, less one"
        )
    return CacheForm(H, Hv, dtype_of(dtype), None, ring, kept), Sizes(B, C, K, None)


def dtype_of(given: Any) -> np.dtype:
    """The type a cache holds. Raises TypeError for one that it cannot."""
    known = ", ".join(dtype.name for dtype in DTYPES)
    try:
        dtype = np.dtype(given)
    except TypeError:
        raise TypeError(f"the dtype of a cache is one of {known}; got {given!r}") from None
    if dtype not in DTYPES:
        raise TypeError(f"the dtype of a cache is one of {known}; got {named(given)}")
    return dtype


def _paged(layout: str, page_size: Any, pages: Any, window: Any) -> bool:
    if layout not in ("dense", "paged"):
        raise ValueError(f'layout is "dense" or "paged"; got {layout!r}')
    if layout == "dense" and (page_size is not None or pages is not None):
        raise ValueError('page_size and pages are for layout="paged": give that, or leave them out')
    if layout == "paged" and window is not None:
        raise ValueError('a window cache is a ring of slots and has no pages: leave window out, or use layout="dense"')
    return layout == "paged"


def _count(given: Any, name: str) -> int:
    return integer(given, name, 1)


def integer(given: Any, name: str, least: int = 0) -> int:
    """A number of tokens, or of what holds them. Raises TypeError and ValueError for one that is none."""
    try:
        number = operator.index(given)
    except TypeError:
        raise TypeError(f"{name} must be an integer; got {type(given).__name__}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}; got {number}")
    if number > FAR:
        raise ValueError(f"{name} must be at most {FAR:,}; got {number:,}")
    return number
