"""The goals: each is one row of the preset of its devices, and what a report says of it is right."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from wgattn._cli import bench
from wgattn.bench import copies, goals, run
from wgattn.bench.attention import Pace
from wgattn.bench.ceilings import Ceilings
from wgattn.bench.goals import Goal, Outcome, outcomes
from wgattn.bench.presets import Preset
from wgattn.bench.report import Peer, Report, Row

DOCS = Path(__file__).parents[2] / "docs"
REPORTS = sorted((DOCS / "bench").glob("*.json"))
CEILINGS = Ceilings(fma=1e12, reads=1e11)
XLA = Peer("jax.nn XLA cpu", 0.02, 0.0, True)


def report(kind: str, *rows: Row) -> Report:
    return Report("a device", kind, "wgpu", "a driver", "1", CEILINGS, rows)


@pytest.mark.parametrize(("preset", "wanted"), [("cpu", goals.ON_CPU), ("gpu", goals.ON_GPU)])
def test_each_goal_is_one_row_of_the_preset(preset: Preset, wanted: tuple[Goal, ...]) -> None:
    jobs = [job for command in run.COMMANDS for job in run.jobs_of(command, preset, (), Pace())]
    rows = [Row(job.command, job.name, job.shape) for job in jobs]
    for goal in wanted:
        assert len([row for row in rows if goal.serves(row)]) == 1, goal
    assert len(set(wanted)) == len(wanted)


def test_a_goal_is_met_or_a_part_of_it_is() -> None:
    row = Row("forward", "a row", "B1 T512", median_s=0.01, peers=(XLA,), share=0.3, figures={"over_s": 9e-5})
    for of, asked, at_most, reached in (
        ("times as fast as jax.nn", 1.6, False, 1.25),
        ("share", 0.6, False, 0.5),
        ("seconds", 0.005, True, 0.5),
        ("over_s", 6e-5, True, 2 / 3),
    ):
        goal = Goal("forward", "T512", of, asked, at_most)
        assert Outcome(goal, row.shape, goal.value(row)).reached == pytest.approx(reached)
    grown = Goal("memory", "", "grown_bytes", 0.0, True)
    assert Outcome(grown, "", 0.0).reached == math.inf
    assert Outcome(grown, "", 8.0).reached == 0.0
    assert Outcome(grown, "", None).reached is None


def test_the_slowest_of_ratios_counts() -> None:
    pair = Peer("ONNX Runtime WebGPU, from the host", 0.5, 0.0, True), Peer("ONNX Runtime CPU", 0.1, 0.0, True)
    row = Row("forward", "a row", "B1", median_s=0.1, peers=pair)
    assert Goal("forward", "B1", "times as fast as ONNX", 1.0).value(row) == 1.0
    assert Goal("forward", "B1", "times as fast as ncnn", 1.0).value(row) is None


def test_a_report_says_what_is_reached_and_what_is_missing() -> None:
    row = Row("forward", "forward T512 causal", "B1 T512 S512 N8 K8 H64 f32 causal", median_s=0.01, peers=(XLA,))
    lost = Row("bridge", "up and down", "64 MiB", failed="MemoryError: too large")
    found = outcomes(report("cpu", row, lost))
    assert (found[0].call, found[0].value) == (f"forward {row.shape}", 2.0)
    assert found[1].reason == "it was not there"
    lines = bench.markdown_lines(report("cpu", row, lost))
    assert f"| forward {row.shape}: times as fast as jax.nn XLA cpu | ≥ 1.20 | 2.00 | met |" in lines
    assert any("failed: MemoryError: too large" in line and "≥ 0.80" in line for line in lines)
    assert any("≤ 4 s" in line and "not in this report" in line for line in lines)
    alone = bench.markdown_lines(report("cpu", Row("forward", "a first look", "B1 T64")))
    assert not any("goal" in line or "not in this report" in line for line in alone)
    of_gpu = bench.markdown_lines(report("discrete", Row("decode", "decode B1 S9 float16 cache", "B1", share=0.5)))
    assert any(line.endswith("| ≥ 60% | 50% | 0.83 |") for line in of_gpu)


def test_figures_are_told_in_words() -> None:
    assert [bench.figure(name) for name in ("over_s", "upload_gbps", "seconds")] == ["overhead", "upload", "seconds"]
    found = [Report.from_json(json.loads(path.read_text(encoding="utf-8"))) for path in REPORTS]
    told = {bench.figure(name) for report in found for row in report.rows for name in row.figures}
    assert set(bench.FIGURES.values()) <= told, "each is of a figure that reports have"


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_the_page_shows_what_a_report_says(path: Path) -> None:
    """`wgattn bench show FILE --markdown` prints what belongs between the page's two marks."""
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    found = Report.from_json(json.loads(path.read_text(encoding="utf-8")))
    wanted = "\n".join(bench.markdown_lines(found))
    assert f"<!-- bench {path.stem} -->\n\n{wanted}\n\n<!-- end -->" in page
    assert (DOCS / "images" / f"bench-{path.stem}.png").exists()


@pytest.mark.device
def test_copies_are_timed_beside_numpy() -> None:
    row = copies.copies_row(1 << 20, 5)
    assert row.shape == "1 MiB"
    upload = row.figures["upload_s"]
    assert row.figures["upload_gbps"] == pytest.approx((1 << 20) / upload / 1e9)
    assert row.figures["upload_of_copy"] == pytest.approx(row.figures["copy_s"] / upload)
    assert row.median_s == pytest.approx(upload + row.figures["download_s"])
    assert np.isfinite(row.figures["download_of_copy"])
