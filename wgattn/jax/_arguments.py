"""What attention calls of JAX programs are given, as operands and static values: masks, scales, implementations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from wgattn import masks
from wgattn._array import Array
from wgattn._bind import check_implementation, check_mask
from wgattn._kernels.attention.problem import Clause

CHOOSE = (None, "xla", "cudnn")  # implementations of jax.nn, all of which leave the choice to wgattn
SEGMENTS = ("query_segments", "key_segments")


def implementation_of(given: str | None) -> str | None:
    """The family of kernels that must serve; None where wgattn chooses. Raises ValueError for another name."""
    if given in CHOOSE:
        return None
    check_implementation(given)  # type: ignore[arg-type]
    return given


def scale_of(given: Any) -> tuple[float | None, Any]:
    """A scale as a static number, or else as the array that it is."""
    return (float(given), None) if isinstance(given, int | float | np.generic) else (None, given)


def mask_parts(given: Any) -> tuple[tuple[Clause, ...] | None, dict[str, Any]]:
    """The clauses of a mask value, and its run-time arrays as operands; of a dense mask None, and the mask."""
    check_mask(given)
    if not isinstance(given, masks.Mask):
        return None, {"mask": given}
    clauses, sources, ids = masks.bind(given)
    segments = {} if ids is None else dict(zip(SEGMENTS, ids, strict=True))
    return clauses, segments | {f"bound{n}": source for n, source in enumerate(sources)}


def mask_of(clauses: tuple[Clause, ...] | None, operands: Mapping[str, Array]) -> masks.Mask | None:
    """The mask value of these clauses with its run-time arrays among `operands`; None where there is none."""
    if clauses is None:
        return None
    sources = tuple(x for name, x in operands.items() if name.startswith("bound"))
    ids = (operands[SEGMENTS[0]], operands[SEGMENTS[1]]) if SEGMENTS[0] in operands else None
    return masks.Mask(clauses, sources, ids)
