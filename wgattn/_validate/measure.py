"""How far a result is from the float64 reference, and how far rounding may take it."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._reference import RESIDUAL_TOLERANCE, Tolerance, tolerance

SCORES = 1 << 28  # above so many logits a call, a fixed sample of its rows is computed


@dataclass(frozen=True, slots=True)
class Measure:
    """One result beside the reference: its errors, what is allowed, and the element that is furthest off."""

    what: str
    norm: float
    most: float
    allowed: Tolerance
    worst: tuple[int, ...]
    given: float
    right: float

    @property
    def ok(self) -> bool:
        return self.norm <= self.allowed.norm and self.most <= self.allowed.most


def chosen_rows(B: int, N: int, T: int, S: int, scores: int = SCORES) -> np.ndarray:
    """All T query rows, or as many as hold `scores` logits, evenly spaced with the first and the last among them."""
    fitting = scores // max(B * N * S, 1)
    return np.arange(T) if fitting >= T else np.unique(np.linspace(0, T - 1, max(fitting, 2)).astype(int))


@dataclass(frozen=True, slots=True)
class Allowance:
    """What rounding may do to one call: 1 and 1 on unit-normal data at the default scale, more with larger logits and
    in proportion to V; `finite` says whether NaN or infinities stand in no operand."""

    logits: float
    values: float
    finite: bool

    def out(self, dtype: Any, S: int) -> Tolerance:
        row = tolerance(dtype, S)
        return Tolerance(row.norm * self.logits, row.most * self.logits * self.values)

    def residual(self, right: np.ndarray) -> Tolerance:
        largest = np.abs(right, where=np.abs(right) < 1e4, out=np.zeros_like(right)).max(initial=0)
        return Tolerance(math.inf, RESIDUAL_TOLERANCE * max(self.logits, float(largest) / 64))


def allowance(query: np.ndarray, key: np.ndarray, value: np.ndarray, scale: float | np.ndarray | None) -> Allowance:
    """The allowance of a call with these operands, from the longest query and key and the size of V."""
    H = query.shape[-1]
    finite = all(bool(np.isfinite(x).all()) for x in (query, key, value))
    longest = [math.sqrt(float(np.square(_finite(x)).sum(-1).max(initial=0))) for x in (query, key)]
    usual = (math.sqrt(H) + 4) ** 2 / math.sqrt(H)  # what unit-normal rows of H elements stay below
    largest = float(np.abs(1 / math.sqrt(H) if scale is None else scale).max()) * longest[0] * longest[1]
    values = _finite(value)
    size = math.sqrt(float(np.square(values).mean())) if values.size else 0.0
    return Allowance(max(1.0, largest / usual), max(size, float(np.abs(values).max(initial=0)) / 6), finite)


def measure(
    what: str,
    given: np.ndarray,
    right: np.ndarray,
    allowed: Tolerance,
    rows: np.ndarray,
    axis: int,
    finite: bool = True,
) -> Measure:
    """`given` beside `right`, whose T axis (`axis`) holds `rows`. What is not finite fails unless it is in both, or
    `finite` is False: then operands held NaN or infinities, and elements that are not finite are left out."""
    given, right = np.asarray(given).astype(np.float64), np.asarray(right)
    with np.errstate(invalid="ignore"):
        off = np.where(given == right, 0.0, np.abs(given - right))
    both = np.isfinite(given) & np.isfinite(right)
    off = np.where(both | (off == 0), off, math.inf if finite else 0.0)
    if not off.size:
        return Measure(what, 0.0, 0.0, allowed, (), 0.0, 0.0)
    worst = np.unravel_index(int(off.argmax()), off.shape)
    size = float(np.linalg.norm(_finite(right, np.float64)))
    at = [int(i) for i in worst]
    at[axis] = int(rows[at[axis]])
    ratio = float(np.linalg.norm(off)) / size if size else 0.0
    return Measure(what, ratio, float(off[worst]), allowed, tuple(at), float(given[worst]), float(right[worst]))


def conditioned(residual: np.ndarray) -> np.ndarray:
    """Which rows' logits have digits left in float32: not those from 1e4 to 1e30, a step of which is above 1e-3."""
    return (np.abs(residual) < 1e4) | (np.abs(residual) > 1e30)


def explain(measured: Measure, variant: str, entry: tuple[int, ...] = ()) -> str:
    """What a failed measure says: the element, both values, the errors, the variant, and what to do."""
    index = ", ".join(str(i) for i in (*entry, *measured.worst))
    return (
        f"{variant}: {measured.what}[{index}] is {measured.given:.9g}, and the float64 reference gives "
        f"{measured.right:.9g}; error {measured.most:.3g} (at most {measured.allowed.most:.3g}), relative to the whole "
        f"{measured.norm:.3g} (at most {measured.allowed.norm:.3g}). Another variant can be asked for with "
        f'implementation="plain"; please report this with the output of `wgattn info`'
    )


def _finite(x: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
    x = np.asarray(x).astype(dtype)
    return np.where(np.isfinite(x), x, 0)
