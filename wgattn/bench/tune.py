"""The search for tuned constants: what a family could take beside its rules, checked, then timed in turn with them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

import wgattn
from wgattn import _run, _runtime, _schedule
from wgattn._kernels.attention.backward.choose import FAMILIES as BACKWARD
from wgattn._kernels.attention.backward.problem import GradientProblem
from wgattn._kernels.attention.choose import FAMILIES
from wgattn._kernels.attention.families import named
from wgattn._runtime.profile import DeviceProfile, Tuned
from wgattn.bench.attention import Case, Pace, arrays_of, ours_of, right_of
from wgattn.bench.ceilings import repeated, sample_seconds
from wgattn.bench.checking import Right
from wgattn.bench.timing import Sampler, medians
from wgattn.bench.workload import Workload

MARGIN = 1.03  # how many times as fast as the rules' a constant is that is kept: clocks vary by less
SLOW = 2.0  # times the rules' first run: what is slower is not timed again
NEAR = 1.1  # times the best's: those are timed once more, since the luckiest of many looks faster than it is
RULES = "the rules"

Told = Callable[[str, float], object]  # hears what is done, and which share of the call is


@dataclass(frozen=True, slots=True)
class Trial:
    """A value of a constant in one call: its seconds, or the fault for which it has none.

    `is_rule`: the program is that of the built-in rules.
    """

    value: int
    seconds: float | None = None
    fault: str = ""
    is_rule: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """All values of one constant in one call. `rule`: the seconds of the built-in rules."""

    call: str
    variant: str
    constant: str
    rule: float
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """The fastest; where none is faster, the rules' own."""
        own = next((trial for trial in self.trials if trial.is_rule), Trial(-1, self.rule, is_rule=True))
        timed = [trial for trial in self.trials if trial.seconds is not None]
        return min([own, *timed], key=lambda trial: trial.seconds or math.inf)

    @property
    def ratio(self) -> float:
        """How many times as long as the best the rules take."""
        return self.rule / (self.best.seconds or self.rule)


def common(profile: DeviceProfile) -> tuple[Case, ...]:
    """Calls as models make them, small enough for a device of this kind."""
    if profile.is_cpu:
        short = Workload(B=1, T=512, N=8, H=64, S=512, K=2, Hv=64, causal=True)
        wide = replace(short, H=128, Hv=128)
        token = Workload(B=1, T=1, N=32, H=128, S=4096, K=8, Hv=128)
        return _cases("forward", short, wide, replace(short, T=8, S=2048, offset=2040), token)
    layer = Workload(B=2, T=2048, N=16, H=64, S=2048, K=16, Hv=64, causal=True)
    deep = replace(layer, H=128, Hv=128)
    few = Workload(B=4, T=8, N=32, H=128, S=4096, K=8, Hv=128, causal=True, offset=4088, dtype="f16")
    tokens = [
        Workload(B=B, T=1, N=32, H=128, S=S, K=8, Hv=128, dtype=dtype)
        for B, S, dtype in ((1, 8192, "f16"), (16, 4096, "f16"), (4, 4096, "f32"))
    ]
    half = [replace(each, dtype="f16") for each in (layer, deep)]
    prompts = [replace(each, B=1, T=512, S=512) for each in (layer, deep, *half)]
    stored = replace(tokens[1], cache="int8")
    return (
        *_cases("forward", layer, deep, *half, *prompts, few, *tokens),
        *_cases("decode", stored),
        *_cases("backward", layer, deep),
    )


def _cases(command: str, *workloads: Workload) -> tuple[Case, ...]:
    return tuple(Case(command, command, each) for each in workloads)  # type: ignore[arg-type]


