"""JAX programs that need a process of their own: several host devices, an exit right after a call, a fork."""

import os
import subprocess
import sys

HEADER = """
import numpy as np, jax, jax.numpy as jnp, wgattn
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
ours, theirs = wgattn.jax.dot_product_attention, jax.nn.dot_product_attention
r = np.random.default_rng(0)
normal = lambda *shape: jnp.asarray(r.standard_normal(shape, np.float32))
def close(found, right, most=2e-5):
    for mine, other in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        off = np.abs(np.asarray(mine, np.float64) - np.asarray(other, np.float64)).max()
        size = max(1.0, float(np.abs(np.asarray(other)).max()))
        assert mine.shape == other.shape and off < most * size, (mine.shape, off, size)
"""


def run(code: str, devices: int = 1, timeout: float = 240.0) -> subprocess.CompletedProcess[str]:
    """Run `code` behind the header in a new process with so many CPU devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    return subprocess.run(
        [sys.executable, "-c", HEADER + code],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    )


def check(code: str, devices: int = 1) -> str:
    """What such a program prints. Fails where it does."""
    done = run(code, devices)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
