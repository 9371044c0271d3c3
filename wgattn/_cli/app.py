"""The commands and their options. What each does is in a file of its own, loaded when it is asked for."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from wgattn import _errors
from wgattn._cli import show

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Time wgattn beside jax.nn and the plain kernel.", no_args_is_help=True)
app.add_typer(bench, name="bench")


def version(asked: bool) -> None:
    """Print the version and stop, where it is asked for."""
    if asked:
        from wgattn import __version__

        typer.echo(f"wgattn {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version of wgattn.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Query = Annotated[str, typer.Option("--q", metavar="B,T,N,H", help="Shape of the query; T,N,H is a batch of one.")]
Keys = Annotated[int | None, typer.Option("--keys", metavar="S", help="Number of keys; T unless given.")]
KvHeads = Annotated[int | None, typer.Option("--kv-heads", metavar="K", help="Key/value heads; N unless given.")]
ValueDim = Annotated[int | None, typer.Option("--value-dim", metavar="HV", help="Head dim of value; H unless given.")]
Dtype = Annotated[str, typer.Option("--dtype", help="f32, f16 or bf16.")]
Causal = Annotated[bool, typer.Option("--causal", help="Row i keeps keys up to i + offset.")]
Window = Annotated[str | None, typer.Option("--window", metavar="LEFT,RIGHT", help="local_window_size, or one number.")]
Offset = Annotated[int | None, typer.Option("--offset", help="query_offset.")]
Rope = Annotated[bool, typer.Option("--rope", help="Rotate query and key by their positions.")]
Softcap = Annotated[float | None, typer.Option("--softcap", help="Logits are capped: c·tanh(s/c).")]
Scale = Annotated[float | None, typer.Option("--scale", help="Instead of 1/√H.")]
Sinks = Annotated[bool, typer.Option("--sinks", help="One sink logit a head.")]
Bias = Annotated[str | None, typer.Option("--bias", metavar="AXES", help="A bias with these axes of BNTS, e.g. NTS.")]
Mask = Annotated[str | None, typer.Option("--mask", metavar="AXES", help="A bool mask with these axes of BNTS.")]
QueryLengths = Annotated[bool, typer.Option("--query-lengths", help="query_seq_lengths are given.")]
KeyLengths = Annotated[bool, typer.Option("--key-lengths", help="key_value_seq_lengths are given.")]
Residual = Annotated[bool, typer.Option("--residual", help="The logsumexp of each row is returned too.")]
Implementation = Annotated[str | None, typer.Option("--implementation", help="The name of a kernel family.")]


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
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the calls.")] = False,
    json: Json = False,
) -> None:
    """Check this adapter: many calls, each against the float64 reference and, where it has the call, jax.nn."""
    from wgattn._cli.validate import validate as command

    raise typer.Exit(command(quick, json))


@app.command()
def explain(
    q: Query = "2,1024,8,64",
    keys: Keys = None,
    kv_heads: KvHeads = None,
    value_dim: ValueDim = None,
    dtype: Dtype = "f32",
    causal: Causal = False,
    window: Window = None,
    offset: Offset = None,
    rope: Rope = False,
    softcap: Softcap = None,
    scale: Scale = None,
    sinks: Sinks = False,
    bias: Bias = None,
    mask: Mask = None,
    query_lengths: QueryLengths = False,
    key_lengths: KeyLengths = False,
    residual: Residual = False,
    implementation: Implementation = None,
    wgsl: Annotated[bool, typer.Option("--wgsl", help="Print every shader that runs.")] = False,
    profile: Annotated[
        Path | None, typer.Option("--profile", help="Another machine's `wgattn info --json`: no adapter is needed.")
    ] = None,
    json: Json = False,
) -> None:
    """Say which kernel serves a call, why, and why not a faster one."""
    from wgattn._cli.explain import explain as command
    from wgattn._cli.options import workload

    call = workload(
        q, keys, kv_heads, value_dim, dtype,
        causal=causal, window=window, offset=offset, rope=rope, softcap=softcap, scale=scale, sinks=sinks,
        bias=bias, mask=mask, query_lengths=query_lengths, key_lengths=key_lengths, residual=residual,
        implementation=implementation,
    )  # fmt: skip
    command(call, profile, wgsl, json)


@bench.command()
def forward(
    q: Annotated[
        str | None,
        typer.Option("--q", metavar="B,T,N,H", help="The query; unless given, a size that fits the adapter."),
    ] = None,
    keys: Keys = None,
    kv_heads: KvHeads = None,
    value_dim: ValueDim = None,
    dtype: Dtype = "f32",
    causal: Causal = False,
    window: Window = None,
    offset: Offset = None,
    rope: Rope = False,
    softcap: Softcap = None,
    scale: Scale = None,
    sinks: Sinks = False,
    bias: Bias = None,
    mask: Mask = None,
    query_lengths: QueryLengths = False,
    key_lengths: KeyLengths = False,
    implementation: Implementation = None,
    rounds: Annotated[int, typer.Option("--rounds", min=5, help="Timed rounds; medians are shown.")] = 7,
    plain: Annotated[
        bool | None, typer.Option("--plain/--no-plain", help="Time the plain family too; if it is quick, unless given.")
    ] = None,
    jax: Annotated[bool, typer.Option("--jax/--no-jax", help="Time jax.nn too.")] = True,
    json: Json = False,
) -> None:
    """Time the forward pass with inputs on the device, checked against the reference first."""
    from wgattn._cli.bench import forward as command
    from wgattn._cli.options import workload

    call = None if q is None else workload(
        q, keys, kv_heads, value_dim, dtype,
        causal=causal, window=window, offset=offset, rope=rope, softcap=softcap, scale=scale, sinks=sinks,
        bias=bias, mask=mask, query_lengths=query_lengths, key_lengths=key_lengths, implementation=implementation,
    )  # fmt: skip
    command(call, rounds, plain, jax, json)


@bench.command()
def bridge(
    q: Annotated[
        str | None, typer.Option("--q", metavar="B,T,N,H", help="The query; 1,2048,8,64, causal, K=2, unless given.")
    ] = None,
    keys: Keys = None,
    kv_heads: KvHeads = None,
    value_dim: ValueDim = None,
    dtype: Dtype = "f32",
    causal: Causal = False,
    window: Window = None,
    rounds: Annotated[int, typer.Option("--rounds", min=5, help="Timed rounds; medians are shown.")] = 7,
    json: Json = False,
) -> None:
    """Time a call inside a JAX program from host to host: upload, GPU, download, callback, beside the unavoidable."""
    from wgattn._cli.bench import bridge as command
    from wgattn._cli.options import workload

    call = None if q is None else workload(q, keys, kv_heads, value_dim, dtype, causal=causal, window=window)
    command(call, rounds, json)


def run() -> None:
    """Run the command line; an error is one message on stderr and exit code 1."""
    try:
        app(prog_name="wgattn")
    except (_errors.WgattnError, ValueError, TypeError, OSError, MemoryError) as error:
        show.error(str(error) or type(error).__name__)
        sys.exit(1)
