"""A call inside a JAX program timed from host to host: its parts, and what of them no bridge can avoid."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import wgattn
from wgattn import _run, _runtime
from wgattn.bench import checking
from wgattn.bench.calls import forward
from wgattn.bench.ceilings import sample_seconds
from wgattn.bench.peers.jax_nn import jax_forward, jax_name
from wgattn.bench.report import Peer, Row
from wgattn.bench.timing import by_wall, medians, warmed
from wgattn.bench.workload import Workload

NAME = "inside jax.jit, host to host"


@dataclass(frozen=True, slots=True)
class Bridge:
    """Seconds of a jitted JAX program that calls wgattn, of its parts, and of what is compared with them.

    `gpu` is by the device's own clock, on a CPU adapter by the wall's. `empty` is a `pure_callback` that does nothing
    with the same arguments and results; the copies are NumPy's, of all arguments and of the result.
    """

    call: str
    variant: str
    total: float
    upload: float
    gpu: float
    download: float
    empty: float
    argument_copies: float
    result_copy: float
    argument_bytes: int
    result_bytes: int
    error: float  # max|result - reference|
    peer: Peer | None

    @property
    def callback(self) -> float:
        """What is left of the total: JAX's call back, Python, encoding and submitting."""
        return self.total - self.upload - self.gpu - self.download

    @property
    def unavoidable(self) -> float:
        """An empty callback, one copy of each array, and the work itself."""
        return self.empty + self.argument_copies + self.result_copy + self.gpu

    @property
    def ratio(self) -> float:
        """The total to what is unavoidable of it."""
        return self.total / self.unavoidable

    def row(self) -> Row:
        """The same as a row of a report."""
        named = ("upload", "gpu", "download", "empty", "argument_copies", "result_copy", "callback", "unavoidable")
        figures = {f"{name}_s": float(getattr(self, name)) for name in named} | {"over_unavoidable": self.ratio}
        figures |= {"argument_bytes": self.argument_bytes, "result_bytes": self.result_bytes}
        peers = () if self.peer is None else (self.peer,)
        return Row("bridge", NAME, self.call, self.variant, self.total, peers=peers, figures=figures, error=self.error)


def bridge(workload: Workload, rounds: int = 7, done: Callable[[str], object] = lambda name: None) -> Bridge:
    """Time the call and its parts, in turn in one process. `done` hears of every sample.

    Raises ValidationError where the result is off: then nothing is timed.
    """
    import jax

    arrays = workload.arrays()
    static = {name: value for name, value in workload.static.items() if name != "implementation"}
    program = jax.jit(lambda given: wgattn.jax.dot_product_attention(**given, **static))
    placed = {name: jax.device_put(x) for name, x in arrays.items()}
    hosted = [np.asarray(x) for x in placed.values()]
    out = np.asarray(program(placed))
    right = checking.forward(workload, arrays)
    error = right.check("wgattn.jax", (out,))
    peer = jax_forward(workload, arrays)
    shape = jax.ShapeDtypeStruct(out.shape, out.dtype)
    empty = jax.jit(lambda given: jax.pure_callback(lambda _: out, shape, given))
    alone = forward(workload, arrays)
    result = _run.stored(*_step(alone.call())).buffer
    calls: dict[str, Callable[[], Any]] = {
        "total": lambda: jax.block_until_ready(program(placed)),
        "upload": lambda: ([_runtime.upload(x) for x in hosted], _runtime.wait()),  # on a GPU the last bytes still move
        "gpu": alone.call,
        "download": lambda: _runtime.download(result),
        "empty": lambda: jax.block_until_ready(empty(placed)),
        "argument copies": lambda: [x.copy() for x in hosted],
        "result copy": out.copy,
    }
    if peer is not None:
        calls["jax.nn"] = peer
    found = medians({name: by_wall(call) for name, call in calls.items()}, rounds, done=done)
    profile = _runtime.current_profile()
    by_device = found["gpu"]
    if profile.timestamps and not profile.is_cpu:
        _, by_device = warmed(alone.contestant("", profile).seconds, sample=sample_seconds(profile))
    return Bridge(
        call=workload.name,
        variant=alone.variant,
        total=found["total"],
        upload=found["upload"],
        gpu=by_device,
        download=found["download"],
        empty=found["empty"],
        argument_copies=found["argument copies"],
        result_copy=found["result copy"],
        argument_bytes=sum(x.nbytes for x in hosted),
        result_bytes=out.nbytes,
        error=error,
        peer=None if peer is None else Peer(jax_name(workload), found["jax.nn"], *right.error((np.asarray(peer()),))),
    )


def _step(array: Any) -> tuple[Any, int]:
    return array._step, array._result
