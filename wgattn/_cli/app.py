"""The commands and their options. What each does is in a file of its own, loaded when it is asked for."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from wgattn import _errors
from wgattn._cli import show
from wgattn._cli.arguments import Json, all_but, flag, only_with_query, spread
from wgattn._cli.bench_app import bench

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench, name="bench")


def version(asked: bool) -> None:
    """Print the version and stop, where it is asked for."""
    if asked:
        from wgattn import __version__

        typer.echo(f"wgattn {__version__}")
        raise typer.Exit


Version = Annotated[bool, flag("--version", "Print the version of wgattn.", callback=version, is_eager=True)]


@app.callback()
def main(version: Version = False) -> None:
    """Attention for any GPU over WebGPU: look at your adapter, check it, and see how a call is served."""


@app.command()
def info(json: Json = False) -> None:
    """Show the adapters, and what the one in use can do."""
    from wgattn._cli.info import info as command

    command(json)


@app.command()
def demo() -> None:
    """Record a call, show how it is fused and served, check it against jax.nn, and time it."""
    from wgattn._cli.demo import demo as command

    command()


@app.command()
def validate(
    quick: Annotated[bool, flag("--quick", "A tenth of the calls.")] = False,
    json: Json = False,
) -> None:
    """Check this adapter: many calls, each against the float64 reference and, where it has the call, jax.nn."""
    from wgattn._cli.validate import validate as command

    raise typer.Exit(command(quick, json))


@app.command()
@spread(call=all_but())
def explain(
    q: Annotated[
        str, typer.Option("--q", metavar="B,T,N,H", help="Shape of the query; T,N,H is a batch of one.")
    ] = "2,1024,8,64",
    call: Any = None,
    backward: Annotated[bool, flag("--backward", "Of the gradients by query, key and value.")] = False,
    wgsl: Annotated[bool, flag("--wgsl", "Print every shader that runs.")] = False,
    profile: Annotated[
        Path | None, typer.Option("--profile", help="Another machine's `wgattn info --json`: no adapter is needed.")
    ] = None,
    json: Json = False,
) -> None:
    """Say which kernel serves a call, why, and why not a faster one."""
    from wgattn._cli.explain import explain as command
    from wgattn._cli.options import workload

    for option in ("cache", "residual"):
        if backward and call[option]:
            raise typer.BadParameter("gradients are of a call without it: leave it out", param_hint=f"--{option}")
    if call["cache"] and call["key_lengths"]:
        raise typer.BadParameter("a cache has lengths of its own: leave it out", param_hint="--key-lengths")
    command(workload(q, **call), backward, profile, wgsl, json)


@app.command()
@spread(call=all_but("scale", "query_lengths", "key_lengths", "residual"))
def tune(
    context: typer.Context,
    q: Annotated[
        str | None,
        typer.Option("--q", metavar="B,T,N,H", help="Tune for one call, with this query, not for common ones."),
    ] = None,
    call: Any = None,
    backward: Annotated[bool, flag("--backward", "With --q, tune the backward pass.")] = False,
    rounds: Annotated[int, typer.Option("--rounds", min=5, help="Timed rounds; medians are compared.")] = 5,
    json: Json = False,
    show: Annotated[bool, flag("--show", "Print what was kept, and where.")] = False,
    forget: Annotated[bool, flag("--forget", "Remove what was kept.")] = False,
) -> None:
    """Try what kernels could do differently on this device, and keep what is faster for later processes."""
    from wgattn._cli import tune as command

    if show or forget:
        command.shown(json) if show else command.forget()
        return
    case = None
    if q is not None:
        from wgattn._cli.options import workload
        from wgattn.bench.presets import single

        kind = "backward" if backward else "decode" if call["cache"] else "forward"
        (case,) = single(kind, workload(q, **call), False)
    else:
        only_with_query(context, "backward", *call)
    raise typer.Exit(command.tune(case, rounds, json))


def run() -> None:
    """Run the command line; an error is one message on stderr and exit code 1."""
    try:
        app(prog_name="wgattn")
    except (_errors.WgattnError, ValueError, TypeError, OSError, MemoryError) as error:
        show.error(str(error) or type(error).__name__)
        sys.exit(1)
