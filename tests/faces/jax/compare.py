"""The same call by wgattn.jax and by jax.nn: values or gradients, compared with the tolerance of their dtype."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import wgattn
from tests.tolerance import check

OURS = wgattn.jax.dot_product_attention
THEIRS = jax.nn.dot_product_attention


def normal(seed: int, *shape: int, dtype: Any = np.float32) -> jax.Array:
    """Unit-normal values."""
    return jax.numpy.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32)).astype(dtype)


def agree(function: Callable[..., Callable[..., Any]], *given: Any, gradient: bool = False) -> None:
    """Fail unless function(attention)(*given) is the same by wgattn as by jax.nn in float32, tree by tree."""
    found = jax.tree.leaves(function(OURS)(*given))
    wide = jax.tree.map(lambda x: x.astype(np.float32) if jax.numpy.issubdtype(x.dtype, np.floating) else x, given)
    right = jax.tree.leaves(function(THEIRS)(*wide))
    assert len(found) == len(right) > 0
    for mine, other in zip(found, right, strict=True):
        size = max(1.0, float(np.abs(np.asarray(other, np.float64)).max(initial=0.0))) if gradient else 1.0
        check(np.asarray(mine), np.asarray(other), gradient=gradient, magnitude=size)
