"""Calls over caches as functions that wgattn records: what is static in them apart from their operands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from wgattn import masks, nn
from wgattn._array import Array
from wgattn._bind import check_implementation, check_mask
from wgattn._cache import ARRAYS, KVCache
from wgattn._cache_form import CacheForm
from wgattn._kernels.attention.problem import Clause

from ._attention import CHOOSE
from ._callback import operand


@dataclass(frozen=True, slots=True)
class CachedCall:
    """All that is static in an attention call over a cache: the names of its operands in order, and its options."""

    names: tuple[str, ...]
    clauses: tuple[Clause, ...] | None  # of a mask value, whose run-time values are operands
    options: tuple[tuple[str, Any], ...]  # of nn.cached_attention

    def record(self, cache: KVCache, arrays: Sequence[Array]) -> Any:
        """The call as `nn` records it, and checks it: out, and the residual where it is asked for."""
        operands = dict(zip(self.names, arrays, strict=True))
        if self.clauses is not None:
            sources = tuple(operands.pop(name) for name in self.names if name.startswith("bound"))
            ids = (operands.pop("query_ids"), operands.pop("key_ids")) if "query_ids" in operands else None
            return nn.cached_attention(
                operands.pop("query"),
                cache,
                mask=masks.Mask(self.clauses, sources, ids),
                **operands,
                **dict(self.options),
            )
        return nn.cached_attention(operands.pop("query"), cache, **operands, **dict(self.options))


def cached_call(given: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[CachedCall, list[jax.Array]]:
    """What is static in a call of such operands (None: absent) and options, and the operands as JAX arrays."""
    found, fixed = dict(given), dict(options)
    if fixed["implementation"] in CHOOSE:
        fixed["implementation"] = None
    else:
        check_implementation(fixed["implementation"])
    mask, clauses = found["mask"], None
    check_mask(mask)
    if isinstance(mask, masks.Mask):
        found["mask"] = None
        clauses, sources, ids = masks.bind(mask)
        found |= dict(zip(("query_ids", "key_ids"), ids or (), strict=False))
        found |= {f"bound{n}": source for n, source in enumerate(sources)}
    if isinstance(found["scale"], int | float):
        fixed["scale"] = float(found.pop("scale"))
    operands = {name: operand(x, name) for name, x in found.items() if x is not None or name == "query"}
    return CachedCall(tuple(operands), clauses, tuple(sorted(fixed.items()))), list(operands.values())


def cache_of(names: Sequence[str], arrays: Sequence[Array], form: CacheForm) -> KVCache:
    """A cache whose arrays are called so."""
    given = dict(zip(names, arrays, strict=True))
    return KVCache(**{name: given.get(name) for name in ARRAYS}, form=form)
