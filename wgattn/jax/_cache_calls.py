"""Calls over caches as functions that wgattn records: what is static in them apart from their operands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from wgattn import nn
from wgattn._array import Array
from wgattn._cache import ARRAYS, KVCache
from wgattn._cache_form import CacheForm
from wgattn._kernels.attention.problem import Clause

from ._arguments import implementation_of, mask_of, mask_parts, scale_of
from ._callback import operand

# Of nn.cached_attention, beside query and what a mask value is made of.
OPERANDS = ("bias", "mask", "scale", "query_seq_lengths", "sinks", "query_offset")


@dataclass(frozen=True, slots=True)
class CachedCall:
    """All that is static in an attention call over a cache: the names of its operands in order, and its options."""

    names: tuple[str, ...]
    clauses: tuple[Clause, ...] | None  # of a mask value, whose run-time values are operands
    options: tuple[tuple[str, Any], ...]  # of nn.cached_attention

    def record(self, cache: KVCache, arrays: Sequence[Array]) -> Any:
        """The call as `nn` records it, and checks it: out, and the residual where it is asked for."""
        operands = dict(zip(self.names, arrays, strict=True))
        mask = mask_of(self.clauses, operands)
        given: dict[str, Any] = {name: operands[name] for name in OPERANDS if name in operands}
        if mask is not None:
            given["mask"] = mask
        return nn.cached_attention(operands["query"], cache, **given, **dict(self.options))


def cached_call(given: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[CachedCall, list[jax.Array]]:
    """What is static in a call of such operands (None: absent) and options, and the operands as JAX arrays."""
    found, fixed = dict(given), dict(options)
    fixed["implementation"] = implementation_of(fixed["implementation"])
    clauses, of_mask = mask_parts(found.pop("mask"))
    static_scale, found["scale"] = scale_of(found["scale"])
    found |= of_mask
    if static_scale is not None:
        fixed["scale"] = static_scale
    operands = {name: operand(x, name) for name, x in found.items() if x is not None or name == "query"}
    return CachedCall(tuple(operands), clauses, tuple(sorted(fixed.items()))), list(operands.values())


def cache_of(names: Sequence[str], arrays: Sequence[Array], form: CacheForm) -> KVCache:
    """A cache whose arrays are called so."""
    given = dict(zip(names, arrays, strict=True))
    return KVCache(**{name: given.get(name) for name in ARRAYS}, form=form)
