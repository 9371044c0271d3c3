"""Rows of forward, backward and decode: a call checked, timed in turn with its peers, put beside a ceiling."""

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal

import numpy as np

from wgattn import _runtime
from wgattn.bench import calls, checking
from wgattn.bench.calls import Ours
from wgattn.bench.ceilings import Ceilings, sample_seconds
from wgattn.bench.checking import Right
from wgattn.bench.contestants import Absent, Contestant
from wgattn.bench.peers import PEERS
from wgattn.bench.report import Peer, Row
from wgattn.bench.timing import medians
from wgattn.bench.workload import DTYPES, Workload

Command = Literal["forward", "backward", "decode"]
Told = Callable[[str], object]
Arrays = dict[str, np.ndarray]

BACKWARD = 3.5  # products of forward and backward together, to those of forward alone: two and five
WORDS = 200  # letters of a reason that are kept


@dataclass(frozen=True, slots=True)
class Case:
    """A row to be. `beside` are other calls of wgattn's that take part: a name and a workload each.

    `has_peers` is False where others have nothing of the kind.
    """

    command: Command
    name: str
    workload: Workload
    beside: tuple[tuple[str, Workload], ...] = ()
    has_peers: bool = True


@dataclass(frozen=True, slots=True)
class Pace:
    """How long figures are taken. `logits` are compared with the reference at most."""

    rounds: int = 7
    warm_up: float = 0.3
    logits: int = checking.LOGITS


@dataclass(frozen=True, slots=True)
class Entrant:
    """Who takes part, and what the results are compared with."""

    contestant: Contestant
    right: Right


def attention_row(case: Case, ceilings: Ceilings, peers: tuple[str, ...], pace: Pace, done: Told = str) -> Row:
    """The row of a case; `done` hears of every step.

    Raises ValidationError where wgattn's result is off: then nothing is timed.
    """
    profile = _runtime.current_profile()
    arrays = arrays_of(case)
    done("the reference")
    right = right_of(case, case.workload, arrays, pace.logits)
    done("wgattn")
    ours = ours_of(case.command, case.workload, arrays)
    contestants = {"wgattn": ours.contestant("wgattn", profile)}
    error = right.check(ours.variant, contestants["wgattn"].results())
    errors: dict[str, tuple[float, bool]] = {}
    absent: dict[str, str] = {}
    for name, enter in _others(case, arrays, peers, pace, right).items():
        done(name)
        try:
            entrant = enter()
            errors[entrant.contestant.name] = entrant.right.error(entrant.contestant.results())
            contestants[entrant.contestant.name] = entrant.contestant
        except Exception as reason:  # one that breaks takes nothing from the others
            absent[name] = _reason(reason)
    found = medians(
        {name: contestant.seconds for name, contestant in contestants.items()},
        pace.rounds,
        pace.warm_up,
        None if profile.is_cpu else min(pace.warm_up, 0.05),  # all are on one GPU, whose clocks stay up
        sample_seconds(profile),
        lambda name: done(f"timing {name}"),
    )
    seconds = found.pop("wgattn")
    figures = tuple(Peer(name, median, *errors[name]) for name, median in found.items())
    del contestants
    gc.collect()  # peers hold gigabytes in cycles
    row = Row(
        case.command, case.name, case.workload.name, ours.variant, seconds, peers=figures, absent=absent, error=error
    )
    return _beside_ceiling(row, case.workload, ours.cache_bytes, ceilings)


def _others(
    case: Case, arrays: Arrays, peers: tuple[str, ...], pace: Pace, right: Right
) -> dict[str, Callable[[], Entrant]]:
    """How each other contestant enters, by name."""
    profile, command = _runtime.current_profile(), case.command
    found: dict[str, Callable[[], Entrant]] = {}

    def own(name: str, workload: Workload) -> Entrant:
        against = right if workload.cache == case.workload.cache else right_of(case, workload, arrays, pace.logits)
        return Entrant(ours_of(command, workload, arrays).contestant(name, profile), against)

    for name, workload in case.beside:
        found[name] = partial(own, name, workload)
    plain = None
    if case.workload.cache not in (None, "float32", "float16"):  # they hold floats, not what the cache makes of them
        plain = lru_cache(lambda: checking.decode(case.workload, arrays, None))

    def peer(name: str) -> Entrant:
        return Entrant(PEERS[name](command, case.workload, arrays), plain() if plain else right)

    return found | {name: partial(peer, name) for name in peers if case.has_peers}


def arrays_of(case: Case) -> Arrays:
    """What goes into the call; for a backward one with the cotangent, the last."""
    arrays = case.workload.arrays()
    if case.command == "backward":
        shape = *arrays["query"].shape[:3], case.workload.Hv
        drawn = np.random.default_rng(1).standard_normal(shape, np.float32)
        arrays["cotangent"] = drawn.astype(DTYPES[case.workload.dtype])
    return arrays


def right_of(case: Case, workload: Workload, arrays: Arrays, logits: int) -> Right:
    """The reference of `workload`, a call of the case's command, at rows that hold so many logits at most."""
    if case.command == "decode":
        return checking.decode(workload, arrays, workload.cache)
    check = checking.backward if case.command == "backward" else checking.forward
    return check(workload, arrays, logits)


def ours_of(command: Command, workload: Workload, arrays: Arrays) -> Ours:
    """wgattn's call."""
    make = {"forward": calls.forward, "backward": calls.backward, "decode": calls.decode}
    return make[command](workload, arrays)


def _beside_ceiling(row: Row, workload: Workload, cache_bytes: int, ceilings: Ceilings) -> Row:
    seconds, backward = row.median_s or math.inf, row.command == "backward"
    flops = workload.flops() * (BACKWARD if backward else 1)
    row = replace(row, flops=flops, moved_bytes=workload.moved_bytes(cache_bytes) * (2 if backward else 1))
    if row.command == "decode":
        rate = cache_bytes / seconds
        return replace(row, gbps=rate / 1e9, ceiling="reads", share=rate / ceilings.bytes)
    rate = flops / seconds
    most = ceilings.operations(row.variant)
    ceiling = "fma" if most == ceilings.fma else "matrix"
    return replace(row, tflops=rate / 1e12, ceiling=ceiling, share=rate / most)


def _reason(error: Exception) -> str:
    if isinstance(error, Absent):
        return str(error)[:WORDS]
    lines = str(error).strip().splitlines() or [""]
    return f"failed: {type(error).__name__}: {lines[0]}"[:WORDS]
