"""The contract's grid through caches: its keys and values are appended, and attended to where they lie."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import wgattn
from tests.cases import DTYPES, GRID, SAMPLE, Case, make
from tests.tolerance import check, check_residual
from wgattn import KVCache, _reference, nn
from wgattn.masks import Mask

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("poisoned")]


def attend(case: Case, **layout: Any) -> None:
    """Run a case through a cache and fail unless it gives what the reference does, rows without keys being 0."""
    made = make(case)
    query, key, value = made.operands(wgattn.asarray)
    given = dict(made.given)
    lengths = given.pop("key_value_seq_lengths", None)
    counts = None if lengths is None else np.clip(lengths, 0, case.S).astype(np.int32)
    cache = KVCache.create(case.B, case.S + 3, case.K, case.H, case.Hv, dtype=DTYPES[case.dtype], **layout)
    cache = cache.append(key, value, counts)
    for name in ("bias", "mask"):
        if name in given:
            given[name] = widened(given[name], case.S, cache.capacity)
    offset = given.pop("query_offset", 0)
    causal = given.pop("is_causal", False)
    result = nn.cached_attention(query, cache, **given, query_offset=offset, is_causal=causal)
    out, residual = result if "residual" in case.options else (result, None)
    right = _reference.attention(*made.operands(np.asarray), **made.right, empty="zero")
    assert out.dtype == DTYPES[case.dtype]
    check(np.asarray(out), right.out, S=case.S)
    if residual is not None:
        check_residual(np.asarray(residual), right.residual)


def widened(given: Any, S: int, capacity: int) -> Any:
    """A bias or a mask of S keys as one of the cache's slots; what is behind the last token has no effect."""
    if isinstance(given, Mask):
        if given.segments is None:
            return given
        asked, kept = given.segments
        return replace(given, segments=(asked, np.pad(kept, [(0, 0)] * (kept.ndim - 1) + [(0, capacity - S)])))
    if given.shape[-1] == 1:
        return given
    return np.pad(given, [(0, 0)] * (given.ndim - 1) + [(0, capacity - S)])


LAYOUTS: tuple[dict[str, Any], ...] = ({"layout": "paged", "page_size": 8}, {}, {"layout": "paged", "page_size": 32})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every case with --grid; without, a sample is taken of every third."""
    step = 1 if metafunc.config.getoption("--grid") else 3
    cases = {"sampled": (SAMPLE, 3), "in_grid": (GRID, step)}
    for name, (of, every) in cases.items():
        if name in metafunc.fixturenames:
            numbers = range(0, len(of), every)
            metafunc.parametrize(name, numbers, ids=[of[number].name for number in numbers])


def test_sample(sampled: int):
    attend(SAMPLE[sampled], **LAYOUTS[sampled // 3 % 2])


@pytest.mark.grid
def test_grid(in_grid: int):
    attend(GRID[in_grid], **LAYOUTS[in_grid // 3 % len(LAYOUTS)])
