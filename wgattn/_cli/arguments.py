"""The options that commands share: how a call is spelled on the command line."""

from typing import Annotated

import typer

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
