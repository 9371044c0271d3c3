"""How a call is cut so that a kernel can be given all parts of its operands. No device."""

from collections.abc import Callable

import pytest

from wgattn._dtypes import float32
from wgattn._errors import UnsupportedError
from wgattn._kernels.attention.boxes import cut_to_limits
from wgattn._kernels.kernel import Operand, natural_strides
from wgattn._runtime.profile import Limits

SHAPE = (1, 2, 1000, 1, 64)  # B0 B1 T N H, and B0 B1 S K H


def operands(strides: tuple[int, ...]) -> dict[str, Operand]:
    return dict.fromkeys(("query", "key", "value", "out"), Operand(float32, SHAPE, strides))


def most(rows: int) -> Callable[[str, Operand], bool]:
    """A kernel that takes so many rows of a query at once, however they lie."""
    return lambda name, part: name != "query" or part.shape[2] <= rows


@pytest.mark.parametrize("strides", [natural_strides(SHAPE), (0, 0, 0, 0, 1)], ids=["rows", "one row for all"])
def test_rows_are_cut_where_a_copy_of_them_would_be_too_large(strides: tuple[int, ...]) -> None:
    boxes, keys = cut_to_limits(operands(strides), Limits(), fits=most(300))
    assert keys == ((0, 1000),)
    assert all(end - first <= 300 for first, end in (box.t for box in boxes))
    rows = {(entry, row) for box in boxes for entry in range(*box.b1) for row in range(*box.t)}
    assert len(rows) == 2 * 1000


def test_a_row_that_is_too_large_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="one row of query"):
        cut_to_limits(operands(natural_strides(SHAPE)), Limits(), fits=most(0))
