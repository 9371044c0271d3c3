"""`wgattn tune`: what wins, what is refused, what is kept and told, and that later processes take it."""

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.faces.command_line import NO_ADAPTER, here, profile_file, values, wgattn
from tests.kernels.attention.problems import CPU, DISCRETE
from wgattn import _runtime, _schedule
from wgattn._cli.app import app
from wgattn._cli.info import profile_lines
from wgattn._errors import ValidationError, WgattnError
from wgattn._kernels.attention import flash_rows, flash_tiled
from wgattn._kernels.attention.backward import tiled
from wgattn._runtime import tuned
from wgattn._runtime.profile import DeviceProfile
from wgattn.bench import tune
from wgattn.bench.attention import Case, Pace
from wgattn.bench.tune import Row, Trial, winners
from wgattn.bench.workload import Workload

SMALL = Workload(B=1, T=24, N=4, H=16, S=40, K=2, Hv=16, causal=True)
QUICK = Pace(rounds=5, warm_up=0.0)


def row(constant: str, rule: float, *trials: Trial, call: str = "a call") -> Row:
    return Row(call, "a_variant", constant, rule, trials)


def test_the_best_is_the_rules_own_where_nothing_is_faster() -> None:
    own, slow, wrong = Trial(2, 1.0, is_rule=True), Trial(1, 1.5), Trial(0, fault="off by 1")
    assert row("keys", 1.0, slow, own, wrong).best == own
    assert row("keys", 1.0, slow, own).ratio == 1.0
    assert row("keys", 1.0, own, Trial(3, 0.5)).ratio == 2.0
    assert row("keys", 1.0, slow).best.is_rule, "no candidate need be the rules' own"


@pytest.mark.parametrize(
    ("trials", "kept"),
    [
        ([Trial(2, 1.0, is_rule=True), Trial(1, 0.9)], {"keys": 1}),
        ([Trial(2, 1.0, is_rule=True), Trial(1, 0.98)], {}),
        ([Trial(2, 1.0, is_rule=True), Trial(1, fault="off by 1"), Trial(4, 0.8)], {"keys": 4}),
        ([Trial(2, 1.0, is_rule=True)], {}),
    ],
    ids=["faster", "within the clock's own variation", "wrong", "alone"],
)
def test_what_is_kept(trials: list[Trial], kept: dict[str, int]) -> None:
    assert winners([row("keys", 1.0, *trials)]) == kept


def test_a_constant_has_to_be_faster_over_all_its_calls() -> None:
    def calls(gain: float, other: float) -> list[Row]:
        return [row("keys", 1.0, Trial(1, 1 / gain)), row("keys", 5.0, Trial(1, 5 / other))]

    assert winners(calls(1.5, 1.2)) == {"keys": 1}
    assert winners(calls(1.5, 0.5)) == {}
    assert winners([*calls(1.5, 1.2), row("keys", 1.0, Trial(1, fault="off by 1"))]) == {}
    assert winners([*calls(1.2, 1.2), row("keys", 1.0, Trial(8, 1.0))]) == {"keys": 1}, "there the rules serve"


@pytest.mark.parametrize("profile", [CPU, DISCRETE], ids=["cpu", "gpu"])
def test_common_calls_differ(profile: DeviceProfile) -> None:
    cases = tune.common(profile)
    assert len({(case.command, case.workload) for case in cases}) == len(cases)
    for case in cases:
        assert case.workload.N % case.workload.K == 0
    names = {case.command for case in cases}
    assert names == ({"forward"} if profile.is_cpu else {"forward", "backward", "decode"})


@pytest.mark.device
def test_each_program_is_checked_and_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = _runtime.current_profile()
    timed: list[Any] = []

    def sampler(program: Any, *given: Any) -> Any:
        timed.append(program)
        seconds = 0.5 if len(timed) == 2 else 1.0
        return lambda count: seconds * count

    monkeypatch.setattr(tune, "repeated", sampler)
    shares: list[float] = []
    rows = tune.rows_of(Case("forward", "", SMALL), profile, QUICK, lambda step, share: shares.append(share))
    assert all(one != other for n, one in enumerate(timed) for other in timed[:n])
    (found,) = (row for row in rows if row.constant != "workgroups")
    assert found.variant.startswith("flash_")
    assert sum(trial.is_rule for trial in found.trials) == 1
    assert found.best.seconds == 0.5
    assert found.ratio == 2.0
    assert shares == sorted(shares)
    assert max(shares) <= 1


