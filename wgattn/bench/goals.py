"""What wgattn aims at on CPU adapters and on GPUs, goal by goal, and how far the rows of a report are from it."""

from collections.abc import Sequence
from dataclasses import dataclass

from wgattn.bench.report import Report, Row

TIMES = "times as fast as "
MISSING = "not in this report"


@dataclass(frozen=True, slots=True)
class Goal:
    """What a row should reach. `call`: words of the row's name or shape.

    `of` is what counts: `times as fast as NAME`, of the fastest peer whose name begins so; `share`, of the row's
    ceiling; `seconds`, the median; else the name of a figure. `at_most`: less is better.
    """

    command: str
    call: str
    of: str
    asked: float
    at_most: bool = False

    def serves(self, row: Row) -> bool:
        """Whether the goal is about this row."""
        return row.command == self.command and set(self.call.split()) <= {*row.name.split(), *row.shape.split()}

    def value(self, row: Row) -> float | None:
        """The row's figure; None where it has none."""
        if self.of.startswith(TIMES):
            found = [ratio for name, ratio in row.ratios.items() if name.startswith(self.of.removeprefix(TIMES))]
            return min(found, default=None)
        return {"share": row.share, "seconds": row.median_s}.get(self.of, row.figures.get(self.of))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A goal beside what was measured of it: the row's call and figure, or the reason why there is none."""

    goal: Goal
    call: str
    value: float | None
    reason: str = ""

    @property
    def reached(self) -> float | None:
        """The part of the goal that is reached, 1 and more where it is met; None without a figure."""
        if self.value is None:
            return None
        if self.goal.at_most:
            return float("inf") if self.value <= 0 else self.goal.asked / self.value
        return self.value / self.goal.asked


def _times(command: str, call: str, *beside: tuple[str, float]) -> tuple[Goal, ...]:
    return tuple(Goal(command, call, TIMES + name, asked) for name, asked in beside)


def _host(light: float, heavy: float) -> tuple[Goal, ...]:
    """What is asked of every device: the bridge, the first call, what a call costs the host, memory."""
    return (
        Goal("bridge", "host", "over_unavoidable", 1.3, True),
        Goal("compile", "light", "seconds", light, True),
        Goal("compile", "heavy", "seconds", heavy, True),
        Goal("compile", "cached", "over_s", 60e-6, True),
        Goal("compile", "attend, dense", "over_s", 60e-6, True),
        Goal("compile", "attend, paged", "over_s", 60e-6, True),
        *(
            goal
            for command in ("forward,", "backward,", "decode,")
            for goal in (
                Goal("memory", command, "beyond_of_scores", 0.25, True),
                Goal("memory", command, "grown_bytes", 0.0, True),
            )
            if command != "decode," or goal.of == "grown_bytes"
        ),
    )


XLA, TORCH = "jax.nn XLA cpu", "PyTorch flash cpu"
ON_CPU = (
    *_times("forward", "T512 K8 H64 f32 causal", (XLA, 1.2), (TORCH, 0.5), ("ONNX Runtime CPU", 0.5)),
    *_times("forward", "T2048 K2 f32 causal", (XLA, 2.8), (TORCH, 0.5)),
    *_times("forward", "T2048 K8 f32 full", (XLA, 1.4), (TORCH, 0.5)),
    *_times("forward", "T8192 f32 causal", (XLA, 2.6), (TORCH, 0.5)),
    *_times("decode", "S4096 float32", (XLA, 2.0), (XLA, 3.5), (TORCH, 0.5)),
    *_times("backward", "T2048 K8 f32 causal", (XLA, 1.5)),
    Goal("bridge", "up", "upload_of_copy", 0.8),
    Goal("bridge", "up", "download_of_copy", 0.8),
    *_times("bridge", "host", (XLA, 1.5)),
    *_host(1.5, 4.0),
)

ROUTES = "ncnn Vulkan", "ONNX Runtime WebGPU", "tinygrad WEBGPU"
FLASH, EFFICIENT, CUDNN = "PyTorch flash cuda", "PyTorch efficient cuda", "PyTorch cudnn cuda"
ON_GPU = (
    *(
        goal
        for head_dim in ("H64", "H128")
        for goal in _times("forward", f"B4 T4096 {head_dim} f16", (FLASH, 1.0), (CUDNN, 1.0))
    ),
    *_times("forward", "B4 T4096 H64 f32", (EFFICIENT, 1.0)),
    Goal("forward", "B4 T4096 H64 f32", "share", 0.6),
    *_times("forward", "B4 T4096 H128 f32", (EFFICIENT, 0.7)),
    Goal("forward", "B4 T4096 H128 f32", "share", 0.6),
    *_times("forward", "B4 T4096 H64 f32", ("wgattn plain", 20.0)),
    *_times("forward", "B4 T4096 H64 f16", ("wgattn plain", 20.0)),
    *_times("forward", "B1 T2048 H64 f32", *((name, 5.0) for name in ROUTES)),
    Goal("decode", "B16 float16", "share", 0.85),
    Goal("decode", "B16 float16", "share", 0.94),
    Goal("decode", "B1 float16", "share", 0.6),
    *(
        goal
        for dtype in ("int8", "float8_e4m3fn", "float8_e5m2")
        for goal in _times("decode", f"B16 {dtype}", ("wgattn, float16 cache", 1.5))
    ),
    *_times("backward", "B4 T4096 H64 f16", (FLASH, 0.6)),
    *_times("backward", "B4 T4096 H128 f16", (FLASH, 0.6)),
    *_times("backward", "B4 T4096 H64 f32", (EFFICIENT, 0.6)),
    *_times("backward", "B4 T4096 H128 f32", (EFFICIENT, 0.6)),
    Goal("bridge", "up", "upload_gbps", 8.0),
    Goal("bridge", "up", "download_gbps", 8.0),
    *_host(0.3, 0.3),
)


def outcomes(report: Report) -> list[Outcome]:
    """Each goal of the report's kind of device, with its row's figure."""
    return [_outcome(goal, report.rows) for goal in (ON_CPU if report.kind == "cpu" else ON_GPU)]


def _outcome(goal: Goal, rows: Sequence[Row]) -> Outcome:
    row = next((row for row in rows if goal.serves(row)), None)
    if row is None:
        return Outcome(goal, f"{goal.command} {goal.call}", None, MISSING)
    if row.failed:
        return Outcome(goal, row.call, None, f"failed: {row.failed}")
    return Outcome(goal, row.call, goal.value(row), "" if goal.value(row) is not None else "it was not there")
