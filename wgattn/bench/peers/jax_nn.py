"""`jax.nn.dot_product_attention` under `jax.jit`, on JAX's default device: XLA, or cuDNN where it is asked for."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from wgattn.bench.contestants import Absent, Contestant
from wgattn.bench.timing import Sampler, by_wall
from wgattn.bench.workload import Workload

BY_FLOAT32 = " by way of f32"


def build(command: str, workload: Workload, arrays: dict[str, np.ndarray], implementation: str = "xla") -> Contestant:
    """The same work. Raises Absent where jax.nn or its device has no such call."""
    import jax

    platform = jax.default_backend()
    if not workload.in_jax:
        raise Absent("jax.nn has no such call")
    if implementation == "cudnn" and (platform != "gpu" or workload.dtype == "f32" or command == "decode"):
        raise Absent("cuDNN is for f16 and bf16 on CUDA, and not for one query")
    call, words = function(workload, implementation), BY_FLOAT32 * _is_widened(workload)
    program = jax.jit(_gradients(call)) if command == "backward" else jax.jit(call)
    placed = [_spread(jax.device_put(array), workload.B) for array in arrays.values()]

    def run() -> Any:
        with jax.default_matmul_precision(_precision(workload)):
            return program(*placed)

    jax.block_until_ready(run())
    name = f"jax.nn {'cuDNN' if implementation == 'cudnn' else 'XLA'} {platform}{words}"
    return Contestant(name, lambda: tuple(np.asarray(x) for x in _tuple(run())), _sampler(run, platform))


def jax_forward(workload: Workload, arrays: dict[str, np.ndarray]) -> Callable[[], Any] | None:
    """The call, inputs on JAX's default device, waited for; None where jax.nn has no such call."""
    if not workload.in_jax:
        return None
    import jax

    compiled, names = jax.jit(function(workload)), tuple(arrays)
    placed = [jax.device_put(arrays[name]) for name in names]

    def run() -> Any:
        with jax.default_matmul_precision(_precision(workload)):
            return jax.block_until_ready(compiled(*placed))

    return run


def _precision(workload: Workload) -> str | None:
    """CUDA's own choice for float32 has ten bits."""
    return "highest" if workload.dtype == "f32" else None


def function(workload: Workload, implementation: str | None = None) -> Callable[..., Any]:
    """The call as a function of the arrays in the workload's order. RoPE is written in jax.numpy."""
    import jax

    widened = _is_widened(workload)

    left_out = ("implementation", "residual_dtype", "rope")
    options = {name: value for name, value in workload.static.items() if name not in left_out}
    names = tuple(workload.operands)

    def attend(*given: Any) -> Any:
        arrays = dict(zip(names, given, strict=True))
        if workload.rope:
            arrays |= {name: _rotated(arrays[name]) for name in ("query", "key")}
        if widened:
            arrays |= {name: arrays[name].astype(np.float32) for name in ("query", "key", "value")}
        found = jax.nn.dot_product_attention(**arrays, **options, implementation=implementation)  # type: ignore[arg-type]
        return found.astype(given[0].dtype) if widened else found

    return attend


def _is_widened(workload: Workload) -> bool:
    """Whether it is made in float32 and cast back: jax.nn asks for products of float16 that XLA has none of on CPUs."""
    import jax

    return workload.dtype == "f16" and jax.default_backend() == "cpu"


def jax_name(workload: Workload) -> str:
    """What `jax_forward` is called, with the device that it runs on."""
    import jax

    device = jax.devices()[0]
    kind = "" if device.device_kind == device.platform else f" ({device.device_kind})"
    return f"jax.nn XLA {device.platform}{kind}{BY_FLOAT32 * _is_widened(workload)}"


def _gradients(call: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    return lambda query, key, value, given: jax.vjp(call, query, key, value)[1](given)


def _sampler(run: Callable[[], Any], platform: str) -> Sampler:
    """On a GPU calls follow each other without a wait, as its own clock would see them."""
    import jax

    if platform == "cpu":
        return by_wall(lambda: jax.block_until_ready(run()))

    def seconds(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count - 1):
            run()
        jax.block_until_ready(run())
        return time.perf_counter() - start

    return seconds


def _spread(x: Any, B: int) -> Any:
    """What is the same for each sequence, once for each: everybody reads as much memory."""
    import jax.numpy as jnp

    return jnp.repeat(x, B, axis=0) if x.shape[0] == 1 and B > 1 else x


def _tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def _rotated(x: Any) -> Any:
    """Rotary embedding of x BTNH at 0..T-1, base 10000, first half with second half."""
    import jax.numpy as jnp

    D = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] * 10000.0 ** -(np.arange(D) / D)
    cos, sin = (jnp.asarray(f(angles), jnp.float32)[:, None] for f in (np.cos, np.sin))
    first, second = x[..., :D].astype(jnp.float32), x[..., D : 2 * D].astype(jnp.float32)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return jnp.concatenate([turned.astype(x.dtype), x[..., 2 * D :]], axis=-1)
