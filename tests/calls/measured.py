"""An attention call, measured against the reference: what tests of single cases use."""

from typing import Any

import numpy as np

from tests.tolerance import check
from wgattn import nn
from wgattn._reference import attention


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Unit-normal values of a shape."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def qkv(B=1, T=8, S=8, N=2, K=2, H=16, Hv=None, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit-normal query BTNH, key BSKH and value BSKHv."""
    shapes = (B, T, N, H), (B, S, K, H), (B, S, K, H if Hv is None else Hv)
    return tuple(normal(*shape, seed=i, dtype=dtype) for i, shape in enumerate(shapes))  # pyright: ignore


def attended(query: Any, key: Any, value: Any, **options: Any) -> np.ndarray:
    """What wgattn gives, as NumPy."""
    return np.asarray(nn.dot_product_attention(query, key, value, **options))


def measured(query: np.ndarray, key: np.ndarray, value: np.ndarray, **options: Any) -> np.ndarray:
    """What wgattn gives, having failed unless it is what the reference gives."""
    out = attended(query, key, value, **options)
    check(out, attention(query, key, value, **options).out, S=key.shape[-3])
    return out
