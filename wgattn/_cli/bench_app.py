"""`wgattn bench`'s commands and their options. What they do is in files of its own, loaded when it is asked for."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from wgattn._cli.arguments import Json, Option, all_but, flag, only_with_query, some, spread

bench = typer.Typer(help="Time wgattn beside its peers and the device's own ceilings.", no_args_is_help=True)


class Presets(StrEnum):
    """Which rows."""

    CPU = "cpu"
    GPU = "gpu"
    QUICK = "quick"


Call = Annotated[
    str | None, typer.Option("--q", metavar="B,T,N,H", help="Time one call, with this query, instead of a preset.")
]
PresetOption = Annotated[
    Presets | None,
    typer.Option("--preset", help="The rows; what fits the adapter, unless given. quick is a first look."),
]
Rounds = Annotated[int, typer.Option("--rounds", min=5, help="Timed rounds; medians are shown.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="PNG", help="Draw the rows; needs matplotlib.")]
Plain = Annotated[bool, flag("--plain/--no-plain", "With --q, time the plain family too.")]
PEERS = {
    "peers": Option(
        Annotated[
            str,
            typer.Option(
                "--peers", metavar="auto|none|LIST", help="Who is timed beside: jax, torch, onnxruntime, ncnn, …"
            ),
        ],
        "auto",
    )
}
PRESET = {"preset": Option(PresetOption)}
KEPT = {
    "rounds": Option(Rounds, 7),
    "as_json": Option(Json, False),
    "out": Option(
        Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the JSON there too, after every row.")]
    ),
    "plot": Option(Plot),
}
RUN = PRESET | PEERS | KEPT  # the options of a run, by the names that it takes


@bench.command()
@spread(call=all_but("residual", "cache"), run=RUN)
def forward(context: typer.Context, q: Call = None, call: Any = None, plain: Plain = False, run: Any = None) -> None:
    """Time the forward pass with inputs on the device, checked against the reference first."""
    _run(("forward",), cases=_single(context, q, plain, call), **run)


@bench.command()
@spread(call=some("keys", "kv_heads", "value_dim", "dtype", "causal", "window", "implementation"), run=RUN)
def backward(context: typer.Context, q: Call = None, call: Any = None, plain: Plain = False, run: Any = None) -> None:
    """Time forward and backward: the gradients by query, key and value, checked against the reference first."""
    _run(("backward",), cases=_single(context, q, plain, call), **run)


DECODE = some("keys", "kv_heads", "value_dim", "dtype", "cache", "implementation", dtype="f16", cache="float16")


@bench.command()
@spread(call=DECODE, run=RUN)
def decode(context: typer.Context, q: Call = None, call: Any = None, plain: Plain = False, run: Any = None) -> None:
    """Time the newest token's attention over a full cache: bytes of keys and values a second, beside plain reading."""
    _run(("decode",), cases=_single(context, q, plain, call), **run)


@bench.command()
@spread(call=some("keys", "kv_heads", "value_dim", "dtype", "causal", "window"), run=PRESET | KEPT)
def bridge(context: typer.Context, q: Call = None, call: Any = None, run: Any = None) -> None:
    """Time a call inside a JAX program from host to host: upload, GPU, download, callback, beside the unavoidable."""
    _run(("bridge",), peers="none", cases=_single(context, q, False, call), **run)


@bench.command("compile")
@spread(run=PRESET | KEPT)
def compile_(run: Any = None) -> None:
    """Time the first call of new variants in fresh processes, and what a cached call costs the host."""
    _run(("compile",), peers="none", **run)


@bench.command()
@spread(run=PRESET | KEPT)
def memory(run: Any = None) -> None:
    """Count the device's bytes beyond inputs and outputs, and what is left behind once warm."""
    _run(("memory",), peers="none", **run)


@bench.command("all")
@spread(run=RUN | {"rounds": Option(Annotated[int | None, typer.Option("--rounds", min=5, help="Timed rounds.")])})
def all_(run: Any = None) -> None:
    """Everything, one after the other: what to attach to an issue."""
    from wgattn.bench.run import COMMANDS

    rounds = run.pop("rounds") or (5 if run["preset"] == "quick" else 7)
    _run(COMMANDS, rounds=rounds, **run)


@bench.command()
def show(
    files: Annotated[list[Path], typer.Argument(help="What --json or --out wrote, of one device.")],
    markdown: Annotated[bool, flag("--markdown", "Print Markdown tables: the goals, then the rows.")] = False,
    plot: Plot = None,
) -> None:
    """Print reports that were written before, as one table, or draw them; no adapter is needed."""
    from wgattn._cli.bench import shown

    shown(files, markdown, plot)


def _single(context: typer.Context, q: str | None, plain: bool, call: dict[str, Any]) -> Any:
    if q is None:
        only_with_query(context, "plain", *call)
        return None
    from wgattn._cli.options import workload
    from wgattn.bench.presets import single

    return single(context.info_name, workload(q, **call), plain)  # type: ignore[arg-type]


def _run(commands: tuple[str, ...], **options: Any) -> None:
    from wgattn._cli.bench import bench as command

    raise typer.Exit(command(commands, **options))
