"""A benchmark from its first ceiling to its last row. Rows come as they are made; one that fails says why."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import wgattn
from wgattn import _runtime
from wgattn.bench import presets
from wgattn.bench.attention import Case, Pace, Told, attention_row
from wgattn.bench.bridge import DEFAULT as BRIDGE
from wgattn.bench.bridge import bridge
from wgattn.bench.ceilings import Ceilings, ceilings
from wgattn.bench.copies import copies_row
from wgattn.bench.first_call import cached_call_row, cached_step_row, first_call_row
from wgattn.bench.memory import memory_row
from wgattn.bench.presets import Preset
from wgattn.bench.report import Report, Row

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
    """The jobs of a command's preset, or of `cases` in its place."""
    if command in ("forward", "backward", "decode"):
        return attention_jobs(presets.cases(command, preset) if cases is None else cases, peers, pace)
    light, heavy = presets.SMALL, presets.HEAVY
    if command == "compile":
        first = [("first call, light", light)] + [("first call, heavy", heavy)] * (preset != "quick")
        processes = 1 if preset == "quick" else 3
        jobs = [
            Job(command, name, call.name, lambda _, done, n=name, w=call: first_call_row(n, w, processes, done))
            for name, call in first
        ]
        least = replace(light, T=16, S=16)
        cached = Job(
            command, "a call that is cached", least.name, lambda _, done: cached_call_row(least, pace.rounds, done)
        )
        step = replace(light, T=1, S=512, causal=False)
        layouts: tuple[Literal["dense", "paged"], ...] = ("dense", "paged")
        steps = [
            Job(
                command,
                f"append and attend, {layout}",
                step.name,
                lambda _, done, x=layout: cached_step_row(x, step, pace.rounds, done),
            )
            for layout in layouts
        ]
        return (*jobs, cached, *steps)
    if command == "memory":
        return tuple(
            Job(command, f"{kind}, memory", call.name, lambda _, done, k=kind, w=call: memory_row(k, w, done))
            for kind, call in presets.memory(preset)
        )
    if command == "bridge":
        call = light if preset == "quick" else BRIDGE
        rounds = pace.rounds
        nbytes = presets.copied_bytes(preset)
        return (
            Job(command, "host to host", call.name, lambda _, done: bridge(call, rounds, done).row()),
            Job(command, "up and down", f"{nbytes >> 20} MiB", lambda _, done: copies_row(nbytes, rounds, done)),
        )
    raise ValueError(f"no benchmark is called {command!r}: {', '.join(COMMANDS)}")


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
