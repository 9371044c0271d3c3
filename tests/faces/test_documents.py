"""Every python block of the README and the docs runs, page by page, and prints what the page says it prints."""

import re
from pathlib import Path

import pytest

from tests.faces.documents import PAGES, blocks, printed, renewed

PAGE = (
    "# A\n\n```python\nx = 1\nprint(x)\n```\n\n```text\n1\n```\n\n```python\ny = 2\n```\n\nText.\n\n```text\nno\n```\n"
)


@pytest.mark.device
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p.read_text(encoding="utf-8"))], ids=lambda p: p.name)
def test_blocks_of_a_page_run(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block, output in zip(blocks(text), printed(page, text), strict=True):
        if block.output is not None:
            assert output == block.output, f"{page.name}, line {block.line}"


def test_a_page_is_read_as_it_is_written() -> None:
    first, second = blocks(PAGE)
    assert (first.code, first.line, first.output) == ("x = 1\nprint(x)\n", 3, "1\n")
    assert (second.code, second.line, second.output) == ("y = 2\n", 12, None)


def test_only_outputs_are_renewed() -> None:
    assert renewed(PAGE, ["2\n", ""]) == PAGE.replace("text\n1\n", "text\n2\n")


def test_no_page_shows_where_it_was_written() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"/(work|tmp|root|home)/|pip install wgattn", text), page.name
