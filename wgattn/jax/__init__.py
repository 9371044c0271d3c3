"""wgattn inside JAX programs: attention under jit, grad, vmap, scan and shard_map, run by callbacks on the device.

    out = jax.jit(wgattn.jax.dot_product_attention)(query, key, value)    # as jax.nn.dot_product_attention

A cache either consists of JAX arrays (`new_cache`) or stays on wgattn's device (`CacheHandle`).
"""

from wgattn import _tree as _tree

from ._attention import dot_product_attention as dot_product_attention
from ._cache import append as append
from ._cache import cached_attention as cached_attention
from ._cache import new_cache as new_cache
from ._cache import reserve as reserve
from ._cache import truncate as truncate
from ._cache_handle import CacheHandle as CacheHandle
from ._call import call as call
from ._callback import last_error as last_error
from ._flax import flax_attention as flax_attention
from ._merge import merge_attention as merge_attention

_tree.util()  # so that pytrees of JAX programs may hold wgattn's classes
