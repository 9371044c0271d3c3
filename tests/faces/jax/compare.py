"""The same call by wgattn.jax and by jax.nn: values or gradients, compared with the tolerance of their dtype."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import wgattn
from tests.tolerance import check

OURS = wgattn.jax.dot_product_attention
THEIRS = jax.nn.dot_product_attention


def normal(seed: int, *shape: int, dtype: Any = np.float32) -> jax.Array:
    """Unit-normal values."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32)).astype(dtype)


def agree(
    function: Callable[..., Callable[..., Any]], *given: Any, gradient: bool = False, exact: bool = False
) -> None:
    """Fail unless function(attention)(*given) is the same by wgattn as by jax.nn, tree by tree.

    jax.nn gets float32 arrays, with `exact` float64 ones: then all of its operands are among `given`.
    """
    found = jax.tree.leaves(function(OURS)(*given))
    dtype = np.float64 if exact else np.float32
    with jax.enable_x64(exact):
        wide = jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, np.floating) else x, given)
        right = [np.asarray(x) for x in jax.tree.leaves(function(THEIRS)(*wide))]
    assert len(found) == len(right) > 0
    for mine, other in zip(found, right, strict=True):
        most = float(np.abs(other).max(initial=0.0))
        if gradient and most < 1e-6:  # nothing but what rounding leaves of a gradient of 0
            assert np.abs(np.asarray(mine)).max(initial=0.0) < 1e-5
            continue
        check(np.asarray(mine), other, gradient=gradient, magnitude=max(1.0, most) if gradient else 1.0)
