"""How figures are taken, and the commands that show them."""

import io

import numpy as np
import pytest

from tests.faces.command_line import here, values
from wgattn.bench.forward import Figures, Row
from wgattn.bench.timing import medians
from wgattn.bench.workload import Workload


class Clock:
    """A clock that moves only when a contestant works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def works(self, name: str, *seconds: float):
        durations = iter(seconds)

        def call() -> None:
            self.calls.append(name)
            self.now += next(durations, seconds[-1])

        return call


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
    assert len(clock.calls) == pytest.approx(2 * 10 + 5 * 20, abs=3)


def test_a_median_of_a_few_is_refused() -> None:
    with pytest.raises(ValueError, match="5 or more"):
        medians({"a": lambda: None}, rounds=4)


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
    from wgattn.bench.peers import jax_forward

    workload = Workload(B=2, T=9, N=4, H=16, S=9, K=2, Hv=16, causal=True, rope=True, key_lengths=True)
    arrays = workload.arrays()
    peer = jax_forward(workload, arrays)
    assert peer is not None
    right = _reference.attention(**arrays, is_causal=True, rope=Rope()).out
    np.testing.assert_allclose(np.asarray(peer()), right, atol=2e-5)


def test_figures_fit_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from wgattn._cli import bench, show

    names = ("wgattn", 0.0126, 1.0), ("wgattn plain", 1.26, 0.01), ("jax.nn, jit", 0.0252, 0.5)
    rows = tuple(Row(name, seconds, seconds, 1e-6, 1e12, ratio) for name, seconds, ratio in names)
    monkeypatch.setattr(show, "console", Console(width=80, record=True, file=io.StringIO()))
    bench.print_figures(Figures("a call", "an adapter", "cpu", "flash", rows, ()))
    head, *lines = [line.rstrip() for line in show.console.export_text().splitlines()[4:]]
    assert "wgattn is" in head
    assert [line.split()[0] for line in lines] == ["wgattn", "wgattn", "jax.nn,"], "a row is a line"
    assert "as fast" not in lines[0]
    assert "100.00× as fast" in lines[1]
    assert "2.00× as fast" in lines[2]


@pytest.mark.device
def test_figures_of_a_small_call() -> None:
    call = ("--q", "1,64,4,32", "--kv-heads", "2", "--causal", "--rounds", "5", "--plain")
    found = values("bench", "forward", *call, "--json")
    assert [row["name"] for row in found["rows"]] == ["wgattn", "wgattn plain", "jax.nn, jit"]
    assert all(row["seconds"] > 0 and row["error"] < 2e-5 for row in found["rows"])
    assert found["rows"][0]["ratio"] == 1


@pytest.mark.device
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
def test_every_option_of_a_call_can_be_timed(option: tuple[str, ...], word: str) -> None:
    call = ("--q", "2,24,2,16", *option, "--rounds", "5", "--no-plain", "--no-jax")
    found = here("bench", "forward", *call, "--json")
    assert word in found["call"]
    assert [row["name"] for row in found["rows"]] == ["wgattn"]
    assert found["rows"][0]["error"] < 2e-5


@pytest.mark.device
def test_the_demo_shows_every_step(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from wgattn._cli import demo

    small = Workload(B=1, T=48, N=8, H=32, S=48, K=2, Hv=32, causal=True)
    monkeypatch.setattr(demo, "default_workload", lambda profile: small)
    demo.demo()
    printed = capsys.readouterr().out
    steps = ["the adapter", "the function", "its graph", "its kernel", "the check", "the time"]
    places = [printed.index(f"\n{step}\n") for step in steps]
    assert places == sorted(places)
    assert "recorded" in printed
    assert "fused" in printed
