"""`wgattn bench`: figures as a table or as JSON, with a progress bar while they are taken."""

from dataclasses import asdict

from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from wgattn import _runtime
from wgattn._cli import show
from wgattn._cli.info import software_note
from wgattn.bench.forward import Figures, default_workload
from wgattn.bench.forward import forward as measured
from wgattn.bench.workload import Workload


def forward(workload: Workload | None, rounds: int, plain: bool | None, peer: bool, as_json: bool) -> None:
    """Time the forward pass and print the figures."""
    profile = _runtime.current_profile()
    figures = timed(workload or default_workload(profile), rounds, plain, peer)
    if as_json:
        show.as_json(asdict(figures))
        return
    print_figures(figures)
    if note := software_note(profile.kind):
        show.lines({"note": note})


def timed(workload: Workload, rounds: int = 7, plain: bool | None = None, peer: bool = True) -> Figures:
    """The figures, with a progress bar on stderr while they are taken."""
    columns = TextColumn("{task.description}"), BarColumn()
    with Progress(*columns, console=show.errors, transient=True) as progress:
        task = progress.add_task("checking", total=None)
        return measured(workload, rounds, plain, peer, lambda name: progress.update(task, description=f"timing {name}"))


def print_figures(figures: Figures) -> None:
    """The call, the devices, and a row a contestant."""
    show.lines(
        {"call": figures.call, "adapter": figures.adapter, "jax on": figures.jax_device, "variant": figures.variant}
    )
    table = Table(box=None, padding=(0, 3, 0, 0))
    table.add_column("median of a call")
    for column in ("wall", "device clock", "GFLOP/s", "speed of wgattn over it", "max error"):
        table.add_column(column, justify="right")
    for row in figures.rows:
        gpu = "" if row.gpu_seconds is None else duration(row.gpu_seconds)
        rate, ratio = f"{row.operations_a_second / 1e9:,.1f}", f"{1 / row.ratio:.2f}×"
        table.add_row(row.name, duration(row.seconds), gpu, rate, ratio, f"{row.error:.1e}")
    show.console.print(table)
    for note in figures.notes:
        show.lines({"note": note})


def duration(seconds: float) -> str:
    """A time with three digits and its unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
