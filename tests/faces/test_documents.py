"""Every python block of the README and the docs runs, page by page, and prints what the page says it prints."""

import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import wgattn
from tests.faces import speed_table
from tests.faces.documents import PAGES, ROOT, blocks, printed, renewed
from wgattn._kernels.attention import choose
from wgattn._kernels.attention.backward import choose as backward_choose

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


def test_the_readme_shows_the_speed_that_the_reports_have() -> None:
    """`python -m tests.faces.documents` renews the table after a new report."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert speed_table.MARKED.search(text) is not None
    assert speed_table.renewed(text) == text


def test_no_page_shows_where_it_was_written() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"/(work|tmp|root|home)/|pip install wgattn", text), page.name


def test_kernels_are_listed_in_the_order_in_which_they_are_asked() -> None:
    text = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    forward, backward = re.findall(r"^\| family \|.*\n\|.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    for table, families in ((forward, choose.FAMILIES), (backward, backward_choose.FAMILIES)):
        assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == [family.name for family in families]


@pytest.mark.parametrize("module", [wgattn, wgattn.nn, wgattn.masks, wgattn.jax], ids=lambda module: module.__name__)
def test_the_reference_has_every_public_name_and_its_arguments(module: ModuleType) -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    section = re.search(rf"^## {re.escape(module.__name__)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert section is not None
    rows = dict(re.findall(r"^\| `(\w+)(?:\((.*?)\))?`", section[1], re.MULTILINE))
    public = {name for name in dir(module) if not name.startswith("_") and not inspect.ismodule(getattr(module, name))}
    assert set(rows) == public
    for name, arguments in rows.items():
        given = re.findall(r"[*]*(\w+)(?:=\w+)?(?:, |$)", arguments)
        taken = inspect.signature(getattr(module, name)).parameters if given else {}
        assert set(given) <= set(taken) or {"sizes"} <= set(taken), f"{name}({arguments}) takes {', '.join(taken)}"
