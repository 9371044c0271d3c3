"""`wgattn bench`: figures as a table or as JSON, with a progress bar while they are taken."""

from dataclasses import asdict

from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from wgattn import _runtime
from wgattn._cli import show
from wgattn._cli.info import software_note
from wgattn.bench.bridge import DEFAULT, Bridge
from wgattn.bench.bridge import bridge as bridged
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


def bridge(workload: Workload | None, rounds: int, as_json: bool) -> None:
    """Time a call inside a JAX program, from host to host, and print its parts."""
    columns = TextColumn("{task.description}"), BarColumn()
    with Progress(*columns, console=show.errors, transient=True) as progress:
        task = progress.add_task("checking", total=None)
        found = bridged(workload or DEFAULT, rounds, lambda name: progress.update(task, description=f"timing {name}"))
    derived = {"callback": found.callback, "unavoidable": found.unavoidable, "ratio": found.ratio}
    if as_json:
        show.as_json(asdict(found) | derived)
        return
    print_bridge(found)


def print_bridge(found: Bridge) -> None:
    """The whole call, its parts beside what of them is unavoidable, and the peer."""
    show.lines({"call": found.call, "adapter": found.adapter, "jax on": found.jax_device, "variant": found.variant})
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("median of a call")
    for column in ("wgattn.jax", "GB/s", "unavoidable", "as"):
        table.add_column(column, justify="right" if column != "as" else "left")
    rows = (
        ("upload", found.upload, found.argument_bytes, found.argument_copies, "a NumPy copy of each argument"),
        ("GPU", found.gpu, None, found.gpu, ""),
        ("download", found.download, found.result_bytes, found.result_copy, "a NumPy copy of the result"),
        ("callback", found.callback, None, found.empty, "an empty pure_callback"),
        ("host to host", found.total, None, found.unavoidable, f"{found.ratio:.2f}× the unavoidable"),
    )
    for name, seconds, nbytes, least, words in rows:
        shown = duration(seconds) if seconds > 0 else "0"
        rate = "" if nbytes is None or seconds <= 0 else f"{nbytes / seconds / 1e9:.1f}"
        table.add_row(name, shown, rate, duration(least), words)
    show.console.print(table)
    if found.peer is not None:
        show.lines({"jax.nn, jit": f"{duration(found.peer)}: wgattn.jax is {found.peer / found.total:.2f}× as fast"})


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
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("median of a call")
    for column in ("wall", "device clock", "GFLOP/s", "wgattn is", "max error"):
        table.add_column(column, justify="right")
    for row in figures.rows:
        gpu = "" if row.gpu_seconds is None else duration(row.gpu_seconds)
        rate = f"{row.operations_a_second / 1e9:,.1f}"
        ratio = "" if row is figures.rows[0] else f"{1 / row.ratio:.2f}× as fast"
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
