"""How figures are taken, and the commands that show them."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.faces.command_line import here, refused
from wgattn.bench import peers, presets, run
from wgattn.bench.ceilings import Ceilings
from wgattn.bench.report import Peer, Report, Row
from wgattn.bench.timing import Sampler, by_wall, medians
from wgattn.bench.workload import Workload

CEILINGS = Ceilings(fma=1e12, reads=1e11)


class Clock:
    """A clock that moves only when a contestant works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def works(self, name: str, *seconds: float) -> Sampler:
        durations = iter(seconds)

        def call() -> None:
            self.calls.append(name)
            self.now += next(durations, seconds[-1])

        return by_wall(call, self)


def test_medians_are_taken_in_turn_after_a_warm_up() -> None:
    clock = Clock()
    contestants = {"a": clock.works("a", 1.0, 1.0, 5.0, 1.0, 1.0, 2.0, 1.0), "b": clock.works("b", 0.5)}
    found = medians(contestants, rounds=5, warm_up=0.3, clock=clock)
    assert found == {"a": 1.0, "b": 0.5}
    assert clock.calls == ["a", "b"] + ["a", "b"] * 5


def test_what_cooled_down_is_warmed_up_again() -> None:
    clock = Clock()
    found = medians({"quick": clock.works("quick", 0.1), "slow": clock.works("slow", 1.0)}, 5, 0.25, clock=clock)
    assert found == pytest.approx({"quick": 0.1, "slow": 1.0})
    assert clock.calls == ["quick"] * 3 + ["slow"] + (["quick"] * 4 + ["slow"]) * 5


def test_a_short_call_is_repeated_within_a_sample() -> None:
    clock = Clock()
    found = medians({"a": clock.works("a", 1e-4)}, rounds=5, warm_up=1e-3, clock=clock)
    assert found["a"] == pytest.approx(1e-4)
    assert len(clock.calls) == 1 + 16 + 5 * 16, "a sample is as many calls as a power of two of them takes 2 ms"


def test_a_median_of_a_few_is_refused() -> None:
    with pytest.raises(ValueError, match="5 or more"):
        medians({"a": by_wall(lambda: None)}, rounds=4)


def test_only_kept_scores_count_as_work() -> None:
    full = Workload(B=1, T=64, N=2, H=8, S=64, K=1, Hv=8)
    causal = Workload(B=1, T=64, N=2, H=8, S=64, K=1, Hv=8, causal=True)
    window = Workload(B=1, T=64, N=2, H=8, S=64, K=1, Hv=8, window=(0, 0))
    assert full.flops() == 2 * 2 * 64 * 64 * 16
    assert causal.kept() == (64 * 65 / 2) / 64**2
    assert window.kept() == 1 / 64


def test_the_peer_computes_the_same_call() -> None:
    from wgattn import _reference
    from wgattn._kernels.rotation import Rope
    from wgattn.bench.peers.jax_nn import jax_forward

    workload = Workload(B=2, T=9, N=4, H=16, S=9, K=2, Hv=16, causal=True, rope=True, key_lengths=True)
    arrays = workload.arrays()
    peer = jax_forward(workload, arrays)
    assert peer is not None
    right = _reference.attention(**arrays, is_causal=True, rope=Rope()).out
    np.testing.assert_allclose(np.asarray(peer()), right, atol=2e-5)


def test_rows_fit_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from wgattn._cli import bench, show

    others = (Peer("jax.nn XLA", 0.0252, 1e-6, True), Peer("another", 0.0063, 0.5, False))
    row = Row("forward", "a row", "B1 T1", "flash", 0.0126, tflops=0.5, ceiling="fma", share=0.5, peers=others)
    lost = Row("decode", "lost", "B1 T1", failed="OutOfDeviceMemoryError: too large")
    monkeypatch.setattr(show, "console", Console(width=80, record=True, file=io.StringIO()))
    bench.print_report(Report("a device", "discrete", "wgpu", "a driver", "1", CEILINGS, (row, lost)))
    text = show.console.export_text()
    assert all(len(line) <= 80 for line in text.splitlines())
    for words in ("12.6 ms", "500 GFLOP/s", "50%", "2.00× as fast as jax.nn XLA", "5.0e-01", "too large"):
        assert words in text


