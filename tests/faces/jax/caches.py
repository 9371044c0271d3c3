"""What tests of caches in JAX programs share: tokens, a step of decoding, and how a call fails."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from tests.calls.caches import held
from tests.faces.jax.compare import normal
from wgattn import KVCache
from wgattn.jax import append, cached_attention, last_error

B, C, K, N, H = 2, 32, 2, 4, 16
Rows = tuple[jax.Array, jax.Array, jax.Array]  # query, key, value


def rows(seed: int, T: int, B: int = B) -> Rows:
    return normal(seed, B, T, N, H), normal(seed + 1, B, T, K, H), normal(seed + 2, B, T, K, H)


def step(cache: Any, new: Rows) -> tuple[Any, jax.Array]:
    """The tokens appended, and attended with their queries."""
    query, key, value = new
    cache = append(cache, key, value)
    return cache, cached_attention(query, cache)


def fails(call: Callable[[], Any], error: type[BaseException], text: str) -> None:
    """Fail unless the call ends with JAX's error of that type and text, and last_error() gives the original."""
    with pytest.raises(Exception, match=f"{error.__name__}: .*{text}"):
        jax.block_until_ready(call())
    assert type(last_error()) is error


def same(a: KVCache, b: KVCache) -> bool:
    """Whether two caches hold the same."""
    one, other = held(a), held(b)
    return all(
        np.array_equal(np.asarray(getattr(one, name)), np.asarray(getattr(other, name)), equal_nan=True)
        for name in ("keys", "values", "lengths")
    )
