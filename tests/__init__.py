"""The tests of wgattn, floor by floor."""

import os

# jax is the peer that results are compared with; on a CUDA machine it would take the memory of the GPU under test.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
