"""How a figure is taken: contestants warmed up by time, then timed in turn in one process, and the medians of that."""

import statistics
import time
from collections.abc import Callable, Mapping

WARM_UP = 0.3  # seconds each: the clocks of an idle GPU are at a fraction of full speed
SAMPLE = 2e-3  # seconds that a sample should last, so that the clock's grain does not show


def medians(
    contestants: Mapping[str, Callable[[], object]],
    rounds: int = 7,
    warm_up: float = WARM_UP,
    done: Callable[[str], object] = lambda name: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Seconds a call of each contestant, a call that returns when its work is done. `done` hears of every sample.

    Raises ValueError for fewer than five rounds: a median of less says little.
    """
    if rounds < 5:
        raise ValueError(f"{rounds} rounds are too few for a median: take 5 or more")
    repeats: dict[str, int] = {}
    for name, call in contestants.items():
        calls, start = 0, clock()
        while (spent := clock() - start) < warm_up or not calls:
            call()
            calls += 1
        repeats[name] = max(1, round(SAMPLE * calls / spent)) if spent > 0 else 1
        done(name)
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            start = clock()
            for _ in range(repeats[name]):
                call()
            samples[name].append((clock() - start) / repeats[name])
            done(name)
    return {name: statistics.median(times) for name, times in samples.items()}
