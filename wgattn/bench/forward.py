"""The forward pass timed: wgattn, its plain family and jax.nn in one process; checked first, inputs on the device."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import wgattn
from wgattn import _run, _runtime
from wgattn._reference import attention, tolerance
from wgattn._validate.measure import chosen_rows, measure
from wgattn.bench.peers import jax_device, jax_forward
from wgattn.bench.timing import medians, warmed
from wgattn.bench.workload import DTYPES, Workload

CHECKED = 1 << 24  # logits that are compared with the reference; rows are sampled above
PLAIN_LIMIT = 5e7  # operations above which the plain family takes seconds a call on a CPU adapter


@dataclass(frozen=True, slots=True)
class Row:
    """One contestant's figures. `error`: max|out - reference| over the rows that were compared.

    `operations_a_second` counts the kept scores only, by the device's clock on a GPU, else by the wall's.
    """

    name: str
    seconds: float
    gpu_seconds: float | None
    error: float
    operations_a_second: float
    ratio: float  # of the first row's seconds to these


@dataclass(frozen=True, slots=True)
class Figures:
    """What `forward` found: the call, the devices, the variant, a row a contestant, and why one is not there."""

    call: str
    adapter: str
    jax_device: str
    variant: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A call that waits for its result, and the device's own clock for it where there is one."""

    name: str
    call: Callable[[], Any]
    gpu_seconds: Callable[[], float | None]


def default_workload(profile: _runtime.DeviceProfile) -> Workload:
    """A causal call with grouped heads that takes milliseconds on the adapter."""
    size = 512 if profile.is_cpu else 2048
    return Workload(B=1, T=size, N=8, H=64, S=size, K=2, Hv=64, causal=True)


def forward(
    workload: Workload,
    rounds: int = 7,
    plain: bool | None = None,
    peer: bool = True,
    done: Callable[[str], object] = lambda name: None,
) -> Figures:
    """Time a call. `plain`: the plain family too; None: where it is quick. `peer`: jax.nn too. `done` hears of samples.

    Raises ValidationError where a result is further from the reference than the contract allows: then nothing is timed.
    """
    profile = _runtime.current_profile()
    arrays = workload.arrays()
    notes = []
    slow = profile.is_cpu and workload.flops() > PLAIN_LIMIT
    if plain is None and slow:
        notes.append("the plain family is left out: a call takes it seconds on this adapter; --plain times it")
    ours, variant = wgattn_contestant(workload, arrays)
    contestants = [ours]
    if plain or (plain is None and not slow):
        named = replace(workload, implementation="plain")
        contestants.append(replace(wgattn_contestant(named, arrays)[0], name="wgattn plain"))
    theirs = jax_forward(workload, arrays) if peer else None
    if theirs is not None:
        contestants.append(Contestant("jax.nn, jit", theirs, lambda: None))
    elif peer:
        notes.append("jax.nn has no such call")
    errors = dict(_checked(workload, arrays, contestants))
    found = medians({one.name: one.call for one in contestants}, rounds, done=done)

    def row(one: Contestant) -> Row:
        wall, gpu = found[one.name], one.gpu_seconds()
        kernels = wall if gpu is None or profile.is_cpu else gpu
        return Row(one.name, wall, gpu, errors[one.name], workload.flops() / kernels, found[ours.name] / wall)

    return Figures(workload.name, profile.name, jax_device(), variant, tuple(map(row, contestants)), tuple(notes))


def wgattn_contestant(workload: Workload, arrays: dict[str, np.ndarray]) -> tuple[Contestant, str]:
    """wgattn's contestant, and the name of the variant that serves it."""
    static = workload.static
    attend = wgattn.jit(lambda **given: wgattn.nn.dot_product_attention(**given, **static))
    placed = {name: wgattn.device_put(array) for name, array in arrays.items()}
    compiled = attend.lower(**placed).compile()

    def call() -> Any:
        return attend(**placed).block_until_ready()

    def gpu_seconds() -> float | None:
        warmed(call)
        given = [placed[name] for name in sorted(placed)]  # leaves of a dict come in the order of its keys
        inputs = [_run.stored(array._step, array._result) for array in given]
        inputs += [_run.stored(step, result) for step, result in compiled._traced.captured]
        program = compiled._program
        return program.executable().gpu_seconds([inputs[n].buffer for n in program.schedule.arguments])

    variants = ", ".join(compiled.variants)
    return Contestant("wgattn", call, gpu_seconds), variants


def _checked(
    workload: Workload, arrays: dict[str, np.ndarray], contestants: list[Contestant]
) -> Iterator[tuple[str, float]]:
    """The largest error of each contestant. Raises ValidationError for one of wgattn's that is too large."""
    names = {"bias", "mask", "sinks", "query_seq_lengths", "key_value_seq_lengths"} & set(arrays)
    static = {name: value for name, value in workload.static.items() if name != "implementation"}
    rows = chosen_rows(workload.B, workload.N, workload.T, workload.S, CHECKED)
    right = attention(
        arrays["query"], arrays["key"], arrays["value"], **{name: arrays[name] for name in names}, **static, rows=rows
    ).out
    allowed = tolerance(DTYPES[workload.dtype], workload.S)
    for one in contestants:
        found = measure("out", np.asarray(one.call())[:, rows], right, allowed, rows, 1)
        if not found.ok and one.name.startswith("wgattn"):
            raise wgattn.ValidationError(
                f"{one.name} is off by {found.most:.3g} at out{list(found.worst)} (at most {allowed.most:.3g}): "
                "nothing is timed. `wgattn validate` checks the adapter; please report this with `wgattn info --json`"
            )
        yield one.name, found.most
