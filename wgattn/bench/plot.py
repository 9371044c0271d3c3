"""A report drawn: throughput over sequence length, ratios to peers, and the rows under the device's roofline."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wgattn.bench.report import Report, Row

MOST_BARS = 24
COLORS = ("#0b6e99", "#d9730d", "#0f7b6c", "#ad1a72", "#6940a5", "#dfab01", "#64473a", "#9b9a97")


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

    attention = [row for row in rows if row.command in ("forward", "backward", "decode")]
    compared = [(row, name, ratio) for row in rows for name, ratio in row.ratios.items()][:MOST_BARS]
    figure = Figure(figsize=(16, max(6.0, 1.5 + 0.3 * len(compared))), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplot_mosaic([["lengths", "bars"], ["roof", "bars"]])
    lengths, bars, roof = (panels[name] for name in ("lengths", "bars", "roof"))
    _throughput(lengths, attention)
    _ratios(bars, compared)
    _roofline(roof, attention, report)
    figure.suptitle(f"wgattn {report.version} on {report.device} ({report.provider})")
    figure.savefig(path, dpi=110)


def _throughput(axes: Any, rows: Sequence[Row]) -> None:
    """Operations a second over S, a line for what differs in S alone; decode by bytes, on the right."""
    series: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        words = [word for word in row.shape.split() if word[0] not in "BTS" or not word[1:].isdigit()]
        series[" ".join((row.command, *words))].append(row)
    right = axes.twinx()
    right.set_ylabel("GB/s of keys and values (dashed)")
    for number, (name, members) in enumerate(series.items()):
        members.sort(key=_length)
        by_bytes = members[0].gbps is not None
        values = [(row.gbps if by_bytes else row.tflops) or 0.0 for row in members]
        (right if by_bytes else axes).plot(
            [_length(row) for row in members],
            values,
            "s--" if by_bytes else "o-",
            color=COLORS[number % len(COLORS)],
            label=name,
        )
    for each in (axes, right):
        each.set_ylim(bottom=0)
    if rows:
        axes.set_xscale("log", base=2)
        ticks = sorted({_length(row) for row in rows})
        axes.set_xticks(ticks, [f"{S:,}" for S in ticks])
        handles = [*axes.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
        axes.legend(handles=handles, fontsize=6, loc="upper left", bbox_to_anchor=(1.15, 1.0), frameon=False)
    axes.set_xlabel("S, keys")
    axes.set_ylabel("TFLOP/s")
    axes.set_title("throughput")


def _ratios(axes: Any, compared: Sequence[tuple[Row, str, float]]) -> None:
    """How many times as fast as each peer, on a log scale; peers whose own result is off are hatched."""
    names = list(dict.fromkeys(name for _, name, _ in compared))
    for place, (row, name, ratio) in enumerate(compared):
        wrong = any(peer.name == name and not peer.right for peer in row.peers)
        axes.barh(
            place,
            ratio - 1,
            left=1,
            color=COLORS[names.index(name) % len(COLORS)],
            hatch="//" if wrong else None,
            edgecolor="white",
        )
        side, align = (3, "left") if ratio >= 1 else (-3, "right")
        axes.annotate(
            f"{ratio:.2f}", (ratio, place), (side, 0), textcoords="offset points", va="center", ha=align, fontsize=7
        )
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(compared)), [f"{row.name} / {name}" for row, name, _ in compared], fontsize=7)
    axes.invert_yaxis()
    if compared:
        axes.set_xscale("log")
        axes.margins(x=0.2)
    axes.set_xlabel("times as fast as")
    axes.set_title("beside peers")


def _roofline(axes: Any, rows: Sequence[Row], report: Report) -> None:
    """Operations a second over operations a byte, below what the device can do."""
    ceilings = report.ceilings
    intensity = np.logspace(-2, 5, 200)
    bytes_a_second = ceilings.bytes
    axes.plot(intensity, np.minimum(intensity * bytes_a_second, ceilings.fma) / 1e12, "k-", label="multiply-add, reads")
    if ceilings.matrix is not None:
        axes.plot(
            intensity, np.minimum(intensity * bytes_a_second, ceilings.matrix) / 1e12, "k--", label="matrix units"
        )
    for number, row in enumerate(rows):
        if row.flops and row.moved_bytes and row.median_s:
            place = row.flops / row.moved_bytes, row.flops / row.median_s / 1e12
            axes.plot(*place, "o", color=COLORS[number % len(COLORS)], label=row.name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations a byte")
    axes.set_ylabel("TFLOP/s")
    axes.set_title("roofline")
    axes.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False)


def _length(row: Row) -> int:
    (found,) = (int(word[1:]) for word in row.shape.split() if word[0] == "S" and word[1:].isdigit())
    return found