@pytest.mark.device
def test_the_backward_pass_has_its_own_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward family's constants are tuned by forward calls; a CPU adapter stands in for a GPU."""
    monkeypatch.setattr(tune, "repeated", lambda *given: lambda count: 1e-3 * count)
    monkeypatch.setattr(tiled, "TILES", tiled.TILES[-2:])
    profile = replace(_runtime.current_profile(), kind="discrete")
    rows = tune.rows_of(Case("backward", "", SMALL), profile, QUICK)
    assert {row.constant for row in rows} == {"backward_tiled_query_h16", "backward_tiled_key_value_h16"}
    assert all(row.variant.startswith("backward_tiled") for row in rows)
    assert all(not trial.fault for row in rows for trial in row.trials)


@pytest.mark.device
@pytest.mark.parametrize("fault", ["wrong", "refused"])
def test_a_wrong_candidate_is_not_timed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, run = _runtime.current_profile(), tune._fault
    places: list[str] = []

    def broken(schedule: _schedule.Schedule, *given: Any) -> str:
        places.append(schedule.chosen[-1].variant.name)
        if len(places) == 1:
            return run(schedule, *given)
        if fault == "refused":
            raise WgattnError("the device refused")
        return "off by 1"

    monkeypatch.setattr(tune, "_fault", broken)
    rows = tune.rows_of(Case("forward", "", SMALL), profile, QUICK)
    others = [trial for row in rows for trial in row.trials if not trial.is_rule]
    assert others
    assert all(trial.seconds is None and trial.fault for trial in others)
    assert all(row.best.is_rule for row in rows)
    assert winners(rows) == {}


@pytest.mark.device
def test_where_the_rules_are_wrong_nothing_is_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "_fault", lambda *given: "off by 1")
    with pytest.raises(ValidationError, match="off by 1"):
        tune.rows_of(Case("forward", "", SMALL), _runtime.current_profile(), QUICK)


@pytest.mark.device
def test_results_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference that is another call's makes every candidate wrong."""
    right = tune.right_of
    monkeypatch.setattr(tune, "right_of", lambda case, *given: right(case, replace(SMALL, causal=False), *given[1:]))
    with pytest.raises(ValidationError, match="off by"):
        tune.rows_of(Case("forward", "", SMALL), _runtime.current_profile(), QUICK)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tuned.json"
    monkeypatch.setenv("WGATTN_TUNED", str(path))
    return path


@pytest.mark.device
@pytest.mark.parametrize(
    ("options", "constant"),
    [((), "_h16"), (("--keys", "2048", "--q", "2,1,4,16"), "workgroups"), (("--cache", "int8", "--q", "1,1,4,16"), "")],
    ids=["prefill", "one token", "a cache"],
)
def test_the_command_keeps_what_it_finds(
    options: tuple[str, ...], constant: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "MARGIN", 0.0)  # whatever is best is kept
    found = here("tune", "--json", "--q", "1,40,4,16", "--kv-heads", "2", *options)
    assert found["file"] == str(file)
    assert all(constant in row["constant"] and row["ratio"] >= 1 and row["trials"] for row in found["rows"])
    assert bool(found["rows"]) == bool(constant) == bool(found["kept"])
    shown = here("tune", "--show", "--json")
    assert shown["file"] == str(file)
    assert [entry["constants"] for entry in shown["entries"]] == [found["kept"]] * bool(constant)
    if constant:
        assert tuned.constants_for(_runtime.current_profile()) == tuple(found["kept"].items())


@pytest.mark.device
def test_the_command_tells_a_person(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "MARGIN", 0.0)
    text = told("--q", "1,40,4,16", "--causal")
    for words in (
        "_h16",
        "forward B1 T40 S40 N4 K4 H16 f32 causal",
        "rules / best",
        "kept",
        "for processes that start",
    ):
        assert words in text


