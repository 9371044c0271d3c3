"""The options that commands share: how a call is spelled on the command line, and tables of options for commands."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import typer

from wgattn._cache_form import DTYPES
from wgattn._dtypes import short_name


def flag(name: str, told: str, **more: Any) -> Any:
    """An option that takes no value: none is shown beside it."""
    return typer.Option(name, metavar="", help=told, **more)


Json = Annotated[bool, flag("--json", "Print JSON instead of a table.")]
STORED = tuple(dtype.name for dtype in DTYPES)
SHORT = {short_name(dtype): dtype.name for dtype in DTYPES}  # f16 and so on, as --dtype says it
FAMILIES = "plain, flash_tiled, flash_matrix, flash_rows, decode, decode_lanes, decode_subgroups or decode_matrix"


class Option(NamedTuple):
    """An option of a table: its annotation and its default."""

    annotation: Any
    default: Any = None


def _told(kind: Any, name: str, told: str, metavar: str | None = None, default: Any = None) -> Option:
    shown = flag(name, told) if kind is bool else typer.Option(name, metavar=metavar, help=told)
    return Option(Annotated[kind, shown], default)


CALL: Mapping[str, Option] = {
    "keys": _told(int | None, "--keys", "Number of keys; T unless given.", "S"),
    "kv_heads": _told(int | None, "--kv-heads", "Key/value heads; N unless given.", "K"),
    "value_dim": _told(int | None, "--value-dim", "Head dim of value; H unless given.", "HV"),
    "dtype": _told(str, "--dtype", "Of query, key and value.", "f32|f16|bf16", "f32"),
    "causal": _told(bool, "--causal", "Row i keeps keys up to i + offset.", default=False),
    "window": _told(str | None, "--window", "local_window_size, or one number.", "LEFT,RIGHT"),
    "offset": _told(int | None, "--offset", "query_offset."),
    "rope": _told(bool, "--rope", "Rotate query and key by their positions.", default=False),
    "softcap": _told(float | None, "--softcap", "Logits are capped: c·tanh(s/c)."),
    "scale": _told(float | None, "--scale", "Instead of 1/√H."),
    "sinks": _told(bool, "--sinks", "One sink logit a head.", default=False),
    "bias": _told(str | None, "--bias", "A bias with these axes of BNTS, e.g. NTS.", "AXES"),
    "mask": _told(str | None, "--mask", "A bool mask with these axes of BNTS.", "AXES"),
    "query_lengths": _told(bool, "--query-lengths", "query_seq_lengths are given.", default=False),
    "key_lengths": _told(bool, "--key-lengths", "key_value_seq_lengths are given.", default=False),
    "residual": _told(bool, "--residual", "The logsumexp of each row is returned too.", default=False),
    "cache": _told(str | None, "--cache", f"Over a KVCache that stores {', '.join(STORED)}.", "DTYPE"),
    "implementation": _told(str | None, "--implementation", f"The kernel family that must serve: {FAMILIES}.", "NAME"),
}


def some(*names: str, **defaults: Any) -> Mapping[str, Option]:
    """These options of a call, with defaults of their own where given."""
    return {name: CALL[name]._replace(default=defaults.get(name, CALL[name].default)) for name in names}


def all_but(*names: str) -> Mapping[str, Option]:
    """The options of a call without these."""
    return some(*(name for name in CALL if name not in names))


def only_with_query(context: typer.Context, *names: str) -> None:
    """Raise typer.BadParameter for these options of a call where they are given, and no query that they go with."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = "--" + name.replace("_", "-")
            told = "it is an option of one call, and without --q none is given: add --q B,T,N,H, or leave it out"
            raise typer.BadParameter(told, param_hint=option)


def spread(**tables: Mapping[str, Option]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have a command take the options of a table in place of its parameter of that name, which gets them as a dict."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        shown: list[inspect.Parameter] = []
        for own in inspect.signature(command).parameters.values():
            options = tables.get(own.name, {own.name: Option(own.annotation, own.default)})
            shown += [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
                for name, (annotation, default) in options.items()
            ]

        @functools.wraps(command)
        def run(**given: Any) -> Any:
            dicts = {table: {name: given.pop(name) for name in options} for table, options in tables.items()}
            return command(**dicts, **given)

        run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in shown}
        return run

    return decorate
