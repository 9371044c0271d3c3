"""Bytes to the device and back beside a NumPy copy of the same bytes, in turn."""

import numpy as np

from wgattn import _runtime
from wgattn.bench.attention import Told
from wgattn.bench.report import Row
from wgattn.bench.timing import by_wall, medians


def copies_row(nbytes: int, rounds: int, done: Told = str) -> Row:
    """Seconds and rates of an upload, of a download, and of NumPy's copy; the median is of both ways together.

    Raises ValueError where what comes back is not what was sent: then nothing is timed.
    """
    sent = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    received = np.empty_like(sent)
    held = [_runtime.upload(sent)]

    def upload() -> None:
        held[:] = [_runtime.upload(sent)]
        _runtime.wait()

    def download() -> None:
        _runtime.download(held[0], 0, nbytes, received)

    download()
    if not np.array_equal(sent, received):
        raise ValueError("other bytes came back than were sent")
    calls = {"upload": upload, "download": download, "copy": lambda: np.copyto(received, sent)}
    found = medians({name: by_wall(call) for name, call in calls.items()}, rounds, done=done)
    figures = {f"{name}_s": seconds for name, seconds in found.items()}
    for way in ("upload", "download"):
        figures |= {f"{way}_gbps": nbytes / found[way] / 1e9, f"{way}_of_copy": found["copy"] / found[way]}
    name, both = "up and down", found["upload"] + found["download"]
    return Row("bridge", name, f"{nbytes >> 20} MiB", median_s=both, figures=figures)