@pytest.mark.device
def test_a_call_that_fails_takes_nothing_from_the_others(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wgattn._cli import tune as command

    cases = Case("forward", "", SMALL), Case("forward", "", replace(SMALL, T=25))
    found = [row("keys", 1.0, Trial(1, 0.5))]

    def rows(case: Case, *given: Any) -> list[Row]:
        if case == cases[0]:
            raise WgattnError("too large")
        return found

    monkeypatch.setattr(command, "rows_of", rows)
    monkeypatch.setattr(command, "common", lambda profile: cases)
    done = CliRunner().invoke(app, ["tune", "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["failed"] == {f"forward {SMALL.name}": "too large"}
    assert tuned.constants_for(_runtime.current_profile()) == (("keys", 1),)
    monkeypatch.setattr(command, "common", lambda profile: cases[:1])
    with pytest.raises(WgattnError, match="too large"):
        told()


@pytest.mark.device
def test_later_processes_take_it_and_say_so(file: Path) -> None:
    profile = _runtime.current_profile()
    call = ("explain", "--q", "1,300,4,16", "--json")
    rule = values(*call)
    assert "tuned" not in rule["reason"]
    family: ModuleType = {"flash_rows": flash_rows, "flash_tiled": flash_tiled}[rule["family"]]
    key = f"{family.name}_h16_small"
    tuned.keep(profile, {key: 1}, [key])
    found = values(*call)
    assert found["reason"] == f"{rule['reason']}; tuned on this device: {key} 1"
    assert found["variant"] != rule["variant"]
    assert f"{key} 1" in profile_lines(values("info", "--json"))["tuned"]


def test_a_report_keeps_the_tuned_constants_of_its_machine(tmp_path: Path) -> None:
    report = profile_file(tmp_path, replace(DISCRETE, tuned=(("flash_tiled_h64_small", 2),)))
    found = here("explain", "--json", "--q", "1,300,4,64", "--profile", report)
    assert "; tuned on this device: flash_tiled_h64_small 2" in found["reason"]


def told(*options: str) -> str:
    """What `wgattn tune` prints."""
    from wgattn._cli import show

    narrow, show.console.width = show.console.width, 200  # so that no cell is folded
    done = CliRunner().invoke(app, ["tune", *options])
    show.console.width = narrow
    if done.exception:
        raise done.exception
    return done.stdout


def test_what_is_kept_is_shown_and_forgotten_without_an_adapter(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_runtime, "current_profile")
    assert "nothing" in told("--show")
    tuned.keep(DISCRETE, {"workgroups": 512}, ["workgroups"])
    content = json.loads(file.read_text())
    content["entries"].append({**content["entries"][0], "version": "0.0.1"})
    file.write_text(json.dumps(content))
    shown = told("--show").replace("\n", "")
    for words in (DISCRETE.name, "workgroups 512", "0.0.1, another version: it is not read"):
        assert words in shown
    assert "forgotten" in told("--forget")
    assert not file.exists()
    assert "there is no file" in told("--forget")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"WGATTN_TUNED": "0"}, "WGATTN_TUNED switches tuned constants off"),
        ({"WGATTN_LIMITS": "minimum"}, "WGATTN_LIMITS makes this device stand in for another"),
    ],
    ids=["off", "a stand-in"],
)
def test_what_cannot_be_kept_is_not_tried(environment: dict[str, str], words: str, file: Path) -> None:
    done = wgattn("tune", **NO_ADAPTER, **environment)
    assert done.returncode == 1
    assert words in done.stderr


def test_a_broken_file_is_not_written_over(file: Path) -> None:
    file.write_text("[]")
    for options in ((), ("--show",)):
        with pytest.raises(ValueError, match=r"tuned\.json holds no tuned constants"):
            told(*options)
    told("--forget")
    assert not file.exists()


def test_a_table_says_how_far_the_rules_are() -> None:
    from wgattn._cli import show
    from wgattn._cli.tune import print_rows, verdict

    rows = [
        row("keys", 0.03, Trial(2, 0.03, is_rule=True), Trial(1, 0.02), Trial(4, fault="off by 1")),
        row("lanes", 0.01, Trial(8, 0.01, is_rule=True), call="another"),
    ]
    with show.console.capture() as captured:
        print_rows(rows, {"keys": 1})
        print_rows(rows[:1], {"keys": 2})
        show.lines(verdict([], rows, {"keys": 1}, "a file"))
    text = captured.get()
    for words in (
        "30 ms",
        "20 ms",
        "1.50",
        "1, which is kept",
        "1, 2 is kept",
        "4: off by 1",
        "1.00",
        "the rules' own",
        "in a file",
    ):
        assert words in text
    assert "no value is faster" in verdict([], rows, {}, "a file")["kept"]
    assert "no constant" in verdict([], [], {}, "a file")["tuned"]
