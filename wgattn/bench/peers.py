"""The same call as others compute it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from wgattn.bench.workload import Workload


def jax_forward(workload: Workload, arrays: dict[str, np.ndarray]) -> Callable[[], Any] | None:
    """`jax.nn.dot_product_attention` under `jax.jit`, inputs on JAX's default device; None where it has no such call.

    The result is waited for. RoPE, which jax.nn does not have, is written in jax.numpy and compiled along.
    """
    if not workload.in_jax:
        return None
    import jax

    options = {
        name: v for name, v in workload.static.items() if name not in ("implementation", "residual_dtype", "rope")
    }

    def attend(query: Any, key: Any, value: Any, **beside: Any) -> Any:
        if workload.rope:
            query, key = _rotated(query), _rotated(key)
        return jax.nn.dot_product_attention(query, key, value, **beside, **options)

    placed = {name: jax.device_put(array) for name, array in arrays.items()}
    compiled = jax.jit(attend)
    return lambda: jax.block_until_ready(compiled(**placed))


def jax_device() -> str:
    """The device that jax computes on, as it names it."""
    import jax

    device = jax.devices()[0]
    return device.platform if device.device_kind == device.platform else f"{device.platform} ({device.device_kind})"


def _rotated(x: Any) -> Any:
    """Rotary embedding of x BTNH at 0..T-1, base 10000, first half with second half."""
    import jax.numpy as jnp

    D = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] * 10000.0 ** -(np.arange(D) / D)
    cos, sin = (jnp.asarray(f(angles), jnp.float32)[:, None] for f in (np.cos, np.sin))
    first, second = x[..., :D].astype(jnp.float32), x[..., D : 2 * D].astype(jnp.float32)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return jnp.concatenate([turned.astype(x.dtype), x[..., 2 * D :]], axis=-1)