def test_a_report_is_plain_values() -> None:
    others = (Peer("jax.nn XLA", 0.02, 1e-6, True), Peer("another", 0.005, 0.5, False))
    row = Row(
        "decode", "a row", "B1 T1", "decode", 0.01, gbps=50.0, ceiling="reads", share=0.5, peers=others, error=1e-6
    )
    found = Report("a device", "discrete", "wgpu", "a driver", "1", CEILINGS, (row,)).as_json()
    assert found["ceilings"]["reads"] == 1e11
    (told,) = found["rows"]
    assert told["peers"] == {"jax.nn XLA": 2.0, "another": 0.5}
    assert told["wrong"] == {"another": 0.5}
    assert "tflops" not in told
    assert "failed" not in told


def test_reports_are_read_back_and_put_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from wgattn._cli.bench import shown

    others = (Peer("jax.nn XLA", 0.02, 0.0, True), Peer("another", 0.005, 0.5, False))
    row = Row("forward", "a row", "B1 T1", "flash", 0.01, tflops=0.05, ceiling="fma", share=0.05, peers=others)
    first = Report("a device", "discrete", "wgpu", "a driver", "1", CEILINGS, (row,))
    second = replace(first, rows=(Row("decode", "lost", "B2 T1", failed="MemoryError: too large"),))
    assert Report.from_json(json.loads(json.dumps(first.as_json()))) == first
    paths = [tmp_path / "1.json", tmp_path / "2.json"]
    for path, report in zip(paths, (first, second), strict=True):
        path.write_text(json.dumps(report.as_json()))
    shown(paths, True, None)
    *_, made, lost = capsys.readouterr().out.splitlines()
    assert made.count("|") == lost.count("|") == 8
    assert "2.00× as fast as jax.nn XLA<br>0.50× as fast as another, which is off by 5.0e-01" in made
    assert "too large" in lost
    paths[1].write_text(json.dumps(replace(second, device="another").as_json()))
    with pytest.raises(ValueError, match="not one device"):
        shown(paths, True, None)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, r"cannot be read \(No such file or directory\)"),
        ("not json", r"is no report \(Expecting value.*\)"),
        ("[]", r"is no report \(it is no JSON object\)"),
        ('{"device": "x"}', r"is no report \(it has no ceilings, no rows\)"),
        (
            '{"device": "x", "ceilings": {"fma": 1, "reads": 1, "colour": 2}, "rows": []}',
            "wrote none like it: .*colour",
        ),
        ('{"device": "x", "ceilings": {}, "rows": [1]}', "wrote none like it"),
    ],
)
def test_a_file_that_is_no_report_is_named_with_the_next_step(tmp_path: Path, content: str | None, reason: str) -> None:
    from wgattn._cli.bench import shown

    path = tmp_path / "mine.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=rf"mine\.json .*{reason}.*: `wgattn bench all --out FILE` writes one"):
        shown([path], False, None)


