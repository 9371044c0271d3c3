"""The contract, case by case: what the chosen kernel gives, and each family by name, against the float64 reference."""

import re

import numpy as np
import pytest

import wgattn
from tests.cases import DTYPES, GRID, SAMPLE, Case, make
from tests.tolerance import check, check_residual
from wgattn import UnsupportedError, nn
from wgattn._kernels.attention.choose import IMPLEMENTATIONS

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("poisoned")]

# What a family may refuse, by the words of its reason. A refusal of anything else fails.
REFUSALS = {
    "flash_matrix": r"matrix|provider|subgroup",
    "decode": r"T =|T is|quer",
    "decode_lanes": r"CPU|T =|T is|quer",
    "flash_rows": r"CPU",
    "flash_tiled": r"head_dim|H =|Hv|workgroup",
    "plain": r"$^",
}


def attend(case: Case, family: str | None = None) -> None:
    """Run a case and fail unless it gives what the reference does."""
    made = make(case)
    result = nn.dot_product_attention(*made.operands(wgattn.asarray), **made.given, implementation=family)
    out, residual = result if "residual" in case.options else (result, None)
    right = made.reference()
    out = np.asarray(out)
    assert out.dtype == DTYPES[case.dtype]
    check(out, right.out, S=case.S)
    if residual is not None:
        check_residual(np.asarray(residual), right.residual)
    if "query_seq_lengths" in made.given:
        past = np.arange(case.T) >= made.given["query_seq_lengths"][:, None]
        assert (out[past] == 0).all(), "a row past the query length is not exactly 0"


def attend_or_refuse(case: Case, family: str) -> None:
    try:
        attend(case, family)
    except UnsupportedError as refused:
        if not re.search(REFUSALS[family], str(refused)):
            pytest.fail(f"{family} refuses for no listed reason: {refused}")


def named(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", SAMPLE, ids=named)
def test_sample(case: Case):
    attend(case)


@pytest.mark.parametrize("family", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", SAMPLE[::7], ids=named)
def test_families(case: Case, family: str):
    attend_or_refuse(case, family)


@pytest.mark.grid
@pytest.mark.parametrize("case", GRID, ids=named)
def test_grid(case: Case):
    attend(case)


@pytest.mark.grid
@pytest.mark.parametrize(
    ("family", "case"),
    [(family, case) for start, family in enumerate(IMPLEMENTATIONS) for case in GRID[start :: len(IMPLEMENTATIONS)]],
    ids=lambda given: given if isinstance(given, str) else given.name,
)
def test_grid_of_families(family: str, case: Case):
    attend_or_refuse(case, family)
