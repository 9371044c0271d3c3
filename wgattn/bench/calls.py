"""wgattn's own calls: forward, forward with backward, decode; jitted, their arguments on the device."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import wgattn
from wgattn import _run, _runtime
from wgattn.bench.ceilings import repeated
from wgattn.bench.contestants import Contestant
from wgattn.bench.timing import by_wall
from wgattn.bench.workload import Workload


@dataclass(frozen=True, slots=True)
class Ours:
    """A call of wgattn's: the jitted function, its arguments on the device, what `lower().compile()` gives."""

    function: Any
    arguments: tuple[Any, ...]
    compiled: Any
    cache_bytes: int = 0

    @property
    def variant(self) -> str:
        """The kernels that serve the call, by name."""
        return " + ".join(self.compiled.variants)

    def call(self) -> Any:
        """Run once and wait."""
        found = self.function(*self.arguments)
        _runtime.wait()
        return found

    def buffers(self) -> list[_runtime.Buffer]:
        """The program's inputs, in its order."""
        bound = self.function._bind(self.arguments, {})
        arrays = [self.function._leaf(bound, i) for i in range(len(bound.leaves))]
        given = [_run.stored(array._step, array._result) for array in arrays]
        given += [_run.stored(step, result) for step, result in self.compiled._traced.captured]
        return [given[n].buffer for n in self.program.schedule.arguments]

    @property
    def program(self) -> Any:
        """What the schedule made of it."""
        return self.compiled._program

    def contestant(self, name: str, profile: _runtime.DeviceProfile) -> Contestant:
        """Timed on a GPU by its own clock, launches alone; else by the host's, the whole call."""
        by_device = profile.timestamps and not profile.is_cpu
        buffers = self.buffers()
        seconds = repeated(self.program.schedule.program, profile, lambda: buffers) if by_device else by_wall(self.call)
        return Contestant(name, lambda: _arrays(self.call()), seconds)


def forward(workload: Workload, arrays: dict[str, np.ndarray]) -> Ours:
    """The call of a workload without a cache."""
    static, names = workload.static, tuple(arrays)

    def attend(*given: Any) -> Any:
        return wgattn.nn.dot_product_attention(**dict(zip(names, given, strict=True)), **static)

    return _ours(attend, tuple(wgattn.device_put(array) for array in arrays.values()))


def backward(workload: Workload, arrays: dict[str, np.ndarray]) -> Ours:
    """Forward and backward: the gradients by query, key and value, from `cotangent`, the last of the arrays."""
    static = workload.static

    def gradients(query: Any, key: Any, value: Any, given: Any) -> Any:
        return wgattn.vjp(lambda *qkv: wgattn.nn.dot_product_attention(*qkv, **static), query, key, value)[1](given)

    return _ours(gradients, tuple(wgattn.device_put(x) for x in arrays.values()))


def decode(workload: Workload, arrays: dict[str, np.ndarray]) -> Ours:
    """Attention of each sequence's newest tokens over a cache that is full."""
    assert workload.cache is not None
    static = {name: value for name, value in workload.static.items() if name != "is_causal"}
    one = wgattn.KVCache.create(
        1, workload.S, workload.K, workload.H, None if workload.Hv == workload.H else workload.Hv, dtype=workload.cache
    )
    cache = one.append(arrays["key"], arrays["value"])
    if workload.B > 1:
        cache = cache.fork(np.zeros(workload.B, np.int32))
    query = wgattn.device_put(arrays["query"])
    made = _ours(lambda query, cache: wgattn.nn.cached_attention(query, cache, **static), (query, cache))
    return Ours(made.function, made.arguments, made.compiled, cache.nbytes)


def _ours(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Ours:
    jitted = wgattn.jit(function)
    return Ours(jitted, arguments, jitted.lower(*arguments).compile())


def _arrays(found: Any) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(x) for x in found) if isinstance(found, tuple) else (np.asarray(found),)
