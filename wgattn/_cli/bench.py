"""`wgattn bench`: rows as they come on stderr, then a table, JSON or a picture."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from wgattn import _runtime
from wgattn._cli import show
from wgattn._cli.info import software_note
from wgattn.bench.attention import Case, Pace
from wgattn.bench.ceilings import Ceilings
from wgattn.bench.goals import MISSING, Goal, Outcome, outcomes
from wgattn.bench.peers import chosen
from wgattn.bench.presets import preset_for
from wgattn.bench.report import Report, Row, merged
from wgattn.bench.run import Job, jobs_of, reports, started

QUICK = Pace(rounds=5, warm_up=0.1, logits=1 << 21)
FIGURES = {  # what JSON calls a figure, and what a person reads
    "a row": "a query row",
    "argument": "arguments",
    "argument copies": "NumPy copies of arguments",
    "beyond": "beyond inputs and outputs",
    "beyond of scores": "beyond ÷ all scores",
    "by hand": "launched by hand",
    "callback": "callback and Python",
    "copy": "NumPy copy",
    "download of copy": "download ÷ NumPy copy",
    "empty": "empty callback",
    "given": "inputs and outputs",
    "grown": "left behind when warm",
    "over": "overhead",
    "over unavoidable": "total ÷ unavoidable",
    "result copy": "NumPy copy of result",
    "scores": "all scores",
    "upload of copy": "upload ÷ NumPy copy",
}


def bench(
    commands: Sequence[str],
    preset: str | None,
    peers: str,
    rounds: int,
    as_json: bool,
    out: Path | None,
    plot: Path | None,
    cases: Sequence[Case] | None = None,
) -> int:
    """Run the benchmarks and print what they find; 1 where a row failed.

    Raises ValueError for an unknown peer and for files that cannot be written, before anything is timed.
    """
    profile = _runtime.current_profile()
    names = chosen(peers, profile.is_cpu)
    for option, path in (("--out", out), ("--plot", plot)):
        check_folder(option, path)
    if plot is not None:
        from wgattn.bench.plot import check_matplotlib

        check_matplotlib()
    taken = preset or preset_for(profile)
    pace = replace(QUICK if taken == "quick" else Pace(), rounds=rounds)
    jobs = [job for command in commands for job in jobs_of(command, taken, names, pace, cases)]  # type: ignore[arg-type]
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=show.errors, transient=True) as progress:
        task = progress.add_task("ceilings", total=len(jobs))
        report = first = started(pace)
        show.errors.print(f"{first.device}, {first.provider}: {ceilings_line(first.ceilings)}")

        def told(job: Job, step: str) -> None:
            progress.update(task, description=f"{job.name}: {step}"[:60])

        for report in reports(first, jobs, told):
            progress.advance(task)
            show.errors.print(Text(line(report.rows[-1])), soft_wrap=True)
            if out is not None:
                out.write_text(show.json_text(report.as_json()) + "\n", encoding="utf-8")
    _draw(report, plot)
    if as_json:
        show.as_json(report.as_json())
    else:
        print_report(report)
    return int(any(row.failed for row in report.rows))


def shown(paths: Sequence[Path], markdown: bool, plot: Path | None) -> None:
    """Print the reports in these files as one table, or draw them. Raises ValueError for a file that is none."""
    check_folder("--plot", plot)
    report = merged([read(path) for path in paths])
    _draw(report, plot)
    if markdown:
        print("\n".join(markdown_lines(report)))
    else:
        print_report(report)


def read(path: Path) -> Report:
    """The report in a file that `--json` or `--out` wrote. Raises ValueError for another file."""
    way = "`wgattn bench all --out FILE` writes one"
    try:
        return Report.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): {way}") from error
    except ValueError as error:
        raise ValueError(f"{path} is no report ({error}): {way}") from error


def check_folder(option: str, path: Path | None) -> None:
    """Raise ValueError where the file of an option has no folder to be written to, or is one itself."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise ValueError(f"{option} {path} cannot be written: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise ValueError(f"{option} {path} is a folder: give the path of a file")


def markdown_lines(report: Report) -> list[str]:
    """The ceilings, the goals unless the report has a row for none, and the rows: Markdown for documents and issues."""
    lines = [f"{report.device}, {report.provider}: {ceilings_line(report.ceilings)}.", ""]
    found = outcomes(report)
    if any(outcome.reason != MISSING for outcome in found):
        lines += ["| goal | asked | measured | of it |", "|---|---|---|---|"]
        lines += [*(_cells(*goal_cells(outcome)) for outcome in found), ""]
    lines += ["| call | variant | median | rate | share | beside | error |", "|---|---|---|---|---|---|---|"]
    for row in report.rows:
        beside = "<br>".join([*_ratios(row), *_figures(row)]) if not row.failed else f"failed: {row.failed}"
        median = "" if row.median_s is None else duration(row.median_s)
        share = "" if row.share is None else f"{row.share:.0%} of {row.ceiling}"
        error = "" if row.error is None else f"{row.error:.1e}"
        variant = f"`{row.variant}`" if row.variant else ""
        lines.append(_cells(row.call, variant, median, rate(row), share, beside, error))
    return lines


