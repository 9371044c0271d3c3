"""`wgattn bench`'s commands and their options. What they do is in files of its own, loaded when it is asked for."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from wgattn._cli.arguments import (
    Bias,
    Causal,
    Dtype,
    Implementation,
    Json,
    KeyLengths,
    Keys,
    KvHeads,
    Mask,
    Offset,
    QueryLengths,
    Rope,
    Scale,
    Sinks,
    Softcap,
    ValueDim,
    Window,
)

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
Peers = Annotated[
    str,
    typer.Option("--peers", metavar="auto|none|LIST", help="Who is timed beside: jax, torch, onnxruntime, ncnn, …"),
]
Rounds = Annotated[int, typer.Option("--rounds", min=5, help="Timed rounds; medians are shown.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the JSON there too, after every row.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="PNG", help="Draw the rows; needs matplotlib.")]
Plain = Annotated[bool, typer.Option("--plain/--no-plain", help="With --q, time the plain family too.")]


@bench.command()
def forward(
    q: Call = None,
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
    plain: Plain = False,
    preset: PresetOption = None,
    peers: Peers = "auto",
    rounds: Rounds = 7,
    json: Json = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """Time the forward pass with inputs on the device, checked against the reference first."""
    cases = _single(
        "forward", q, plain, keys, kv_heads, value_dim, dtype,
        causal=causal, window=window, offset=offset, rope=rope, softcap=softcap, scale=scale, sinks=sinks,
        bias=bias, mask=mask, query_lengths=query_lengths, key_lengths=key_lengths, implementation=implementation,
    )  # fmt: skip
    _run(("forward",), preset, peers, rounds, json, out, plot, cases)


@bench.command()
def backward(
    q: Call = None,
    keys: Keys = None,
    kv_heads: KvHeads = None,
    value_dim: ValueDim = None,
    dtype: Dtype = "f32",
    causal: Causal = False,
    window: Window = None,
    implementation: Implementation = None,
    plain: Plain = False,
    preset: PresetOption = None,
    peers: Peers = "auto",
    rounds: Rounds = 7,
    json: Json = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """Time forward and backward: the gradients by query, key and value, checked against the reference first."""
    call = {"causal": causal, "window": window, "implementation": implementation}
    cases = _single("backward", q, plain, keys, kv_heads, value_dim, dtype, **call)
    _run(("backward",), preset, peers, rounds, json, out, plot, cases)


@bench.command()
def decode(
    q: Call = None,
    keys: Keys = None,
    kv_heads: KvHeads = None,
    value_dim: ValueDim = None,
    dtype: Dtype = "f16",
    cache: Annotated[str, typer.Option("--cache", help="What the cache stores: float32, float16, int8, …")] = "float16",
    implementation: Implementation = None,
    plain: Plain = False,
    preset: PresetOption = None,
    peers: Peers = "auto",
    rounds: Rounds = 7,
    json: Json = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """Time the newest token's attention over a full cache: bytes of keys and values a second, beside plain reading."""
    call = {"window": None, "cache": cache, "implementation": implementation}
    cases = _single("decode", q, plain, keys, kv_heads, value_dim, dtype, **call)
    _run(("decode",), preset, peers, rounds, json, out, plot, cases)


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
    rounds: Rounds = 7,
    json: Json = False,
) -> None:
    """Time a call inside a JAX program from host to host: upload, GPU, download, callback, beside the unavoidable."""
    from wgattn._cli.bench_bridge import bridge as command
    from wgattn._cli.options import workload

    call = None if q is None else workload(q, keys, kv_heads, value_dim, dtype, causal=causal, window=window)
    command(call, rounds, json)


@bench.command("compile")
def compile_(
    preset: PresetOption = None, rounds: Rounds = 7, json: Json = False, out: Out = None, plot: Plot = None
) -> None:
    """Time the first call of new variants in fresh processes, and what a cached call costs the host."""
    _run(("compile",), preset, "none", rounds, json, out, plot)


@bench.command()
def memory(
    preset: PresetOption = None, rounds: Rounds = 7, json: Json = False, out: Out = None, plot: Plot = None
) -> None:
    """Count the device's bytes beyond inputs and outputs, and what is left behind once warm."""
    _run(("memory",), preset, "none", rounds, json, out, plot)


@bench.command("all")
def all_(
    preset: PresetOption = None,
    peers: Peers = "auto",
    rounds: Annotated[int | None, typer.Option("--rounds", min=5, help="Timed rounds; medians are shown.")] = None,
    json: Json = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """Everything, one after the other: what to attach to an issue."""
    from wgattn.bench.run import COMMANDS

    _run(COMMANDS, preset, peers, rounds or (5 if preset == "quick" else 7), json, out, plot)


@bench.command()
def show(
    files: Annotated[list[Path], typer.Argument(help="What --json or --out wrote, of one device.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    plot: Plot = None,
) -> None:
    """Print reports that were written before, as one table, or draw them; no adapter is needed."""
    from wgattn._cli.bench import shown

    shown(files, markdown, plot)


def _single(command: str, q: str | None, plain: bool, *sizes: Any, **call: Any) -> Any:
    if q is None:
        return None
    from wgattn._cli.options import workload
    from wgattn.bench.presets import single

    return single(command, workload(q, *sizes, **call), plain)  # type: ignore[arg-type]


def _run(commands: tuple[str, ...], *options: Any) -> None:
    from wgattn._cli.bench import bench as command

    raise typer.Exit(command(commands, *options))
