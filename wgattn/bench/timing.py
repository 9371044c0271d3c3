"""How a figure is taken: contestants warmed up by time, then timed in turn in one process, and the medians of that."""

import statistics
import time
from collections.abc import Callable, Mapping

WARM_UP = 0.3  # seconds: the clocks of an idle GPU are at a fraction of full speed
COOL = 0.05  # seconds without work after which a contestant is warmed up again
SAMPLE = 2e-3  # seconds that a sample should last, so that the clock's grain does not show
MOST = 256  # calls in a sample
LEAST = 5  # rounds
LONG = 1.0  # seconds of a call above which no more rounds are taken

Clock = Callable[[], float]
Sampler = Callable[[int], float]  # the seconds that so many calls in a row take


def by_wall(call: Callable[[], object], clock: Clock = time.perf_counter) -> Sampler:
    """Times by the host's clock; `call` returns when its work is done."""

    def seconds(count: int) -> float:
        start = clock()
        for _ in range(count):
            call()
        return clock() - start

    return seconds


def medians(
    contestants: Mapping[str, Sampler],
    rounds: int = 7,
    warm_up: float = WARM_UP,
    again: float | None = None,
    sample: float = SAMPLE,
    done: Callable[[str], object] = lambda name: None,
    clock: Clock = time.perf_counter,
) -> dict[str, float]:
    """Seconds a call of each contestant, who take turns. `done` hears of every sample.

    What cooled down while others were timed is warmed up again, for `again` seconds (`warm_up` unless given), but for
    calls that are longer than that; where a call takes more than a second there are five rounds. Raises ValueError for
    fewer than five: a median of less says little.
    """
    if rounds < LEAST:
        raise ValueError(f"{rounds} rounds are too few for a median: take {LEAST} or more")
    again = warm_up if again is None else again
    counts, seconds, ended = {}, {}, {}
    for name, sampler in contestants.items():
        counts[name], seconds[name] = warmed(sampler, warm_up, sample, clock=clock)
        ended[name] = clock()
        done(name)
    if max(seconds.values()) > LONG:
        rounds = LEAST
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, sampler in contestants.items():
            if clock() - ended[name] > COOL and seconds[name] < again:
                warmed(sampler, again, sample, counts[name], clock)
            samples[name].append(sampler(counts[name]) / counts[name])
            ended[name] = clock()
            done(name)
    return {name: statistics.median(times) for name, times in samples.items()}


def warmed(
    sampler: Sampler,
    warm_up: float = WARM_UP,
    sample: float = SAMPLE,
    count: int | None = None,
    clock: Clock = time.perf_counter,
) -> tuple[int, float]:
    """Call at least once and until `warm_up` seconds have passed. How many calls fill a sample, and the last's seconds.

    The count is a power of two, found on the way unless it is given: short calls follow each other without a pause.
    """
    start, calls = clock(), count or 1
    while True:
        seconds = sampler(calls) / calls
        if count is None:
            calls = min(MOST, 1 << max(0, round(sample / max(seconds, 1e-9)).bit_length() - 1))
        if clock() - start >= warm_up:
            return calls, seconds
