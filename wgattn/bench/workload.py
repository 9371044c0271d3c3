"""An attention call as plain data: sizes, dtype and options, and the arrays that go with it."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from wgattn._dtypes import bfloat16, bool_, float16, float32, int32

DTYPES = {"f32": float32, "f16": float16, "bf16": bfloat16}


@dataclass(frozen=True, slots=True)
class Workload:
    """One call of `wgattn.nn.dot_product_attention`: query BTNH, key BSKH, value BSKHv.

    `bias` and `mask` name the axes of BNTS that they have, the others being 1: "TS", "BS", "". With `cache` it is
    one of `wgattn.nn.cached_attention` over S tokens that a KVCache of this dtype holds, the same for each sequence.
    """

    B: int
    T: int
    N: int
    H: int
    S: int
    K: int
    Hv: int
    dtype: str = "f32"
    causal: bool = False
    window: tuple[int, int] | None = None
    offset: int | None = None
    rope: bool = False
    softcap: float | None = None
    scale: float | None = None
    sinks: bool = False
    bias: str | None = None
    mask: str | None = None
    query_lengths: bool = False
    key_lengths: bool = False
    residual: bool = False
    implementation: str | None = None
    cache: str | None = None

    @property
    def name(self) -> str:
        """Sizes and options in a few words, for rows of a table."""
        sizes = f"B{self.B} T{self.T} S{self.S} N{self.N} K{self.K} H{self.H}" + f" Hv{self.Hv}" * (self.Hv != self.H)
        return " ".join((sizes, self.dtype, *self.options))

    @property
    def options(self) -> tuple[str, ...]:
        """Words for the options that are there."""
        words = {
            "causal": self.causal,
            f"window {self.window}": self.window is not None,
            f"offset {self.offset}": self.offset is not None,
            "rope": self.rope,
            f"softcap {self.softcap}": self.softcap is not None,
            f"scale {self.scale}": self.scale is not None,
            "sinks": self.sinks,
            f"bias {self.bias}": self.bias is not None,
            f"mask {self.mask}": self.mask is not None,
            "query lengths": self.query_lengths,
            "key lengths": self.key_lengths,
            "residual": self.residual,
            f"{self.cache} cache": self.cache is not None,
        }
        return tuple(word for word, there in words.items() if there)

    @property
    def in_jax(self) -> bool:
        """Whether `jax.nn.dot_product_attention` has all of the options, RoPE beside it."""
        return self.Hv == self.H and not self.sinks and self.offset is None and self.softcap is None

    @property
    def operands(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of every array that the call takes, by keyword."""
        dtype, stored = DTYPES[self.dtype], 1 if self.cache else self.B
        found: dict[str, tuple[tuple[int, ...], np.dtype]] = {
            "query": ((self.B, self.T, self.N, self.H), dtype),
            "key": ((stored, self.S, self.K, self.H), dtype),
            "value": ((stored, self.S, self.K, self.Hv), dtype),
        }
        if self.bias is not None:
            found["bias"] = (self._axes(self.bias), float32)
        if self.mask is not None:
            found["mask"] = (self._axes(self.mask), bool_)
        if self.sinks:
            found["sinks"] = ((self.N,), float32)
        if self.query_lengths:
            found["query_seq_lengths"] = ((self.B,), int32)
        if self.key_lengths:
            found["key_value_seq_lengths"] = ((self.B,), int32)
        return found

    @property
    def static(self) -> dict[str, Any]:
        """What the call takes beside its arrays, by keyword."""
        from wgattn import nn

        given = {
            "is_causal": self.causal or None,
            "local_window_size": self.window,
            "query_offset": self.offset,
            "rope": nn.Rope() if self.rope else None,
            "softcap": self.softcap,
            "scale": self.scale,
            "return_residual": self.residual or None,
            "residual_dtype": np.float32 if self.residual else None,
            "implementation": self.implementation,
        }
        return {name: value for name, value in given.items() if value is not None}

    def kept(self) -> float:
        """The share of the T·S scores that causality and the window keep."""
        i = np.arange(self.T)[:, None] + (self.offset or 0)
        first, last = np.zeros_like(i), np.full_like(i, self.S - 1)
        if self.causal:
            last = np.minimum(last, i)
        if self.window is not None:
            first, last = np.maximum(first, i - self.window[0]), np.minimum(last, i + self.window[1])
        return float(np.maximum(last - first + 1, 0).sum()) / max(1, self.T * self.S)

    def flops(self) -> float:
        """Multiplications and additions of the two products over the kept scores."""
        return 2.0 * self.B * self.N * self.T * self.S * (self.H + self.Hv) * self.kept()

    def moved_bytes(self, cache_bytes: int = 0) -> int:
        """Bytes of query, key, value and result, each counted once; a cache counts with the bytes that it has."""
        rows = self.B * self.T * self.N + (0 if cache_bytes else self.B * self.S * self.K)
        return rows * (self.H + self.Hv) * DTYPES[self.dtype].itemsize + cache_bytes

    def arrays(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Values for the operands: unit-normal floats, lengths from 1 to all, masks that keep seven of ten."""
        most = {"query_seq_lengths": self.T, "key_value_seq_lengths": self.S}
        return {
            name: _drawn(seed + number, *operand, most.get(name, 0))
            for number, (name, operand) in enumerate(self.operands.items())
        }

    def _axes(self, letters: str | None) -> tuple[int, ...]:
        sizes = {"B": self.B, "N": self.N, "T": self.T, "S": self.S}
        return tuple(size if axis in (letters or "") else 1 for axis, size in sizes.items())


@lru_cache(maxsize=3)
def _drawn(seed: int, shape: tuple[int, ...], dtype: np.dtype, most: int) -> np.ndarray:
    """The last three are kept: drawing the keys of a long cache takes longer than anything that is timed."""
    random = np.random.default_rng(seed)
    if dtype == bool_:
        return random.random(shape) < 0.7
    if dtype == int32:
        return random.integers(min(1, most), most + 1, shape).astype(dtype)
    return random.standard_normal(shape, np.float32).astype(dtype)
