"""The contract, case by case: what the chosen kernel gives, and each family by name, against the float64 reference."""

import re
from collections.abc import Callable

import numpy as np
import pytest

import wgattn
from tests.cases import DTYPES, GRID, SAMPLE, Case, make
from tests.tolerance import check, check_residual
from wgattn import UnsupportedError, nn
from wgattn._kernels.attention.choose import IMPLEMENTATIONS

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("poisoned")]

ONE_ROW = ("decode_matrix", "decode_subgroups", "decode", "decode_lanes")
_WIDE = 256

# What a family may refuse: the words of its reason, and the cases for which it may give it. Any other refusal fails.
REFUSALS: dict[str, dict[str, Callable[[Case], bool]]] = {
    "decode": {
        "takes one query row": lambda case: case.T > 1,
        "head dims up to": lambda case: max(case.H, case.Hv) > _WIDE,
        "bytes of workgroup memory": lambda case: case.G * (case.H + case.Hv) > 1024,
    },
    "decode_matrix": {
        "no matrix units|matrix units multiply|shader-f16|lanes; its matrices need": lambda case: True,
        "type of one byte": lambda case: True,
    },
    "decode_subgroups": {
        "no subgroups|does not fit the registers": lambda case: True,
        "head dims up to": lambda case: max(case.H, case.Hv) > _WIDE,
    },
    "decode_lanes": {
        "takes one query row": lambda case: case.T > 1,
        "is for CPU adapters|needs subgroups|reads 3 textures": lambda case: True,
        "head dims up to": lambda case: max(case.H, case.Hv) > _WIDE,
    },
    "flash_rows": {
        "is for CPU adapters|needs subgroups|reads 3 textures": lambda case: True,
        "head dims up to": lambda case: max(case.H, case.Hv) > _WIDE,
    },
    "flash_matrix": {
        "no matrix units|matrix units multiply|shader-f16|lanes; its matrices need": lambda case: True,
        "it multiplies float16": lambda case: case.dtype != "f16",
        "T from 2 on": lambda case: case.T == 1,
        "head dims above": lambda case: max(case.H, case.Hv) > _WIDE,
        "none of its tiles fits": lambda case: case.H + case.Hv > 256,
    },
    "flash_tiled": {
        "head dims above": lambda case: max(case.H, case.Hv) > _WIDE,
        "bytes of workgroup memory": lambda case: case.H + case.Hv > 256,
    },
    "plain": {},
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
        reasons = [words for words, may in REFUSALS[family].items() if may(case)]
        if not any(re.search(words, str(refused)) for words in reasons):
            pytest.fail(f"{family} refuses for no listed reason: {refused}")


def cases_of(family: str, cases: tuple[Case, ...], step: int) -> list[Case]:
    """Every `step`-th of the cases that are made for a family, each family starting at another."""
    fitting = [case for case in cases if case.T == 1 or family not in ONE_ROW]
    return fitting[IMPLEMENTATIONS.index(family) :: step]


def named(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", SAMPLE, ids=named)
def test_sample(case: Case):
    attend(case)


@pytest.mark.parametrize(
    ("family", "case"),
    [(family, case) for family in IMPLEMENTATIONS for case in cases_of(family, SAMPLE, 2 if family in ONE_ROW else 8)],
    ids=lambda given: given if isinstance(given, str) else given.name,
)
def test_families(family: str, case: Case):
    attend_or_refuse(case, family)


@pytest.mark.grid
@pytest.mark.parametrize("case", GRID, ids=named)
def test_grid(case: Case):
    attend(case)


@pytest.mark.grid
@pytest.mark.parametrize(
    ("family", "case"),
    [(family, case) for family in IMPLEMENTATIONS for case in cases_of(family, GRID, len(IMPLEMENTATIONS))],
    ids=lambda given: given if isinstance(given, str) else given.name,
)
def test_grid_of_families(family: str, case: Case):
    attend_or_refuse(case, family)
