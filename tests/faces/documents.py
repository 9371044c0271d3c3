"""The code in Markdown pages: its ```python blocks, and the ```text block right behind one, which is what it prints.

`python -m tests.faces.documents` runs every page and writes what its blocks print into them, and renews the README's
table of speed.
"""

import contextlib
import io
import os
import re
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```$)?", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code, the line of its page where it starts, what it has to print if the page says, and its place."""

    code: str
    line: int
    output: str | None
    span: tuple[int, int]  # of the output in the page


def blocks(text: str) -> list[Block]:
    """The blocks of a page in order."""
    return [
        Block(m["code"], text.count("\n", 0, m.start("code")), m["output"], m.span("output"))
        for m in BLOCK.finditer(text)
    ]


def printed(page: Path, text: str) -> list[str]:
    """What each block of a page prints; blocks of a page share their names."""
    names: dict[str, object] = {"__name__": "__main__"}
    found = []
    for block in blocks(text):
        out = io.StringIO()
        source = "\n" * block.line + block.code  # so that a traceback shows the page's own line
        with contextlib.redirect_stdout(out), mock.patch.dict(os.environ, {"COLUMNS": ""}):
            exec(compile(source, str(page.relative_to(ROOT)), "exec"), names)
        found.append("".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines()))
    return found


def renewed(text: str, outputs: list[str]) -> str:
    """The page with the outputs that its blocks have now."""
    for block, output in reversed(list(zip(blocks(text), outputs, strict=True))):
        if block.output is not None:
            text = text[: block.span[0]] + output + text[block.span[1] :]
    return text


if __name__ == "__main__":
    from tests.faces import speed_table

    for path in PAGES:
        before = speed_table.renewed(path.read_text(encoding="utf-8"))
        path.write_text(renewed(before, printed(path, before)), encoding="utf-8")
