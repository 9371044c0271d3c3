"""`wgattn tune`: what is faster than the built-in rules on this device, tried, shown and kept."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from wgattn import _runtime
from wgattn._cli import show
from wgattn._cli.bench import duration
from wgattn._errors import WgattnError
from wgattn._runtime import tuned
from wgattn.bench.attention import Case, Pace
from wgattn.bench.tune import Row, common, rows_of, winners


def tune(case: Case | None, rounds: int, as_json: bool) -> int:
    """Try the candidates for a call, or for common ones, keep what is faster, and show it all; 1 where one was wrong
    or a call failed.

    Raises WgattnError where nothing could be kept, ValueError for a file that is not tune's, what the rules' call does.
    """
    if os.environ.get("WGATTN_LIMITS"):
        raise ValueError("WGATTN_LIMITS makes this device stand in for another: tune it without")
    tuned.check_writable()
    profile = _runtime.current_profile()
    cases = common(profile) if case is None else (case,)
    failed: dict[str, str] = {}
    rows = list(_rows(cases, profile, Pace(rounds, 0.1, 1 << 22), failed))
    if len(failed) == len(cases):
        raise WgattnError("; ".join(failed.values()))
    found = winners(rows)
    file = tuned.keep(profile, found, {row.constant for row in rows})
    if as_json:
        show.as_json({"file": str(file), "kept": found, "rows": [row_values(row) for row in rows], "failed": failed})
    else:
        if rows:
            print_rows(rows, found)
        show.lines(verdict(cases, rows, found, str(file)))
        show.lines({f"failed: {call}": told for call, told in failed.items()})
    return int(bool(failed) or any(trial.fault for row in rows for trial in row.trials))


def shown(as_json: bool) -> None:
    """Print what the file holds. Raises ValueError for a file that is not tune's. Needs no adapter."""
    entries, file = tuned.entries(), tuned.path()
    if as_json:
        told = [{**entry.as_json(), "is_read": entry.is_read} for entry in entries]
        show.as_json({"file": None if file is None else str(file), "entries": told})
        return
    show.lines({"file": "none: WGATTN_TUNED switches it off" if file is None else str(file)})
    if not entries:
        show.lines({"tuned": "nothing: `wgattn tune` tries what there is"})
    for entry in entries:
        show.heading(entry.device)
        show.lines(
            {
                "provider": f"{entry.provider}, {entry.backend}, driver {entry.driver or 'not named'}",
                "wgattn": entry.version + ("" if entry.is_read else ", another version: it is not read"),
                "constants": "\n".join(f"{name} {value}" for name, value in entry.constants),
            }
        )


def forget() -> None:
    """Remove the file, whatever it holds. Raises OSError."""
    file = tuned.forget()
    show.lines({"forgotten": "nothing: there is no file" if file is None else str(file)})


def print_rows(rows: Sequence[Row], found: dict[str, int]) -> None:
    """A table: each constant of a call, the rules' time, the best, and how far the rules are from it."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("call", overflow="fold", ratio=3)
    for column in ("rules", "best", "rules / best"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("value", ratio=2, overflow="fold")
    for row in rows:
        call = Text.assemble((row.constant, "bold"), "\n", row.call, "\n", (row.variant, "dim"))
        best, kept = row.best, found.get(row.constant)
        told = "the rules' own" if best.is_rule else str(best.value)
        if kept is not None:
            told += ", which is kept" if kept == best.value else f", {kept} is kept"
        faults = [f"\n{trial.value}: {trial.fault}" for trial in row.trials if trial.fault]
        value = Text.assemble(told, *((fault, "red") for fault in faults))
        table.add_row(call, duration(row.rule), duration(best.seconds or row.rule), f"{row.ratio:.2f}", value)
    show.console.print(table)


def verdict(cases: Sequence[Case], rows: Sequence[Row], found: dict[str, int], file: str) -> dict[str, str]:
    """What came of it, in words."""
    if not rows:
        return {"tuned": f"nothing: no constant of {len(cases)} call(s) could be another on this device"}
    worst = max(rows, key=lambda row: row.ratio)
    told = {"rules": f"at most {worst.ratio:.2f} times as long as the best ({worst.constant}, {worst.call})"}
    if not found:
        return told | {"kept": "nothing: no value is faster by 3 % over its calls"}
    values = ", ".join(f"{name} {value}" for name, value in found.items())
    return told | {"kept": f"{values}\nin {file}, for processes that start from now on"}


def row_values(row: Row) -> dict[str, Any]:
    """A row for programs."""
    return {
        **asdict(row),
        "best": None if row.best.is_rule else row.best.value,
        "ratio": row.ratio,
    }


def _rows(cases: Sequence[Case], profile: _runtime.DeviceProfile, pace: Pace, failed: dict[str, str]) -> Iterator[Row]:
    """The rows of all calls as they are found; one that fails goes to `failed`, and the next is tried all the same."""
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    with Progress(*columns, console=show.errors, transient=True) as progress:
        task = progress.add_task("", total=len(cases))
        for place, case in enumerate(cases):

            def told(step: str, share: float, case: Case = case, place: int = place) -> None:
                words = f"{case.command} {case.workload.name}: {step}"[:72]
                progress.update(task, description=words, completed=place + share)

            try:
                yield from rows_of(case, profile, pace, told)
            except (WgattnError, MemoryError) as error:
                failed[f"{case.command} {case.workload.name}"] = str(error) or type(error).__name__