@pytest.mark.parametrize("option", ["--out", "--plot"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_timed(
    tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "ceilings", lambda *given: pytest.fail("the device's ceilings were timed"))
    for path, told in (
        (tmp_path / "gone" / "a.json", r"there is no folder .*gone; make it"),
        (tmp_path, "is a folder"),
    ):
        with pytest.raises(ValueError, match=rf"{option} .*{told}"):
            here("bench", "forward", "--preset", "quick", option, path)


def test_peers_are_named_by_their_beginnings() -> None:
    assert peers.chosen("none", on_cpu=True) == ()
    assert peers.chosen("auto", on_cpu=True) == tuple(peers.PEERS)
    assert set(peers.PEERS) - set(peers.chosen("auto", on_cpu=False)) == {"onnxruntime-cpu", "ncnn-cpu"}
    assert peers.chosen("torch-math,jax,ncnn", on_cpu=False) == (
        "torch-math",
        "jax",
        "jax-cudnn",
        "ncnn-cpu",
        "ncnn-vulkan",
    )
    with pytest.raises(ValueError, match=r"'jaxx'.*torch-math"):
        peers.chosen("jaxx", on_cpu=True)


@pytest.mark.parametrize("preset", ["quick", "cpu", "gpu"])
def test_presets_name_each_row_once(preset: presets.Preset) -> None:
    for command in ("forward", "backward", "decode"):
        cases = presets.cases(command, preset)
        assert len({case.workload for case in cases}) == len(cases) > 0
        assert len({case.name for case in cases}) == len(cases)
        assert all(case.workload.N % case.workload.K == 0 for case in cases)


def test_a_row_that_fails_says_why_and_the_next_is_made() -> None:
    def broken(*given: object) -> Row:
        raise MemoryError("too large")

    jobs = (
        run.Job("forward", "one", "B1", broken),
        run.Job("forward", "two", "B1", lambda *given: Row("forward", "two", "B1", median_s=1.0)),
    )
    begun = Report("a device", "discrete", "wgpu", "a driver", "1", CEILINGS)
    *_, report = run.reports(begun, jobs, lambda job, step: None)
    assert [row.failed for row in report.rows] == ["MemoryError: too large", ""]


def test_plots_are_drawn(tmp_path: Path) -> None:
    from wgattn.bench.plot import plot

    peer = Peer("jax.nn XLA", 0.02, 1e-6, True)
    names = ("forward", "B1 T64 S64 N8"), ("forward", "B1 T256 S256 N8"), ("decode", "B1 T1 S1024 N8")
    rows = tuple(
        Row(command, command, shape, "flash", 0.01, tflops=0.1, peers=(peer,), flops=1e9, moved_bytes=1e7)
        for command, shape in names
    )
    plot(Report("a device", "discrete", "wgpu", "a driver", "1", CEILINGS, rows), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match="no row"):
        plot(Report("a device", "discrete", "wgpu", "a driver", "1", CEILINGS), tmp_path / "b.png")


def test_a_line_is_of_calls_that_differ_in_length_alone() -> None:
    from wgattn.bench.plot import series

    def row(command: str, shape: str) -> Row:
        return Row(command, command, shape, median_s=0.01)

    lengths = [row("forward", f"B{B} T{S} S{S} N8 H64 f16 causal") for B, S in ((1, 8192), (8, 1024))]
    sequences = [row("decode", f"B{B} T1 S4096 N8 H64 f16 float16 cache") for B in (16, 1)]
    assert series([*lengths, *sequences]) == {
        "forward N8 H64 f16 causal": lengths[::-1],
        "decode B16 N8 H64 f16 float16 cache": sequences[:1],
        "decode B1 N8 H64 f16 float16 cache": sequences[1:],
    }


@pytest.mark.parametrize(
    "given",
    [
        ("bench", "forward", "--causal"),
        ("bench", "forward", "--no-plain"),
        ("bench", "backward", "--window", "3,0"),
        ("bench", "decode", "--cache", "int9"),
        ("bench", "decode", "--dtype", "f16"),
        ("bench", "bridge", "--kv-heads", "2"),
        ("tune", "--backward"),
        ("tune", "--causal"),
    ],
)
def test_options_of_a_call_without_a_query_are_refused(given: tuple[str, ...]) -> None:
    option, told = refused(*given)
    assert option == given[len(given) - 1 if given[-1].startswith("--") else -2].replace("--no-", "--")
    assert "without --q none is given: add --q B,T,N,H" in told
