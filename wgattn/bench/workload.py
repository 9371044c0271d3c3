"""An attention call as plain data: sizes, dtype and options, and the arrays that go with it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wgattn._dtypes import bfloat16, float16, float32

DTYPES = {"f32": float32, "f16": float16, "bf16": bfloat16}


@dataclass(frozen=True, slots=True)
class Workload:
    """One call of `wgattn.nn.dot_product_attention`: query BTNH, key BSKH, value BSKHv.

    `bias` and `mask` name the axes of BNTS that they have, the others being 1: "TS", "BS", "".
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
        }
        return tuple(word for word, there in words.items() if there)

    @property
    def in_jax(self) -> bool:
        """Whether `jax.nn.dot_product_attention` has all of the options, and the same answer for them."""
        ours = self.offset, self.softcap
        return self.Hv == self.H and not (self.rope or self.sinks) and ours == (None, None)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        return (self.B, self.T, self.N, self.H), (self.B, self.S, self.K, self.H), (self.B, self.S, self.K, self.Hv)

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

    def arrays(self, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Unit-normal query, key and value."""
        random = np.random.default_rng(seed)
        q, k, v = (random.standard_normal(shape, np.float32).astype(DTYPES[self.dtype]) for shape in self.shapes)
        return q, k, v

    def keywords(self, seed: int = 0) -> dict[str, Any]:
        """What the call takes beside its arrays; run-time values are NumPy arrays."""
        from wgattn import nn

        random = np.random.default_rng(seed + 1)
        given: dict[str, tuple[bool, Callable[[], Any]]] = {
            "is_causal": (self.causal, lambda: True),
            "local_window_size": (self.window is not None, lambda: self.window),
            "query_offset": (self.offset is not None, lambda: self.offset),
            "rope": (self.rope, lambda: nn.Rope()),
            "softcap": (self.softcap is not None, lambda: self.softcap),
            "scale": (self.scale is not None, lambda: self.scale),
            "sinks": (self.sinks, lambda: random.standard_normal(self.N, np.float32)),
            "bias": (self.bias is not None, lambda: random.standard_normal(self._axes(self.bias), np.float32)),
            "mask": (self.mask is not None, lambda: random.random(self._axes(self.mask)) < 0.7),
            "query_seq_lengths": (self.query_lengths, lambda: _lengths(random, self.B, self.T)),
            "key_value_seq_lengths": (self.key_lengths, lambda: _lengths(random, self.B, self.S)),
            "return_residual": (self.residual, lambda: True),
            "residual_dtype": (self.residual, lambda: np.float32),
            "implementation": (self.implementation is not None, lambda: self.implementation),
        }
        return {name: make() for name, (there, make) in given.items() if there}

    def _axes(self, letters: str | None) -> tuple[int, ...]:
        sizes = {"B": self.B, "N": self.N, "T": self.T, "S": self.S}
        return tuple(size if axis in (letters or "") else 1 for axis, size in sizes.items())


def _lengths(random: np.random.Generator, B: int, most: int) -> np.ndarray:
    return random.integers(min(1, most), most + 1, B).astype(np.int32)
