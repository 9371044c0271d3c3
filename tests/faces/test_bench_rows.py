"""Rows of the benchmark as it makes them on the adapter at hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.faces.command_line import here, values
from wgattn.bench import attention, peers, run
from wgattn.bench.ceilings import Ceilings
from wgattn.bench.contestants import Contestant
from wgattn.bench.timing import by_wall
from wgattn.bench.workload import Workload

pytestmark = pytest.mark.device

SMALL = Workload(B=1, T=48, N=8, H=32, S=48, K=2, Hv=32, causal=True)
CEILINGS = Ceilings(fma=1e12, reads=1e11)


def test_figures_of_a_small_call(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    call = ("--q", "1,64,4,32", "--kv-heads", "2", "--causal", "--rounds", "5", "--plain", "--peers", "jax")
    found = values("bench", "forward", *call, "--json", "--out", out)
    assert json.loads(out.read_text()) == found
    assert found["ceilings"]["fma"] > 1e9
    assert found["ceilings"]["reads"] > 1e8
    (row,) = found["rows"]
    assert row["median_s"] > 0
    assert row["error"] < 2e-5
    assert 0 < row["share"] < 1
    assert list(row["peers"]) == ["wgattn plain", "jax.nn XLA cpu"]
    assert row["variant"].startswith(("flash", "decode"))
    assert "CUDA" in row["absent"]["jax-cudnn"]


def test_a_peer_that_gives_nan_is_timed_and_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wgattn._cli.bench import line, read

    def broken(command: str, workload: Workload, arrays: dict[str, np.ndarray]) -> Contestant:
        return Contestant("broken", lambda: (arrays["query"] * np.nan,), by_wall(lambda: None))

    monkeypatch.setattr(run, "ceilings", lambda *given: CEILINGS)
    monkeypatch.setattr(peers, "PEERS", {"broken": broken})
    monkeypatch.setattr(attention, "PEERS", {"broken": broken})
    out = tmp_path / "out.json"
    (row,) = here("bench", "forward", "--q", "1,24,2,16", "--peers", "broken", "--json", "--out", out)["rows"]
    assert row["wrong"] == {"broken": None}, "JSON has no NaN"
    assert "as fast as broken, which gives NaN or infinities" in line(read(out).rows[0])


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_call_inside_jax_is_checked_and_timed_in_parts(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ceilings", lambda *given: CEILINGS)
    found = here("bench", "bridge", "--q", "1,24,4,16", "--kv-heads", "2", "--dtype", dtype, "--rounds", "5", "--json")
    (row,) = found["rows"]
    assert row["error"] < {"f32": 2e-5, "f16": 2e-3}[dtype]
    assert list(row["peers"]) == ["jax.nn XLA cpu" + " by way of f32" * (dtype == "f16")]
    parts = [row["figures"][f"{name}_s"] for name in ("upload", "gpu", "download", "callback")]
    assert sum(parts) == pytest.approx(row["median_s"])


@pytest.mark.parametrize(
    ("option", "word"),
    [
        (("--mask", "TS"), "mask TS"),
        (("--scale", "0.2"), "scale 0.2"),
        (("--offset", "-3", "--causal"), "offset -3"),
        (("--sinks",), "sinks"),
        (("--query-lengths",), "query lengths"),
    ],
)
def test_every_option_of_a_call_can_be_timed(
    option: tuple[str, ...], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "ceilings", lambda *given: CEILINGS)
    (row,) = here("bench", "forward", "--q", "2,24,2,16", *option, "--rounds", "5", "--peers", "none", "--json")["rows"]
    assert word in row["shape"]
    assert row["error"] < 2e-5
    assert row["peers"] == {}


@pytest.mark.parametrize("command", ["backward", "decode"])
def test_other_commands_time_a_call_that_is_given(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ceilings", lambda *given: CEILINGS)
    options = ("--causal",) if command == "backward" else ("--keys", "40", "--dtype", "f32", "--cache", "i8")
    call = ("--q", f"2,{1 if command == 'decode' else 24},4,16", "--kv-heads", "2", *options)
    (row,) = here("bench", command, *call, "--rounds", "5", "--peers", "jax", "--json")["rows"]
    assert row["error"] < 1e-4
    assert row["peers"]["jax.nn XLA cpu"] > 0
    assert "wrong" not in row
    assert row["gbps" if command == "decode" else "tflops"] > 0


def test_device_clock_counts_repeated_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's calls are timed many in one submit; a CPU adapter with timestamps stands in for one."""
    from wgattn import _runtime
    from wgattn.bench.calls import forward

    profile = _runtime.current_profile()
    if not profile.timestamps:
        pytest.fail("the adapter that tests run on has timestamps")
    seconds = forward(SMALL, SMALL.arrays()).contestant("", replace(profile, kind="discrete")).seconds
    one, many = (min(seconds(count) for _ in range(5)) for count in (1, 64))
    assert 8 < many / one < 512


def test_ceilings_do_the_work_that_they_count() -> None:
    """The matrix units are emulated: 8 sums of 3 turns of 16 products, 1/8 by 1/8."""
    from wgattn import _runtime
    from wgattn._kernels.matrices import EMULATED
    from wgattn.bench.ceilings import ceilings, matrix_products

    profile = _runtime.current_profile()
    probe = matrix_products(replace(profile, matrix=(EMULATED,)), workgroups=2, turns=3)
    (out,) = _runtime.prepare(probe.program).run(())
    assert isinstance(out, _runtime.Buffer)
    assert set(_runtime.download(out).view(np.float32)) == {8 * 3 * 16 / 64}
    found = ceilings(profile, 5, 0.01)
    assert found.fma > 1e9
    assert found.bytes >= found.reads > 1e8
    assert found.operations("flash_matrix-f16") == found.fma, "there are no matrix units here"
    assert replace(found, matrix=1e15).operations("flash_matrix-f16") == 1e15


def test_first_call_memory_and_cached_call() -> None:
    from wgattn.bench.first_call import cached_call_row, cached_step_row, first_call_row
    from wgattn.bench.memory import memory_row

    first = first_call_row("light", SMALL, 1)
    assert first.median_s is not None
    assert 0 < first.figures["second_call_s"] < first.median_s
    cached = cached_call_row(SMALL, 5)
    assert cached.median_s == pytest.approx(cached.figures["by_hand_s"] + cached.figures["over_s"])
    step = cached_step_row("paged", replace(SMALL, T=1, S=64), 5)
    assert step.median_s == pytest.approx(step.figures["by_hand_s"] + step.figures["over_s"])
    for row in (first, cached, step):
        assert row.error is not None
        assert row.error < 2e-5
    memory = memory_row("forward", SMALL)
    assert memory.figures["grown_bytes"] == 0
    assert memory.figures["beyond_bytes"] < memory.figures["given_bytes"] * 4


def test_the_demo_shows_every_step(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from wgattn._cli import demo

    monkeypatch.setattr(demo, "default_workload", lambda profile: SMALL)
    demo.demo()
    printed = capsys.readouterr().out
    steps = ["the adapter", "the function", "its graph", "its kernel", "the check", "the time"]
    places = [printed.index(f"\n{step}\n") for step in steps]
    assert places == sorted(places)
    assert "recorded" in printed
    assert "fused" in printed
