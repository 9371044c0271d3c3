"""What a benchmark found, as values: a Row a call, a Report a run. `as_json` is what `--json` prints."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from wgattn.bench.ceilings import Ceilings


@dataclass(frozen=True, slots=True)
class Peer:
    """Somebody's figures for the row's work. `right` is False where its own result is further off than allowed."""

    name: str
    median_s: float
    error: float
    right: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One call's figures. `error` is max|result - reference| over what was compared; `failed` says why there are none.

    `share` is of the ceiling that bounds the call: `ceiling` names it. `absent` has a reason for each peer without
    figures, `figures` what a row of its own kind says beside.
    """

    command: str
    name: str
    shape: str
    variant: str = ""
    median_s: float | None = None
    tflops: float | None = None
    gbps: float | None = None
    ceiling: str = ""
    share: float | None = None
    peers: tuple[Peer, ...] = ()
    absent: dict[str, str] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    flops: float | None = None
    moved_bytes: float | None = None  # operands and results, each once
    error: float | None = None
    failed: str = ""
    seconds: float = 0.0  # that the row took, all in all

    @property
    def call(self) -> str:
        """What was timed, in words that no other row has."""
        return f"{self.command} {self.shape}" if self.name.startswith(self.command) else f"{self.name}, {self.shape}"

    @property
    def ratios(self) -> dict[str, float]:
        """How many times as fast the row is as each peer."""
        if self.median_s is None:
            return {}
        return {peer.name: peer.median_s / self.median_s for peer in self.peers}

    def as_json(self) -> dict[str, Any]:
        """The fields that say something; `peers` are ratios, `wrong` the errors of peers that are off."""
        found = {name: value for name, value in asdict(self).items() if value not in (None, "", {}, ())}
        peers = {
            "peers": self.ratios,
            "peers_s": {peer.name: peer.median_s for peer in self.peers},
            "wrong": {peer.name: peer.error for peer in self.peers if not peer.right},
        }
        return found | {name: value for name, value in peers.items() if value or name == "peers"}


@dataclass(frozen=True, slots=True)
class Report:
    """A run: the device, its ceilings, and the rows so far."""

    device: str
    kind: str
    provider: str
    driver: str
    version: str
    ceilings: Ceilings
    rows: tuple[Row, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"rows": [row.as_json() for row in self.rows]}

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> "Report":
        """The report that `as_json` wrote; of peers that were right the errors are not in it.

        Raises ValueError for one that another version wrote, and for what is none.
        """
        if not isinstance(given, dict):
            raise ValueError("it is no JSON object")
        if missing := [name for name in ("device", "ceilings", "rows") if name not in given]:
            raise ValueError(f"it has no {', no '.join(missing)}")
        try:
            rows = tuple(_row(row) for row in given["rows"])
            return cls(**(given | {"ceilings": Ceilings(**given["ceilings"]), "rows": rows}))
        except (AttributeError, TypeError) as error:
            raise ValueError(f"this version of wgattn bench wrote none like it: {error}") from None


def merged(reports: Sequence[Report]) -> Report:
    """One report of several runs on one device, with the ceilings of the first. Raises ValueError for two devices."""
    first, *others = reports
    for other in others:
        if (other.device, other.provider) != (first.device, first.provider):
            raise ValueError(
                f"{first.device} ({first.provider}) and {other.device} ({other.provider}) are not one device: "
                "show them one by one"
            )
    return replace(first, rows=tuple(row for report in reports for row in report.rows))


def _row(given: dict[str, Any]) -> Row:
    seconds = given.get("peers_s", {})
    wrong = {name: math.inf if error is None else error for name, error in given.get("wrong", {}).items()}
    peers = tuple(Peer(name, median, wrong.get(name, 0.0), name not in wrong) for name, median in seconds.items())
    rest = {name: value for name, value in given.items() if name not in ("peers", "peers_s", "wrong")}
    return Row(**rest, peers=peers)
