"""How a cache stores the values of a row: which types need scales, and how many elements a row has."""

import numpy as np

from wgattn._dtypes import int8, uint8

SIDES = ("key", "value")
BLOCK = 32  # int4 values that share a scale; two lie in one byte of uint8


def scale_count(dtype: np.dtype, dim: int) -> int:
    """How many float32 scales a row of `dim` values has: 1 in int8, one a block in int4 (uint8), else 0."""
    return {int8: 1, uint8: -(-dim // BLOCK)}.get(dtype, 0)


def row_elements(dtype: np.dtype, dim: int) -> int:
    """The elements that `dim` values are: those of uint8, packed int4, are bytes of whole blocks.

    Example: row_elements(float16, 66) is 66, row_elements(uint8, 66) is 48.
    """
    return BLOCK // 2 * scale_count(dtype, dim) if dtype == uint8 else dim


def row_size(dtype: np.dtype, dim: int) -> int:
    """The elements of a stored row of `dim` values: whole words, whole blocks.

    Example: row_size(float16, 66) is 68, row_size(uint8, 66) is 48.
    """
    return row_elements(dtype, dim) if dtype == uint8 else -(-dim // 4) * 4
