"""A traced wgattn function as a callback of JAX: NumPy arrays in, one run on the device, NumPy arrays out."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

from wgattn import _run, _runtime
from wgattn._array import Array
from wgattn._dtypes import canonical
from wgattn._errors import UnsupportedError
from wgattn._graph.graph import Aval, View
from wgattn._graph.operations import Input
from wgattn._record import Stored
from wgattn._trace import Traced

CALLBACK_PLATFORMS = ("cpu", "gpu", "cuda", "rocm", "tpu")

_last: BaseException | None = None


def last_error() -> BaseException | None:
    """The exception that ended the last failed call inside a JAX program; None if none has failed.

    JAX raises an error of its own, with the original's type and text in its message.

    Example:
        >>> error = wgattn.jax.last_error()
    """
    return _last


class HostCallback(ABC):
    """What JAX calls back: NumPy arrays in, NumPy arrays out. Safe to call from any thread; does not call jax.

    `results` are the avals of its results. With `effect`, JAX calls it each time that the program reaches it, whether
    or not its results are needed.
    """

    effect = False
    results: tuple[Aval, ...]

    def __call__(self, *given: Any) -> tuple[np.ndarray, ...]:
        """The results for these arguments, row-major."""
        return self.run([np.asarray(x) for x in given])

    def fill(self, _: object, results: Sequence[Any], *given: Any) -> None:
        """Compute the results for the buffers `given` and write them into the buffers `results`."""
        places = [np.asarray(place) for place in results]
        for place, found in zip(places, self.run([np.asarray(x) for x in given], places), strict=True):
            if found is not place:
                np.copyto(place, found)

    def run(self, arrays: Sequence[np.ndarray], places: Sequence[np.ndarray] = ()) -> tuple[np.ndarray, ...]:
        """The results for NumPy arrays, row-major. Some of them may be the arrays in `places`, if those are given."""
        global _last
        try:
            return self._run(arrays, places)
        except BaseException as error:
            _last = error
            raise

    @abstractmethod
    def _run(self, arrays: Sequence[np.ndarray], places: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """The work of `run`, whose errors `run` remembers."""


class HostProgram(HostCallback):
    """A traced function that is compiled at its first run."""

    def __init__(self, traced: Traced, validate: bool = False) -> None:
        self._traced, self._validate, self.tree = traced, validate, traced.tree
        self._program: Any = None
        self._compiling = threading.Lock()
        inputs = {n.operation.index: n.avals[0] for n in traced.graph.nodes if isinstance(n.operation, Input)}
        self._arguments = tuple(inputs[i] for i in range(traced.arguments))
        self.results = result_avals(traced, self._arguments)

    def _run(self, arrays: Sequence[np.ndarray], places: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        made: list[np.ndarray] = []
        self._traced.host.run(lambda i: arrays[i])  # checks of lengths and the like
        if self._traced.graph.outputs:
            made = (
                self._validated(arrays)
                if self._validate or _run.validating()
                else self._computed(arrays, dict(self._pairs(places)))
            )
        return tuple(
            made[x] if kind == "computed" else arrays[x] if kind == "argument" else np.asarray(x)
            for kind, x in self._traced.sources
        )

    def _pairs(self, places: Sequence[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
        """The numbers of the graph's outputs that are results, each with its place."""
        for (kind, x), place in zip(self._traced.sources, places, strict=False):
            if kind == "computed":
                yield x, place

    def compiled(self) -> Any:
        """The program on the device, compiled at the first call."""
        if self._program is None:
            with self._compiling:
                if self._program is None:
                    self._program = _run.executable(self._graph())
        return self._program

    def _graph(self) -> Any:
        views = tuple(View.natural(aval.shape) for aval in self._arguments)
        return self._traced.graph_for((*views, *self._traced.captured_layouts()))

    def _computed(self, arrays: Sequence[np.ndarray], places: dict[int, np.ndarray]) -> list[np.ndarray]:
        captured = [_run.stored(step, result).buffer for step, result in self._traced.captured]
        return self.compiled().run_on_host([*arrays, *captured], places)

    def _validated(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        inputs: list[Stored] = [_run.upload(x) for x in arrays]
        inputs += [_run.stored(step, result) for step, result in self._traced.captured]
        found = _run.run(self._graph(), inputs, validate=True)
        outputs = self._traced.graph.outputs
        dtypes = [self._traced.graph.aval(use).dtype for use in outputs]
        return [_run.download(x.buffer, x.view, dtype) for x, dtype in zip(found, dtypes, strict=True)]


def result_avals(traced: Traced, arguments: Sequence[Aval]) -> tuple[Aval, ...]:
    """The avals of the function's results, in order."""
    computed = [traced.graph.aval(use) for use in traced.graph.outputs]
    return tuple(
        x._aval if kind == "value" else computed[x] if kind == "computed" else arguments[x]
        for kind, x in traced.sources
    )


def run_in_jax(program: HostCallback, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The results of `program` for these arrays, as values of the JAX program that is being traced or run.

    On a CPU the callback works on JAX's own buffers. `pure_callback` would copy them twice, with threads of the pool in
    which callbacks wait, so that as many callbacks as there are threads would deadlock. On other platforms it is
    `pure_callback`, or `io_callback` for one with an effect. Effects are not ordered, except by `run_in_order`.

    Raises UnsupportedError if JAX differentiates the results, as it would for the gradient of a gradient.
    """
    if not program.effect:  # calls on a cache handle do this themselves
        arrays = _without_derivative(*arrays)
    shapes = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in program.results)
    varying = varying_axes(arrays)

    def on_cpu(*xs: jax.Array) -> tuple[jax.Array, ...]:
        called = buffer_callback(program.fill, shapes, has_side_effect=program.effect, vmap_method="sequential")
        return tuple(vary(x, varying) for x in called(*xs))

    def elsewhere(*xs: jax.Array) -> tuple[jax.Array, ...]:
        if program.effect:
            return tuple(vary(x, varying) for x in io_callback(program, shapes, *xs))
        return tuple(vary(x, varying) for x in jax.pure_callback(program, shapes, *xs, vmap_method="sequential"))

    return lax.platform_dependent(*arrays, cpu=on_cpu, default=elsewhere)


@jax.custom_jvp
def _without_derivative(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    return arrays


@_without_derivative.defjvp
def _refuse_jvp(primals: Any, tangents: Any) -> NoReturn:
    raise UnsupportedError(
        "a call of wgattn.jax is differentiated once: there is no grad of its grad, and no jax.hessian. Take "
        "jax.nn.dot_product_attention there, or jax.lax.stop_gradient of what is to count as constant"
    )


@lru_cache(maxsize=256)
def run_in_order(program: HostCallback) -> Callable[..., tuple[jax.Array, ...]]:
    """`run_in_jax` of a handle and other arrays between two ordered effects, so that it runs after the ordered effects
    that precede it in the JAX program and before those that follow.

    A failure that JAX notices after its call has returned stays in the thread's token, and every later ordered effect
    raises it again. The ordered callbacks carry only a few numbers: JAX moves their large arrays with threads of the
    pool in which callbacks wait, so that as many at once as there are threads would deadlock.
    """

    def wgattn_in_order(handle: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        first, *rest = run_in_jax(program, _in_order(handle), *arrays)
        if not rest and first.dtype == handle.dtype:  # a handle, which every later call consumes
            return (_in_order(first),)
        _in_order(lax.slice(first, (0,) * first.ndim, (1,) * first.ndim))
        return first, *rest

    return jax.jit(wgattn_in_order)


def _in_order(x: jax.Array) -> jax.Array:
    """x, through an ordered effect."""
    return io_callback(np.asarray, jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=True)


def varying_axes(arrays: Sequence[jax.Array]) -> frozenset[str]:
    """The mesh axes of `shard_map` along which any of these arrays differs from device to device."""
    return frozenset().union(*map(_varying, arrays))


def vary(x: jax.Array, axes: frozenset[str]) -> jax.Array:
    """x marked as varying along these mesh axes. Its cotangents are summed over those that are new."""
    new = tuple(sorted(axes - _varying(x)))
    return lax.pcast(x, new, to="varying") if new else x


def _varying(x: jax.Array) -> frozenset[str]:
    aval: Any = jax.typeof(x)
    known = getattr(aval, "manual_axis_type", None)  # before jax 0.10.2 the type itself had it
    return getattr(aval, "vma", frozenset()) if known is None else known.varying


def operand(x: Any, name: str = "an argument") -> jax.Array:
    """x as a JAX array of a dtype that wgattn has; 64-bit dtypes become 32-bit. `name` is for errors."""
    if x is None or isinstance(x, str):
        raise TypeError(f"{name} must be an array or a number; got {x!r}")
    array = jnp.asarray(_value(x, name) if isinstance(x, Array) else x)
    dtype = canonical(array.dtype)
    return array if array.dtype == dtype else array.astype(dtype)


def _value(x: Array, name: str) -> np.ndarray:
    try:
        return np.asarray(x)
    except TypeError as error:  # traced by wgattn.jit, it has no value
        raise TypeError(f"{name}: {error}. wgattn.jax is for JAX programs; in traced functions use wgattn.nn") from None


def check_backend() -> None:
    """Raise if JAX's default device has no callbacks, or if this process was forked from one with a WebGPU device."""
    _runtime.check_not_forked()
    chosen: Any = jax.config.jax_default_device  # type: ignore[attr-defined]
    platform = chosen if isinstance(chosen, str) else jax.default_backend() if chosen is None else chosen.platform
    if platform not in CALLBACK_PLATFORMS:
        raise UnsupportedError(
            f"wgattn.jax runs as a callback, which JAX's {platform} backend cannot lower; it can on "
            f"{', '.join(CALLBACK_PLATFORMS)}. Start with JAX_PLATFORMS=cpu, or put the call under "
            "jax.default_device(jax.devices('cpu')[0])"
        )
