"""The arguments of attention calls in JAX programs, split into operands and static values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from wgattn import masks
from wgattn._array import Array
from wgattn._bind import check_implementation, check_mask
from wgattn._kernels.attention.problem import Clause

CHOOSE = (None, "xla", "cudnn")  # jax.nn's implementations; with any of them wgattn chooses
SEGMENTS = ("query_segments", "key_segments")


def implementation_of(given: str | None) -> str | None:
    """The kernel family that must be used, None if wgattn chooses. Raises ValueError for other names."""
    if given in CHOOSE:
        return None
    check_implementation(given)  # type: ignore[arg-type]
    return given


def scale_of(given: Any) -> tuple[float | None, Any]:
    """A scale as (number, None) if it is static, else as (None, array)."""
    return (float(given), None) if isinstance(given, int | float | np.generic) else (None, given)


def mask_parts(given: Any) -> tuple[tuple[Clause, ...] | None, dict[str, Any]]:
    """A mask's clauses and its run-time arrays as operands; for a dense mask, None and the mask itself."""
    check_mask(given)
    if not isinstance(given, masks.Mask):
        return None, {"mask": given}
    clauses, sources, ids = masks.bind(given)
    segments = {} if ids is None else dict(zip(SEGMENTS, ids, strict=True))
    return clauses, segments | {f"bound{n}": source for n, source in enumerate(sources)}


def mask_of(clauses: tuple[Clause, ...] | None, operands: Mapping[str, Array]) -> masks.Mask | None:
    """The mask with these clauses, whose run-time arrays are among `operands`; None without clauses."""
    if clauses is None:
        return None
    sources = tuple(x for name, x in operands.items() if name.startswith("bound"))
    ids = (operands[SEGMENTS[0]], operands[SEGMENTS[1]]) if SEGMENTS[0] in operands else None
    return masks.Mask(clauses, sources, ids)
