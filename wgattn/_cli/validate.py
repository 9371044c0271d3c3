"""`wgattn validate`: the grid on the adapter at hand, each call against the float64 reference and jax.nn."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import wgattn
from wgattn import _runtime
from wgattn._cli import show
from wgattn._cli.grid import grid
from wgattn._cli.info import software_note
from wgattn.bench.workload import Workload


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call gave. `share`: its worst error over what is allowed; `fault`: what is wrong, or empty."""

    group: str
    call: str
    variant: str
    share: float
    fault: str


def validate(quick: bool, as_json: bool) -> int:
    """Check every call of the grid and print a summary. Gives the exit code: 1 where a call failed."""
    profile = _runtime.current_profile()
    outcomes = list(_checked(grid(quick)))
    failed = [outcome for outcome in outcomes if outcome.fault]
    if as_json:
        show.as_json({"profile": profile.to_json(), "outcomes": [asdict(outcome) for outcome in outcomes]})
        return 1 if failed else 0
    show.lines({"adapter": f"{profile.name} ({profile.kind}, {profile.backend}, {profile.driver})"})
    show.console.print(summary(outcomes))
    for outcome in failed[:20]:
        show.lines({"failed": f"{outcome.call}: {outcome.fault}"})
    verdict = f"{len(failed)} of {len(outcomes)} calls failed" if failed else f"all {len(outcomes)} calls are right"
    show.lines({"result": verdict})
    if note := software_note(profile.kind):
        show.lines({"note": note})
    return 1 if failed else 0


def check(group: str, workload: Workload) -> Outcome:
    """One call checked. An error that it raises is its fault."""
    arrays = workload.arrays()
    operands = [arrays.pop(name) for name in ("query", "key", "value")]
    try:
        report = wgattn.validate(*operands, **arrays, **workload.static)
    except (wgattn.WgattnError, ValueError, TypeError) as error:
        return Outcome(group, workload.name, "", float("inf"), f"{type(error).__name__}: {error}")
    share = max(worst_share(measured) for measured in report.measures)
    fault = "" if report.ok else f"{share:.3g} times the allowed error, by {report.variant}"
    return Outcome(group, workload.name, report.variant, share, fault)


def worst_share(measured: Any) -> float:
    """The larger of a measure's two errors, each over what is allowed."""
    return max(measured.norm / measured.allowed.norm, measured.most / measured.allowed.most)


def summary(outcomes: list[Outcome]) -> Table:
    """A row a group: calls, failures, the worst error over what is allowed, and the families that served."""
    table = Table(box=None, padding=(0, 3, 0, 0))
    table.add_column("calls of")
    for column in ("number", "failed", "worst / allowed"):
        table.add_column(column, justify="right")
    table.add_column("served by", overflow="fold")
    for group in dict.fromkeys(outcome.group for outcome in outcomes):
        rows = [outcome for outcome in outcomes if outcome.group == group]
        families = dict.fromkeys(outcome.variant.partition("-")[0] for outcome in rows if outcome.variant)
        failed, worst = sum(bool(outcome.fault) for outcome in rows), max(outcome.share for outcome in rows)
        table.add_row(group, str(len(rows)), str(failed), f"{worst:.2f}", ", ".join(families))
    return table


def _checked(calls: list[tuple[str, Workload]]) -> Iterator[Outcome]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=show.errors, transient=True) as progress:
        task = progress.add_task("", total=len(calls))
        for group, workload in calls:
            progress.update(task, description=f"{group:18}")
            yield check(group, workload)
            progress.advance(task)
