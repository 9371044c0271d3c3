"""The code in Markdown pages: its ```python blocks, and the ```text block right behind one, which is what it prints."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```$)?", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code, the line of its page where it starts, and what it has to print, if the page says."""

    code: str
    line: int
    output: str | None


def blocks(text: str) -> list[Block]:
    """The blocks of a page in order."""
    return [Block(m["code"], text.count("\n", 0, m.start("code")), m["output"]) for m in BLOCK.finditer(text)]
