"""`wgattn bench bridge`: a call inside a JAX program in parts, beside what of them no bridge avoids."""

from dataclasses import asdict

from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from wgattn._cli import show
from wgattn._cli.bench import duration
from wgattn.bench.bridge import DEFAULT, Bridge
from wgattn.bench.bridge import bridge as bridged
from wgattn.bench.workload import Workload


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
