"""A report drawn: throughput over sequence length, ratios to peers, and the rows under the device's roofline."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wgattn.bench.report import Peer, Report, Row

COLORS = (
    "#0b6e99", "#d9730d", "#0f7b6c", "#ad1a72", "#6940a5", "#dfab01",
    "#64473a", "#9b9a97", "#e03e3e", "#4cb5d6", "#8bbf3f", "#1d2d5c",
)  # fmt: skip
MARKERS = {"forward": "o", "backward": "^", "decode": "s"}
BAR = 0.15  # inches


def check_matplotlib() -> None:
    """Raise ImportError with what to install, before anything is timed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError("--plot needs matplotlib: pip install 'wgattn[bench]', or matplotlib alone") from None


def plot(report: Report, path: Path) -> None:
    """Write the picture of `report` to a PNG. Raises ValueError where no row has a figure."""
    rows = [row for row in report.rows if row.median_s is not None]
    if not rows:
        raise ValueError("no row has a figure: nothing can be drawn")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    attention = [row for row in rows if row.command in MARKERS]
    compared = [row for row in rows if row.peers]
    bars = sum(len(row.peers) + 1 for row in compared)
    figure = Figure(figsize=(18, max(9.0, 2.0 + BAR * bars)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplot_mosaic([["lengths", "bars"], ["roof", "bars"]])
    _throughput(panels["lengths"], attention)
    _ratios(panels["bars"], compared)
    _roofline(panels["roof"], attention, report)
    figure.suptitle(f"wgattn {report.version} on {report.device} ({report.provider})")
    figure.savefig(path, dpi=110)


def series(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The lines of the throughput: rows that differ in S, T and B alone, by S; two of one S are no line, so B parts
    those."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[f"{row.command} {_words(row, 'BTS')}"].append(row)
    for name in [name for name, members in found.items() if max(Counter(map(_length, members)).values()) > 1]:
        for row in found.pop(name):
            found[f"{row.command} {_words(row, 'TS')}"].append(row)
    return {name: sorted(members, key=_length) for name, members in found.items()}


def _throughput(axes: Any, rows: Sequence[Row]) -> None:
    """Operations a second over S, a line a series; decode by bytes, on the right."""
    right = axes.twinx()
    right.set_ylabel("GB/s of keys and values (dashed)")
    counts: Counter[str] = Counter()
    for name, members in series(rows).items():
        by_bytes = members[0].gbps is not None
        values = [(row.gbps if by_bytes else row.tflops) or 0.0 for row in members]
        (right if by_bytes else axes).plot(
            [_length(row) for row in members],
            values,
            linestyle="--" if by_bytes else "-",
            label=name,
            **_style(members[0], counts),
        )
    for each in (axes, right):
        each.set_ylim(bottom=0)
        each.margins(y=0.1)
    if rows:
        axes.set_xscale("log", base=2)
        ticks = sorted({_length(row) for row in rows})
        axes.set_xticks(ticks, [f"{S:,}" for S in ticks])
        axes.minorticks_off()
        handles = [*axes.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
        axes.legend(handles=handles, fontsize=7, loc="upper left", bbox_to_anchor=(1.2, 1.0), frameon=False)
    axes.set_xlabel("S, keys")
    axes.set_ylabel("TFLOP/s")
    axes.set_title("throughput")


def _ratios(axes: Any, rows: Sequence[Row]) -> None:
    """How many times as fast as each peer, a group of bars a row, on a log scale; peers that are off are hatched."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    names = list(dict.fromkeys(peer.name for row in rows for peer in row.peers))
    place, middles = 0.0, []
    known: set[str] = set()
    for row in rows:
        middles.append(place + (len(row.peers) - 1) / 2)
        for peer in row.peers:
            _bar(axes, place, peer, row.ratios[peer.name], COLORS[names.index(peer.name) % len(COLORS)], known)
            place += 1
        place += 1
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(middles, [row.name for row in rows], fontsize=8)
    axes.set_ylim(place - 0.5, -1)
    if rows:
        axes.set_xscale("log")
        axes.margins(x=0.15)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    axes.set_xlabel("times as fast as")
    axes.set_title("beside peers (hatched: the peer's own result is off)")


def _bar(axes: Any, place: float, peer: Peer, ratio: float, color: str, known: set[str]) -> None:
    """One ratio, its bar from 1; the first of a peer is in the legend."""
    label = None if peer.name in known else peer.name
    known.add(peer.name)
    hatch = None if peer.right else "////"
    axes.barh(place, ratio - 1, 0.9, left=1, color=color, hatch=hatch, edgecolor="white", linewidth=0.3, label=label)
    side, align = (3, "left") if ratio >= 1 else (-3, "right")
    text = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
    axes.annotate(text, (ratio, place), (side, 0), textcoords="offset points", va="center", ha=align, fontsize=7)


def _roofline(axes: Any, rows: Sequence[Row], report: Report) -> None:
    """Operations a second over operations a byte, below what the device can do."""
    ceilings = report.ceilings
    intensity = np.logspace(-1, 5, 200)
    for most, line, label in ((ceilings.fma, "k-", "multiply-add, reads"), (ceilings.matrix, "k--", "matrix units")):
        if most is not None:
            axes.plot(intensity, np.minimum(intensity * ceilings.bytes, most) / 1e12, line, label=label)
    counts: Counter[str] = Counter()
    for row in rows:
        if row.flops and row.moved_bytes and row.median_s:
            place = row.flops / row.moved_bytes, row.flops / row.median_s / 1e12
            axes.plot(*place, linestyle="", label=row.name, **_style(row, counts))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations a byte")
    axes.set_ylabel("TFLOP/s")
    axes.set_title("roofline")
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False)


def _style(row: Row, counts: Counter[str]) -> dict[str, Any]:
    """The marker of a row's command, in a colour that no other of that command has yet."""
    counts[row.command] += 1
    return {"marker": MARKERS[row.command], "color": COLORS[(counts[row.command] - 1) % len(COLORS)]}


def _words(row: Row, left_out: str) -> str:
    """A row's shape without these sizes."""
    return " ".join(word for word in row.shape.split() if word[0] not in left_out or not word[1:].isdigit())


def _length(row: Row) -> int:
    (found,) = (int(word[1:]) for word in row.shape.split() if word[0] == "S" and word[1:].isdigit())
    return found
