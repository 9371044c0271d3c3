"""How the command line prints: one console for results, one for errors, and aligned lines of a label and a text."""

import json
import math
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wgattn._terminal import columns

console = Console(highlight=False, width=columns(120))
errors = Console(stderr=True, highlight=False)


def error(message: str) -> None:
    """One readable message on stderr."""
    errors.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)


def lines(pairs: dict[str, str]) -> None:
    """Each label with its text beside it, wrapped under itself."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for label, text in pairs.items():
        table.add_row(label, Text(text))
    console.print(table)


def heading(title: str) -> None:
    console.print(Text(f"\n{title}", style="bold cyan"))


def verbatim(text: str) -> None:
    """Text whose columns matter: never wrapped, never styled."""
    console.print(Text(text.rstrip("\n")), soft_wrap=True, no_wrap=True)


def as_json(value: Any) -> None:
    """`value` as JSON, the only thing on stdout."""
    print(json_text(value))


def json_text(value: Any) -> str:
    """`value` as JSON that every program reads: it has no NaN and no infinity, null stands for them."""
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
