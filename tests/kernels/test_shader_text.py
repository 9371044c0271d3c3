"""What every shader keeps to, read from its composed text: workgroup bytes, initialisers, barriers that all reach."""

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.kernels.array.grid import every_plan
from tests.kernels.attention.backward import test_variants as backward
from tests.kernels.attention.problems import CPU, MATRICES, grid
from wgattn._kernels.attention.choose import FAMILIES
from wgattn._kernels.compose import compose
from wgattn._kernels.kernel import Launch, Variant
from wgattn._runtime.source import wgsl_root

ELEMENT_BYTES = {"f32": 4, "u32": 4, "i32": 4, "atomic<u32>": 4, "vec4f": 16, "vec4u": 16, "vec2f": 8}
TILE = re.compile(r"^var<workgroup> (\w+): (?:array<(.+), ([^,;]+)>|([^;]+));", re.MULTILINE)
FUNCTION = re.compile(r"\bfn (\w+)\(")
TIED_TO_A_THREAD = {"thread", "lane"}


@cache
def shaders() -> dict[str, tuple[Variant, str]]:
    """A variant of every family for each of some problems, whole and partial."""
    found = {}
    for _, problem in list(grid())[::5]:
        for profile in (CPU, MATRICES):
            for family in FAMILIES:
                if family.supports(problem, profile):
                    for partial in (False, True):
                        variant = family.variant(problem, profile, partial)
                        found[variant.name] = variant, re.sub(r"//.*", "", compose(variant))
    return found


def others() -> dict[str, str]:
    """Shaders of the backward families and of array kernels that have barriers, by name."""
    steps = [step for plan in list(every_plan(CPU))[::4] for step in plan.steps]
    chosen = [step.variant for step in steps if isinstance(step, Launch)]
    chosen += [variant for family in backward.FAMILIES for variant in backward.variants(family)[::3]]
    texts = {variant.name: re.sub(r"//.*", "", compose(variant)) for variant in chosen}
    alike = {re.sub(r"\d+", "", text): name for name, text in texts.items()}  # one of those that differ in numbers
    return {name: texts[name] for name in alike.values() if "workgroupBarrier" in texts[name]}


def blocks(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each statement or head of a block within functions, and the heads of the blocks that it stands in."""
    heads: list[str] = []
    for piece in re.findall(r"(?:for \([^{]*|[^;{}])*[;{}]", text):
        statement = " ".join(piece.split())
        if statement.endswith("}"):
            heads.pop()
        elif statement.endswith("{"):
            yield statement, tuple(heads)
            heads.append(statement)
        else:
            yield statement, tuple(heads)


def names(text: str) -> set[str]:
    """The names in a piece of code, members left out."""
    return set(re.findall(r"(?<!\.)\b[a-zA-Z_]\w*", text))


def faults(text: str) -> list[str]:
    """Barriers that not every thread of a workgroup may reach, and variables of loops that hold what was there before.

    A value counts as a thread's own if it was made of one, or read from workgroup memory.
    """
    shared = TIED_TO_A_THREAD | {name for name, *_ in TILE.findall(text)}
    own = shared
    barriers = {"workgroupBarrier"}
    found, returned = [], ""
    for statement, heads in blocks(text):
        if not heads:
            own, returned = shared, ""
        if made := re.match(r"(?:let|var) (\w+)[^=]*=(.*)|(\w+)(?:\[.*?\]|\.\w+)* [-+*/]?=(.*)", statement):
            name, value = made.group(1) or made.group(3), made.group(2) or made.group(4)
            if own & names(value):
                own = own | {name}
        if re.match(r"var \w+:[^=]*;", statement) and any(head.startswith(("for", "while", "loop")) for head in heads):
            found.append(f"{statement} in a loop has no initialiser")
        conditions = [head for head in heads if not FUNCTION.search(head)]
        divergent = next((head for head in conditions if own & names(head)), "")
        if re.match(r"(return|break|continue)\b", statement) and divergent:
            returned = divergent
        if barriers & set(re.findall(r"(\w+)\(", statement)):
            barriers = barriers | set(FUNCTION.findall(heads[0]))
            if divergent or returned:
                found.append(f"{statement} under {divergent or returned}")
    return found


def test_faults_are_found() -> None:
    loop = "fn f(thread: u32) { for (var i = thread; i < 9u; i++) { workgroupBarrier(); } }"
    assert faults(loop) == ["workgroupBarrier(); under for (var i = thread; i < 9u; i++) {"]
    left = "fn f(thread: u32) { let i = thread / 2u; if (i > 3u) { return; } workgroupBarrier(); }"
    assert faults(left) == ["workgroupBarrier(); under if (i > 3u) {"]
    shared = "var<workgroup> n: u32;\nfn f(b: u32) { let m = n; if (m > b) { workgroupBarrier(); } }"
    assert len(faults(shared)) == 1
    called = "fn g() { workgroupBarrier(); } fn f(lane: u32) { if (lane == 0u) { g(); } }"
    assert faults(called) == ["g(); under if (lane == 0u) {"]
    assert faults("fn f() { loop { var x: vec4f; x += y; } }") == ["var x: vec4f; in a loop has no initialiser"]
    assert faults("fn f(b: u32) { if (b > 3u) { return; } var x: f32; workgroupBarrier(); }") == []


def test_no_shader_has_a_barrier_in_divergent_flow_or_a_stale_variable() -> None:
    """https://github.com/gfx-rs/wgpu/issues/4566 and https://github.com/gfx-rs/wgpu/issues/4006"""
    every = {name: text for name, (_, text) in shaders().items()} | others()
    families = {name.split("-")[0] for name, text in every.items() if "workgroupBarrier" in text}
    assert families > {"decode", "flash_tiled", "flash_matrix", "backward_tiled_query", "backward_tiled_key_value"}
    assert {name: found for name, text in every.items() if (found := faults(text))} == {}


def test_workgroup_memory_is_what_the_family_says() -> None:
    """One formula serves the choice and the support check: it is the sum of what the shader declares."""
    sized = 0
    for name, (variant, text) in shaders().items():
        constants = dict(re.findall(r"const (\w+): u32 = (\d+)u;", text))
        total = 0
        for _, element, count, alone in TILE.findall(text):
            number = re.sub(r"\b[A-Z]\w*", lambda word, known=constants: known[word.group()], count or "1")
            total += ELEMENT_BYTES[element or alone] * eval(re.sub(r"(\d+)u", r"\1", number).replace("/", "//"))
        assert total == variant.workgroup_bytes, name
        sized += total > 0
    assert sized > 10


@pytest.mark.parametrize("path", sorted(wgsl_root().rglob("*.wgsl")), ids=lambda path: path.stem)
def test_workgroup_memory_has_its_bytes_above(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    for above, line in pairwise(lines):
        if line.startswith("var<workgroup>"):
            assert re.match(r"// .*\bbytes\b", above), line


def test_comments_fit_a_line() -> None:
    """Code may be wider, where a template fills it in; text is not."""
    comment = re.compile(r"\{#.*?#\}|^ *//.*?$", re.DOTALL | re.MULTILINE)
    for path in sorted(wgsl_root().rglob("*.wgsl")):
        for found in comment.finditer(path.read_text(encoding="utf-8")):
            assert max(map(len, found[0].splitlines())) <= 120, f"{path.name}: {found[0]}"
