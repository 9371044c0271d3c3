"""The README's table of speed: some calls of the reports in docs/bench, beside jax.nn and the fastest of the others.

`python -m tests.faces.documents` writes it anew after a new report.
"""

import json
import re

from tests.faces.documents import ROOT
from wgattn._cli.bench import duration
from wgattn.bench.report import Report, Row

MARKED = re.compile(r"(?<=<!-- speed -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
OURS = "wgattn"
NAMES = {  # what a report calls a peer, and what a reader does; the longer beginning first
    "jax.nn cuDNN": "cuDNN",
    "PyTorch cudnn": "cuDNN",
    "PyTorch flash cuda": "FlashAttention-2",
    "PyTorch efficient": "PyTorch",
    "PyTorch flash cpu": "PyTorch",
    "ONNX Runtime CPU": "ONNX Runtime",
    "ncnn CPU": "ncnn",
}
CALLS = {  # by report: its heading, and the calls that are shown, as words of their shape
    "h200-dawn": (
        "NVIDIA H200: 4 sequences of 4,096 tokens, 16 heads, causal",
        {
            "forward B4 T4096 S4096 N16 K16 H64 f32 causal": "float32, H = 64",
            "forward B4 T4096 S4096 N16 K16 H128 f16 causal": "float16, H = 128",
            "backward B4 T4096 S4096 N16 K16 H64 f32 causal": "float32, H = 64, with gradients",
            "backward B4 T4096 S4096 N16 K16 H128 f16 causal": "float16, H = 128, with gradients",
            "decode B16 T1 S32768 N32 K8 H128 f16 float16 cache": "decoding, float16: 16 caches of 32,768 tokens",
        },
    ),
    "lavapipe": (
        "Two CPU cores, llvmpipe: 8 heads of 64, float32, causal",
        {
            "forward B1 T512 S512 N8 K8 H64 f32 causal": "512 tokens",
            "forward B1 T2048 S2048 N8 K2 H64 f32 causal": "2,048 tokens, 2 key/value heads",
            "backward B1 T2048 S2048 N8 K8 H64 f32 causal": "2,048 tokens, with gradients",
            "decode B1 T1 S4096 N32 K8 H128 f32 float32 cache": "decoding: a cache of 4,096 tokens",
        },
    ),
}


def speed_table() -> str:
    """The table as it should stand between its two marks."""
    lines = ["| call | wgattn | `jax.nn` (XLA) | fastest other |", "|---|---|---|---|"]
    for stem, (device, calls) in CALLS.items():
        report = Report.from_json(json.loads((ROOT / "docs" / "bench" / f"{stem}.json").read_text(encoding="utf-8")))
        rows = {row.call: row for row in report.rows}
        lines.append(f"| **{device}** | | | |")
        lines += [_line(text, rows[call]) for call, text in calls.items()]
    return "\n".join(lines)


def renewed(text: str) -> str:
    """A page with the table that the reports give now, where it has the marks."""
    return MARKED.sub(lambda _: speed_table(), text)


def _line(text: str, row: Row) -> str:
    assert row.median_s is not None, row.call
    right = [peer for peer in row.peers if peer.right and not peer.name.startswith(OURS)]
    xla = next(peer for peer in right if peer.name.startswith("jax.nn XLA"))
    best = min((peer for peer in right if peer is not xla), key=lambda peer: peer.median_s)
    name = next((name for start, name in NAMES.items() if best.name.startswith(start)), best.name)
    return f"| {text} | {duration(row.median_s)} | {duration(xla.median_s)} | {duration(best.median_s)}, {name} |"