def _cells(*texts: str) -> str:
    """A row of a Markdown table, whatever an error's text holds."""
    return f"| {' | '.join(' '.join(text.split()).replace('|', '&#124;') for text in texts)} |"


def goal_cells(outcome: Outcome) -> tuple[str, str, str, str]:
    """A goal in words: what, how much is asked, how much was measured, and which part of what is asked that is."""
    goal, value = outcome.goal, outcome.value
    asked = f"{'≤' if goal.at_most else '≥'} {_goal_amount(goal, goal.asked)}"
    measured = outcome.reason if value is None else _goal_amount(goal, value)
    part = "" if outcome.reached is None else "met" if outcome.reached >= 1 else f"{outcome.reached:.2f}"
    return f"{outcome.call}: {figure(goal.of)}", asked, measured, part


def _goal_amount(goal: Goal, value: float) -> str:
    if goal.of == "share":
        return f"{value:.0%}"
    return duration(value) if goal.of == "seconds" else amount(goal.of, value)


def print_report(report: Report) -> None:
    """The device, its ceilings, and a table of the rows with the reasons below."""
    show.lines(
        {
            "adapter": f"{report.device}, {report.provider}, {report.driver}",
            "ceilings": ceilings_line(report.ceilings),
        }
    )
    print_rows(report.rows)
    if note := software_note(report.kind):
        show.lines({"note": note})


def print_rows(rows: Sequence[Row]) -> None:
    """A table: the call and its variant, the figures, and how fast it is beside each peer."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("call", overflow="fold", ratio=3)
    table.add_column("median", justify="right", no_wrap=True)
    table.add_column("rate", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("beside", ratio=2)
    for row in rows:
        call = Text.assemble((row.name, "bold"), "\n", row.shape, "\n", (row.variant, "dim"))
        if row.failed:
            table.add_row(call, "", "", "", Text(f"failed: {row.failed}", "red"))
            continue
        median = "" if row.median_s is None else duration(row.median_s)
        share = "" if row.share is None else f"{row.share:.0%}"
        beside = [*_ratios(row), *_figures(row)]
        table.add_row(call, median, rate(row), share, "\n".join(beside))
    show.console.print(table)
    absent: dict[str, dict[str, None]] = {}  # peers by the reason, each in the order of the rows
    for name, reason in ((name, reason) for row in rows for name, reason in row.absent.items()):
        absent.setdefault(reason, {})[name] = None
    if absent:
        show.lines({"not timed": "\n".join(f"{', '.join(names)}: {reason}" for reason, names in absent.items())})


def line(row: Row) -> str:
    """A row on one line."""
    if row.failed:
        return f"{row.name} ({row.shape}) failed: {row.failed}"
    parts = [row.name, "" if row.median_s is None else duration(row.median_s), rate(row)]
    parts.append("" if row.share is None else f"{row.share:.0%} of {row.ceiling}")
    parts += [*_ratios(row), *_figures(row)]
    parts.append("" if row.error is None else f"error {row.error:.1e}")
    return "  ".join(part for part in (*parts, row.variant) if part)


def ceilings_line(found: Ceilings) -> str:
    """The ceilings in words."""
    words = [f"{found.fma / 1e12:.3g} TFLOP/s multiply-add", f"{found.reads / 1e9:,.3g} GB/s storage reads"]
    if found.texture_reads is not None:
        words.append(f"{found.texture_reads / 1e9:,.3g} GB/s texture reads")
    if found.matrix is not None:
        words.append(f"{found.matrix / 1e12:.3g} TFLOP/s matrix units")
    if found.failed:
        words.append(f"matrix units not measured: {found.failed}")
    return ", ".join(words)


def rate(row: Row) -> str:
    """The row's operations or bytes a second."""
    if row.tflops is not None:
        return f"{row.tflops:.3g} TFLOP/s" if row.tflops >= 1 else f"{row.tflops * 1e3:.3g} GFLOP/s"
    return "" if row.gbps is None else f"{row.gbps:,.3g} GB/s"


def figure(name: str) -> str:
    """The name of a figure in words, without its unit."""
    words = name.removesuffix("_s").removesuffix("_bytes").removesuffix("_gbps").replace("_", " ")
    return FIGURES.get(words, words)


def amount(name: str, value: float) -> str:
    """A figure in the unit that its name ends with."""
    if name.endswith("_s"):
        return "-" * (value < 0) + duration(abs(value))
    if name.endswith("_gbps"):
        return f"{value:.3g} GB/s"
    return f"{value:,.0f} bytes" if name.endswith("_bytes") else f"{value:.2f}"


def duration(seconds: float) -> str:
    """A time with three digits and its unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _ratios(row: Row) -> list[str]:
    wrong = {peer.name: _off(peer.error) for peer in row.peers if not peer.right}
    return [f"{ratio:.2f}× as fast as {name}{wrong.get(name, '')}" for name, ratio in row.ratios.items()]


def _off(error: float) -> str:
    return f", which is off by {error:.1e}" if math.isfinite(error) else ", which gives NaN or infinities"


def _figures(row: Row) -> list[str]:
    return [f"{figure(name)} {amount(name, value)}" for name, value in row.figures.items()]


def _draw(report: Report, path: Path | None) -> None:
    if path is not None:
        from wgattn.bench.plot import plot

        plot(report, path)
