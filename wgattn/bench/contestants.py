"""Who is timed: a call, its results for the check, and how long so many of them take."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wgattn.bench.timing import Sampler


class Absent(Exception):
    """Why somebody does not take part."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """`results`: the call's, as NumPy arrays BTNH. `seconds`: of so many calls, by its device's clock."""

    name: str
    results: Callable[[], tuple[np.ndarray, ...]]
    seconds: Sampler
