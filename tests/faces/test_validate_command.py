"""`wgattn validate`: its grid, what it makes of a wrong result, and the command on this adapter."""

import pytest

from tests.faces.command_line import values
from wgattn._cli import grid, validate
from wgattn.bench.workload import Workload

SMALL = Workload(B=1, T=4, N=2, H=8, S=6, K=1, Hv=8, causal=True)


def test_the_grid_has_every_option_alone_and_in_pairs() -> None:
    calls = grid.grid()
    assert len(calls) == len(set(calls))
    seen = {(group, option) for group, call in calls for option in call.options}
    for options in grid.OPTIONS.values():
        words = grid.replace(grid.BASE, **options).options
        assert {("options", word) for word in words} <= seen
        assert {("pairs of options", word) for word in words} <= seen


def test_the_quick_grid_has_every_group_and_a_tenth_of_the_calls() -> None:
    whole, quick = grid.grid(), grid.grid(quick=True)
    assert {group for group, _ in quick} == {group for group, _ in whole}
    assert set(quick) < set(whole)
    assert len(quick) < len(whole) / 6


@pytest.mark.device
def test_a_right_call_has_no_fault() -> None:
    outcome = validate.check("small", SMALL)
    assert outcome.fault == ""
    assert outcome.share < 1
    assert outcome.variant


@pytest.mark.device
def test_a_wrong_result_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from wgattn import _reference

    right = _reference.attention

    def wrong(*arguments: object, **options: object) -> _reference.Result:
        found = right(*arguments, **options)  # type: ignore[arg-type]
        return _reference.Result(found.out + 1e-3, found.residual)

    monkeypatch.setattr("wgattn._validate.report.attention", wrong)
    monkeypatch.setattr(validate, "grid", lambda quick: [("small", SMALL)])
    assert validate.validate(quick=True, as_json=False) == 1
    printed = capsys.readouterr().out
    assert "1 of 1 calls failed" in printed
    assert SMALL.name in printed


@pytest.mark.device
def test_a_call_that_raises_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(validate, "grid", lambda quick: [("small", grid.replace(SMALL, implementation="magic"))])
    assert validate.validate(quick=True, as_json=False) == 1
    assert "magic" in capsys.readouterr().out


@pytest.mark.device
def test_the_quick_grid_is_right_on_this_adapter() -> None:
    found = values("validate", "--quick", "--json")
    assert len(found["outcomes"]) == len(grid.grid(quick=True))
    assert not [outcome for outcome in found["outcomes"] if outcome["fault"]]
