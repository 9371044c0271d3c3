"""A benchmark from its first ceiling to its last row. Rows come as they are made; one that fails says why."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import wgattn
from wgattn import _runtime
from wgattn.bench import presets
from wgattn.bench.attention import Case, Pace, Told, attention_row
from wgattn.bench.bridge import NAME as BRIDGE
from wgattn.bench.bridge import bridge
from wgattn.bench.ceilings import Ceilings, ceilings
from wgattn.bench.copies import copies_row
from wgattn.bench.first_call import cached_call_row, cached_step_row, first_call_row
from wgattn.bench.memory import memory_row
from wgattn.bench.presets import HEAVY, SMALL, Preset
from wgattn.bench.report import Report, Row
from wgattn.bench.workload import Workload

COMMANDS = ("forward", "decode", "backward", "bridge", "compile", "memory")


@dataclass(frozen=True, slots=True)
class Job:
    """A row to be made, by `make`, which hears how far it is through the function that it is given."""

    command: str
    name: str
    shape: str
    make: Callable[[Ceilings, Told], Row]


def attention_jobs(cases: Sequence[Case], peers: tuple[str, ...], pace: Pace) -> tuple[Job, ...]:
    """A job for each case."""

    def job(case: Case) -> Job:
        def make(found: Ceilings, done: Told) -> Row:
            return attention_row(case, found, peers, pace, done)

        return Job(case.command, case.name, case.workload.name, make)

    return tuple(job(case) for case in cases)


def jobs_of(
    command: str, preset: Preset, peers: tuple[str, ...], pace: Pace, cases: Sequence[Case] | None = None
) -> tuple[Job, ...]:
    """The jobs of a command's preset, or of `cases` in its place. Raises ValueError for a command that is none."""
    if command in ("forward", "backward", "decode"):
        return attention_jobs(presets.cases(command, preset) if cases is None else cases, peers, pace)
    if command == "bridge" and cases is not None:
        return tuple(_bridge_job(case.workload, pace.rounds) for case in cases)
    make = {"compile": _compile_jobs, "memory": _memory_jobs, "bridge": _bridge_jobs}.get(command)
    if make is None:
        raise ValueError(f"no benchmark is called {command!r}: {', '.join(COMMANDS)}")
    return make(preset, pace.rounds)


def _compile_jobs(preset: Preset, rounds: int) -> tuple[Job, ...]:
    """First calls in processes of their own, and what a call of a compiled function costs the host."""
    kinds, processes = ({"light": SMALL}, 1) if preset == "quick" else ({"light": SMALL, "heavy": HEAVY}, 3)
    first = {f"first call, {kind}": call for kind, call in kinds.items()}
    least, step = replace(SMALL, T=16, S=16), replace(SMALL, T=1, S=512, causal=False)
    layouts: tuple[Literal["dense", "paged"], ...] = ("dense", "paged")
    return (
        *(
            _job("compile", name, call.name, partial(first_call_row, name, call, processes))
            for name, call in first.items()
        ),
        _job("compile", "a call that is cached", least.name, partial(cached_call_row, least, rounds)),
        *(
            _job("compile", f"append and attend, {layout}", step.name, partial(cached_step_row, layout, step, rounds))
            for layout in layouts
        ),
    )


def _memory_jobs(preset: Preset, _: int) -> tuple[Job, ...]:
    """The device's bytes beyond inputs and outputs."""
    return tuple(
        _job("memory", f"{command}, memory", call.name, partial(memory_row, command, call))
        for command, call in presets.memory(preset)
    )


def _bridge_jobs(preset: Preset, rounds: int) -> tuple[Job, ...]:
    """A call inside a JAX program, and copies of large arrays."""
    nbytes = presets.copied_bytes(preset)
    return (
        _bridge_job(presets.bridged(preset), rounds),
        _job("bridge", "up and down", f"{nbytes >> 20} MiB", partial(copies_row, nbytes, rounds)),
    )


def _bridge_job(call: Workload, rounds: int) -> Job:
    return _job("bridge", BRIDGE, call.name, lambda done: bridge(call, rounds, done).row())


def _job(command: str, name: str, shape: str, make: Callable[[Told], Row]) -> Job:
    """A job whose row stands beside no ceiling."""
    return Job(command, name, shape, lambda _, done: make(done))


def started(pace: Pace) -> Report:
    """A report with the device and its ceilings, and no row yet."""
    # without this, JAX takes most of a GPU's memory at its first array
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    profile = _runtime.current_profile()
    found = ceilings(profile, max(5, pace.rounds - 2), pace.warm_up)
    return Report(profile.name, profile.kind, profile.provider, profile.driver, wgattn.__version__, found)


def reports(report: Report, jobs: Sequence[Job], done: Callable[[Job, str], object]) -> Iterator[Report]:
    """The report after each further row. `done` hears of every step of a job."""
    for job in jobs:
        start = time.perf_counter()
        try:
            row = job.make(report.ceilings, lambda step, job=job: done(job, step))
        except Exception as error:  # the next rows can still be had
            row = Row(job.command, job.name, job.shape, failed=f"{type(error).__name__}: {error}")
        report = replace(report, rows=(*report.rows, replace(row, seconds=time.perf_counter() - start)))
        yield report
