"""Every python block of the README and the docs runs, page by page, and prints what the page says it prints."""

import contextlib
import io
from pathlib import Path

import pytest

from tests.faces.documents import PAGES, ROOT, blocks


@pytest.mark.device
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p.read_text(encoding="utf-8"))], ids=lambda p: p.name)
def test_blocks_of_a_page_run(page: Path) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page.read_text(encoding="utf-8")):
        printed = io.StringIO()
        source = "\n" * block.line + block.code  # so that a traceback shows the page's own line
        with contextlib.redirect_stdout(printed):
            exec(compile(source, str(page.relative_to(ROOT)), "exec"), names)
        if block.output is not None:
            assert printed.getvalue() == block.output, f"{page.name}, line {block.line}"


def test_a_page_is_read_as_it_is_written() -> None:
    checked = "# A\n\n```python\nx = 1\nprint(x)\n```\n\n```text\n1\n```\n\n"
    page = checked + "```python\ny = 2\n```\n\nText.\n\n```text\nno\n```\n"
    first, second = blocks(page)
    assert (first.code, first.line, first.output) == ("x = 1\nprint(x)\n", 3, "1\n")
    assert (second.code, second.line, second.output) == ("y = 2\n", 12, None)


def test_no_page_shows_where_it_was_written() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not [word for word in ("/work/", "/tmp/", "/root/", "pip install wgattn") if word in text], page.name
