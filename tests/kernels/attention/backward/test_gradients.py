"""Every backward family against the float64 gradient, option by option, at sizes that cross its tile edges."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.kernels.attention.backward.run_gradient import reference_gradient, run
from tests.kernels.attention.test_families import OPTIONS, inputs, options_of
from tests.tolerance import check
from wgattn._dtypes import float32
from wgattn._kernels.attention.backward.choose import FAMILIES

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("poisoned")]
FAMILY = pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])


def drawn(dtype: np.dtype = float32, **sizes: Any) -> tuple[np.ndarray, ...]:
    """grad_out, query, key, value."""
    query, key, value = inputs(dtype=dtype, **sizes)
    shape = (*query.shape[:3], value.shape[3])
    grad_out = np.random.default_rng(11).standard_normal(shape, dtype=np.float32).astype(dtype)
    return grad_out, query, key, value


def compare(family: ModuleType, arrays: tuple[np.ndarray, ...], **options: Any) -> None:
    made = run(family, *arrays, **options)
    right = reference_gradient(*arrays, **options)
    assert {"query", "key", "value"} <= made.keys()
    for name, gradient in made.items():
        wanted = np.asarray(getattr(right, name)).reshape(gradient.shape)
        # An absolute bound is for unit-normal data: a gradient that sums over many rows is larger.
        size = max(1.0, float(np.abs(wanted).max(initial=0.0)))
        try:
            check(gradient, wanted, S=arrays[2].shape[1], gradient=True, magnitude=size)
        except AssertionError as error:
            raise AssertionError(f"grad_{name}: {error}") from error


@FAMILY
@pytest.mark.parametrize("option", OPTIONS)
def test_option(family: ModuleType, option: str) -> None:
    """Each option alone, two batch entries, ragged last tiles."""
    compare(family, drawn(B=2), **options_of(2, 19, 37, 4)[option])
