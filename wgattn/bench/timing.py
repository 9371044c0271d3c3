"""How a figure is taken: contestants warmed up by time, then timed in turn in one process, and the medians of that."""

import statistics
import time
from collections.abc import Callable, Mapping

WARM_UP = 0.3  # seconds: the clocks of an idle GPU are at a fraction of full speed
COOL = 0.05  # seconds without work after which a contestant is warmed up again
SAMPLE = 2e-3  # seconds that a sample should last, so that the clock's grain does not show


def medians(
    contestants: Mapping[str, Callable[[], object]],
    rounds: int = 7,
    warm_up: float = WARM_UP,
    done: Callable[[str], object] = lambda name: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Seconds a call of each contestant, a call that returns when its work is done. `done` hears of every sample.

    What cooled down while others were timed is warmed up again, but for calls that are longer than a warm-up.
    Raises ValueError for fewer than five rounds: a median of less says little.
    """
    if rounds < 5:
        raise ValueError(f"{rounds} rounds are too few for a median: take 5 or more")
    seconds = {}
    for name, call in contestants.items():
        seconds[name] = warmed(call, warm_up, clock)
        done(name)
    ended = dict.fromkeys(contestants, float("-inf"))
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            if clock() - ended[name] > COOL and seconds[name] < warm_up:
                warmed(call, warm_up, clock)
            repeats = max(1, round(SAMPLE / max(seconds[name], 1e-9)))
            start = clock()
            for _ in range(repeats):
                call()
            ended[name] = clock()
            samples[name].append((ended[name] - start) / repeats)
            done(name)
    return {name: statistics.median(times) for name, times in samples.items()}


def warmed(
    call: Callable[[], object], warm_up: float = WARM_UP, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Call at least once and until `warm_up` seconds have passed; gives the seconds of the last call."""
    start = last = clock()
    while True:
        call()
        now = clock()
        if now - start >= warm_up:
            return now - last
        last = now