def rows_of(case: Case, profile: DeviceProfile, pace: Pace, told: Told = lambda step, share: None) -> tuple[Row, ...]:
    """A row for each constant that changes the call's program; none where nothing can be tuned.

    Raises ValidationError where the rules' own result is off, UnsupportedError.
    """
    told("the reference", 0.0)
    arrays = arrays_of(case)
    right = right_of(case, case.workload, arrays, pace.logits)
    ours = ours_of(case.command, case.workload, arrays)
    graph, buffers = ours.program.schedule.graph, ours.buffers()

    def scheduled(*constants: tuple[str, int]) -> _schedule.Schedule:
        return _schedule.compile(graph, replace(profile, tuned=constants))

    rules = scheduled()
    schedules = {RULES: rules}
    places: dict[tuple[str, int], str] = {}  # of each constant, under which name its program is timed
    for constant in candidates(rules, case.command == "backward", replace(profile, tuned=())):
        made = scheduled(constant)
        same = (name for name, known in schedules.items() if known.program == made.program)
        places[constant] = next(same, f"{constant[0]} {constant[1]}")
        schedules.setdefault(places[constant], made)

    samplers, faults, first = {}, {}, {}
    for place, (name, schedule) in enumerate(schedules.items()):
        told(name, place / (2 * len(schedules)))
        try:
            if fault := _fault(schedule, buffers, right):
                raise wgattn.ValidationError(fault)
            sampler = repeated(schedule.program, profile, lambda: buffers)
            first[name] = min(sampler(1), sampler(1))
            if first[name] <= SLOW * first[RULES]:
                samplers[name] = sampler
        except wgattn.WgattnError as error:
            if name == RULES:
                raise
            faults[name] = str(error)
    seconds = first | _timed(samplers, pace, profile, lambda name: told(f"timing {name}", 0.5))
    least = min(seconds[name] for name in samplers)
    final = {name: sampler for name, sampler in samplers.items() if name == RULES or seconds[name] <= NEAR * least}
    if len(final) > 1:
        seconds |= _timed(final, pace, profile, lambda name: told(f"timing {name} again", 0.75))
    variant = rules.chosen[-1].variant.name
    trials: dict[str, list[Trial]] = {}
    for (key, value), name in places.items():
        trial = Trial(value, seconds.get(name), faults.get(name, ""), name == RULES)
        trials.setdefault(key, []).append(trial)
    return tuple(
        Row(f"{case.command} {case.workload.name}", variant, key, seconds[RULES], tuple(found))
        for key, found in trials.items()
        if not all(trial.is_rule for trial in found)
    )


def _timed(
    samplers: dict[str, Sampler], pace: Pace, profile: DeviceProfile, done: Callable[[str], object]
) -> dict[str, float]:
    again = None if profile.is_cpu else min(pace.warm_up, 0.05)  # all are on one GPU, whose clocks stay up
    return medians(samplers, pace.rounds, pace.warm_up, again, sample_seconds(profile), done)


def candidates(rules: _schedule.Schedule, backward: bool, profile: DeviceProfile) -> Tuned:
    """What the families that serve a call name to be tried; of a backward call, the backward family."""
    found: dict[tuple[str, int], None] = {}
    for chosen in rules.chosen:
        families = BACKWARD if isinstance(chosen.problem, GradientProblem) else FAMILIES
        if (families is BACKWARD) == backward:
            found |= dict.fromkeys(named(families, chosen.variant.family).candidates(chosen.problem, profile))
    return tuple(found)


def winners(rows: Sequence[Row]) -> dict[str, int]:
    """For each constant the value that is fastest over all its calls, by the mean of the ratios; those that the rules
    match are left out. Where a value is no candidate of a call, the rules serve that call."""
    found = {}
    for key in dict.fromkeys(row.constant for row in rows):
        mine = [row for row in rows if row.constant == key]
        values = dict.fromkeys(trial.value for row in mine for trial in row.trials)
        gains = {value: math.prod(_gain(row, value) for row in mine) ** (1 / len(mine)) for value in values}
        best = max(gains, key=lambda value: gains[value])
        if gains[best] >= MARGIN:
            found[key] = best
    return found


def _gain(row: Row, value: int) -> float:
    """How many times as fast as the rules' own; 0 for a value that is at fault."""
    trial = next((trial for trial in row.trials if trial.value == value), None)
    if trial is None:
        return 1.0
    return row.rule / trial.seconds if trial.seconds else 0.0


def _fault(schedule: _schedule.Schedule, buffers: list[_runtime.Buffer], right: Right) -> str:
    """What is wrong with the program's results, or empty."""
    made = [each for each in _runtime.prepare(schedule.program).run(buffers) if isinstance(each, _runtime.Buffer)]
    results = tuple(
        np.asarray(_run.download(made[output.buffer], output.view, output.layout.dtype)) for output in schedule.outputs
    )
    error, ok = right.error(results)
    return "" if ok else f"off by {error:.3g} (at most {right.allowed.most:.3g})"
