"""What a new variant costs at its first call, and what each later call costs the host."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np

import wgattn
from wgattn import _runtime
from wgattn.bench import checking
from wgattn.bench.attention import Told
from wgattn.bench.calls import Ours, forward
from wgattn.bench.report import Row
from wgattn.bench.timing import Sampler, medians
from wgattn.bench.workload import DTYPES, Workload

EMPTY_CACHES = {  # drivers keep compiled shaders on disk
    "MESA_SHADER_CACHE_DISABLE": "true",
    "__GL_SHADER_DISK_CACHE": "0",
    "RADV_DEBUG": "nocache",
}
MOST_SECONDS = 300  # that a process may take
ENQUEUED = 16  # calls that are told to the device before it is waited for: as many for whatever is compared
RENEWED = 4  # calls after which a new cache's buffers come back, with the bind groups that are kept for them
FIRST = 8  # tokens that are in a cache before the steps that are timed
SAMPLES = 7  # in a round: host calls are short, and now and then others use the same cores


def first_call_row(name: str, workload: Workload, processes: int, done: Told = str) -> Row:
    """Seconds of the first call in a process that has a device and has run another kernel; drivers' caches are empty.

    The median of so many processes. Raises WgattnError where one fails, as it does where the result is off.
    """
    command = [sys.executable, "-m", "wgattn.bench.first_call", json.dumps(asdict(workload))]
    found = []
    for number in range(processes):
        done(f"process {number + 1} of {processes}")
        ran = subprocess.run(
            command, env=os.environ | EMPTY_CACHES, capture_output=True, text=True, timeout=MOST_SECONDS
        )
        if ran.returncode:
            raise wgattn.WgattnError(f"the process for a first call failed: {ran.stderr.strip()[-400:]}")
        found.append(json.loads(ran.stdout.splitlines()[-1]))
    seconds = float(np.median([each["seconds"] for each in found]))
    figures = {"second_call_s": float(np.median([each["second"] for each in found]))}
    error = max(each["error"] for each in found)
    return Row("compile", name, workload.name, found[0]["variant"], seconds, figures=figures, error=error)


def cached_call_row(workload: Workload, rounds: int, done: Told = str) -> Row:
    """What a call of a jitted function costs the host, beside the least that its launches take by hand.

    By hand: bind groups, an encoder, its passes and a submit, of objects that are all there. `over_s` is the rest.
    """
    arrays = workload.arrays()
    ours = forward(workload, arrays)
    error = checking.forward(workload, arrays).check(ours.variant, (np.asarray(ours.call()),))
    jitted = _enqueued(lambda: ours.function(*ours.arguments))
    return replace(_host_cost("a call that is cached", workload.name, ours, jitted, rounds, done), error=error)


def cached_step_row(layout: Literal["dense", "paged"], workload: Workload, rounds: int, done: Told = str) -> Row:
    """What a step of decoding costs the host: an append and attention, jitted, the cache donated. As above.

    A cache's first steps, which make bind groups for its buffers, are not among those that are timed.
    """
    query, *tokens = (x[:, :1] for x in workload.arrays().values())
    new = [wgattn.device_put(x) for x in (query, *tokens)]
    step = wgattn.jit(_append_and_attend, donate_argnums=0)
    state = [_with_room(workload, layout)]
    state[0], out = step(state[0], *new)
    ours = Ours(step, (state[0], *new), step.lower(state[0], *new).compile())
    whole = [np.concatenate([old, x], axis=1) for old, x in zip(_first_tokens(workload), tokens, strict=True)]
    right = checking.forward(
        replace(workload, T=1, S=FIRST + 1, causal=False), {"query": query, "key": whole[0], "value": whole[1]}
    )
    error = right.check(ours.variant, (np.asarray(out),))

    def call() -> None:
        state[0], _ = step(state[0], *new)

    def renew() -> None:
        state[0] = _with_room(workload, layout)
        for _ in range(RENEWED):
            call()

    row = _host_cost(f"append and attend, {layout}", workload.name, ours, _enqueued(call, renew), rounds, done)
    return replace(row, error=error)


def _append_and_attend(cache: wgattn.KVCache, query: Any, key: Any, value: Any) -> Any:
    cache = cache.append(key, value)
    return cache, wgattn.nn.cached_attention(query, cache)


def _with_room(workload: Workload, layout: Literal["dense", "paged"]) -> wgattn.KVCache:
    """A cache of a few tokens, with room for a sample's."""
    made = wgattn.KVCache.create(
        workload.B, workload.S, workload.K, workload.H, workload.Hv, dtype=DTYPES[workload.dtype], layout=layout
    )
    return made.append(*_first_tokens(workload)).reserve(RENEWED + ENQUEUED)


def _first_tokens(workload: Workload) -> list[np.ndarray]:
    """Keys and values that are in the cache before the first step."""
    return [workload.arrays()[name][:, :FIRST] for name in ("key", "value")]


def _host_cost(name: str, shape: str, ours: Ours, jitted: Sampler, rounds: int, done: Told) -> Row:
    """A call beside its launches by hand, in the buffers of its arguments, whatever lies in them by then."""
    samplers = {"jitted": jitted, "by hand": _enqueued(_by_hand(ours))}
    found = medians(samplers, SAMPLES * rounds, 0.2, 0.0, done=done)  # the host is busy: nothing cools
    figures = {"by_hand_s": found["by hand"], "over_s": found["jitted"] - found["by hand"]}
    return Row("compile", name, shape, ours.variant, found["jitted"], figures=figures)


def _enqueued(call: Callable[[], object], before: Callable[[], object] = lambda: None) -> Sampler:
    """Times of the host alone: the device is waited for before and after, not within. `before` is not timed."""

    def seconds(count: int) -> float:
        before()
        _runtime.wait()
        start = time.perf_counter()
        for _ in range(ENQUEUED):
            call()
        return (time.perf_counter() - start) * count / ENQUEUED

    return seconds


def _by_hand(ours: Ours) -> Callable[[], object]:
    """The same launches told to the device with nothing in between."""
    bound = ours.program.executable()._current()
    device, buffers = bound.device, ours.buffers()
    held = bound._hold(buffers)
    natives = [each.native for each in held if each is not None]

    def call() -> None:
        groups = [bound._group(i, natives) for i in range(len(bound._dispatches))]
        encoder = device.native.create_command_encoder()
        bound._encode(encoder, natives, groups)
        device.native.queue.submit([encoder.finish()])

    return lambda: (call(), held)


def _measure(workload: Workload) -> dict[str, object]:
    """In the process of its own: the device is made and has computed something else."""
    other = replace(workload, T=5, S=7, H=16, Hv=16, N=1, K=1, causal=False, implementation="plain")
    forward(other, other.arrays()).call()
    arrays = [wgattn.device_put(x) for x in workload.arrays().values()]
    static = workload.static
    attend = wgattn.jit(lambda q, k, v: wgattn.nn.dot_product_attention(q, k, v, **static))
    _runtime.wait()
    seconds, out = [], None
    for _ in range(2):
        start = time.perf_counter()
        out = attend(*arrays).block_until_ready()
        seconds.append(time.perf_counter() - start)
    variant = " + ".join(attend.lower(*arrays).compile().variants)
    error = checking.forward(workload, workload.arrays()).check(variant, (np.asarray(out),))
    return {"seconds": seconds[0], "second": seconds[1], "variant": variant, "error": error}


if __name__ == "__main__":
    print(json.dumps(_measure(Workload(**json.loads(sys.argv[1])))))
