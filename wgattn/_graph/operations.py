"""The operations that a program may hold, as frozen values; rules.py has their shapes and dtypes, rewrite/ fuses them.

Before fusion every use is plain (no View) and the view operations below are nodes; after it, views are gone into uses.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from wgattn._kernels.attention.problem import Call
from wgattn._kernels.rotation import Rope


@dataclass(frozen=True, slots=True)
class Input:
    """The program's argument number `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A scalar that is known when the program is recorded."""

    value: float | int | bool


@dataclass(frozen=True, slots=True)
class Reshape:
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transpose:
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """Basic slicing of every axis: `size` elements from `start`, `step` apart (negative steps too)."""

    start: tuple[int, ...]
    size: tuple[int, ...]
    step: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BroadcastTo:
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Each element of `axis` `repeats` times in a row, as numpy.repeat."""

    repeats: int
    axis: int


@dataclass(frozen=True, slots=True)
class Cast:
    dtype: np.dtype


Function = Literal[
    "add", "subtract", "multiply", "divide", "negative", "exp", "maximum", "minimum",
    "logical_and", "logical_or", "logical_not", "equal", "not_equal",
    "less", "less_equal", "greater", "greater_equal", "where",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Elementwise:
    """`function` of one to three operands of one dtype (but for `where`'s condition), broadcast to one shape."""

    function: Function


@dataclass(frozen=True, slots=True)
class Sum:
    """Over `axes`, float32 accumulation in a fixed order; `divisor` turns it into a mean."""

    axes: tuple[int, ...]
    keepdims: bool = False
    divisor: int = 1


@dataclass(frozen=True, slots=True)
class Pad:
    """Zeros before and after each axis: the adjoint of a unit-step slice."""

    low: tuple[int, ...]
    high: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Concatenate:
    axis: int


@dataclass(frozen=True, slots=True)
class Rotate:
    """RoPE on (B, T, N, H). Uses: x, then positions int32 (T,) or (B, T) where `where` is "positions", an offset int32
    () or (B,) where "offset".

    `inverse` rotates back: the adjoint.
    """

    rope: Rope
    where: Literal["arange", "positions", "offset"] = "arange"
    inverse: bool = False


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention call. `operands` names the uses in order: query key value, then any of scales, bias, mask,
    ROW_OPERANDS, and the call's bound sources.

    query (B, T, N, H), key (B, S, K, H), value (B, S, K, Hv); a second batch axis in front is taken too. Key and value
    may be float8; int8, with scales float32 (B, S, K, 2), one of key and one of value; or uint8, which is packed
    int4: rows of 16 · blocks bytes, blocks of 32 values, and as many scales. Of a paged call key, value and scales are
    pools with (P, page_size) for (B, S), and pages int32 (B, S / page_size) deals them out. Results: out (B, T, N, Hv)
    in `dtype`, and the residual (B, T, N) where the call keeps one.
    """

    operands: tuple[str, ...]
    call: Call
    dtype: np.dtype
    implementation: str | None = None
    store: tuple[int, ...] | None = None  # order of out's axes in memory, outermost first; None: as they stand


@dataclass(frozen=True, slots=True)
class AttentionGradient:
    """The gradients of an attention call by its `wanted` operands, each a result in its own of `dtypes`.

    Wanted are any of query, key, value, bias, sinks and scale. `operands` names the uses in order: those of the
    Attention, then its out and float32 residual, and grad_out, which has out's shape. Results have their operand's
    shape, but every batch entry where key or value are shared by all.
    """

    operands: tuple[str, ...]
    call: Call
    wanted: tuple[str, ...]
    dtypes: tuple[np.dtype, ...]
    implementation: str | None = None  # a backward family


@dataclass(frozen=True, slots=True)
class CacheAppend:
    """T new tokens a sequence, written behind the `lengths` that a cache has. `operands` names the uses in order:
    key value [scales] [pages] lengths new_key new_value [counts].

    Storage is (B, C, K, ·), or pools (P, page_size, K, ·) with `pages` int32 (B, C / page_size); key and value are of
    one dtype, uint8 being packed int4, and have `scales` float32 (…, K, key's blocks + value's) where they are int8 or
    uint8. new_key (B, T, K, H) and new_value are float; counts int32 (B,): how many of a sequence's T are real. Results
    are key, value, scales where there are any, and the new lengths (B,). The key's side may be alone, or the value's.

    `ring`: the pinned tokens of a ring of C slots; None: no ring, and nothing is written at or beyond C. `rope` turns
    new_key at lengths + t.
    """

    operands: tuple[str, ...]
    ring: int | None = None
    rope: Rope | None = None

    @property
    def results(self) -> tuple[str, ...]:
        return (*(name for name in self.operands if name in ("key", "value", "scales")), "lengths")


@dataclass(frozen=True, slots=True)
class CacheRows:
    """Rows lengths + t of dense storage (B, C, K, H), (B, `count`, K, H): 0 where an append writes none.

    Uses: storage, lengths and perhaps counts. It is the adjoint of CacheAppend by what is new.
    """

    count: int


@dataclass(frozen=True, slots=True)
class CacheMove:
    """Entries of storage's first axis moved. Uses: storage (N, …), then int32 (M,): source, and perhaps destination.

    Without a destination, result[m] = storage[source[m]], (M, …). With one, the storage with
    storage[destination[m]] = storage[source[m]], where both are from 0 to N - 1; no destination is a source too.
    """

    destination: bool = False


@dataclass(frozen=True, slots=True)
class Merge:
    """Partial attention results as one. Uses: outputs (P, …, N, Hv), float32 residuals (P, …, N), and with `sinks`
    float32 sinks that broadcast to (…, N).

    Results: out (…, N, Hv) in the dtype of outputs, and the float32 residual (…, N).
    """

    sinks: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """A use made contiguous; the rewriter adds it where a kernel cannot take a view."""
