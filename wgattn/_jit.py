"""jit: a function is traced once per signature and compiled once per layout; `lower` shows what becomes of it."""

import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Self, TypeVar, overload

from . import _run, _tree
from ._array import Array, asarray, of
from ._dtypes import canonical
from ._graph.graph import Aval, View
from ._graph.text import as_text, side_by_side
from ._host import host_value
from ._record import Argument, Dead, Step, Stored, Trace, current_trace, leaf, tracing
from ._signature import argnum, as_tuple, check_names, positional
from ._trace import Traced, call, finish

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


class Arguments(NamedTuple):
    """The arguments of a call: the tree and leaves of those that are traced, and the static ones."""

    tree: Any
    leaves: list[Any]
    static: tuple[tuple[Any, Hashable], ...]


class Signature(NamedTuple):
    """What distinguishes one call from another, the trace that it runs, and the leaves that it donates."""

    tree: Any
    avals: list[Aval]
    static: tuple[tuple[Any, Hashable], ...]
    traced: Traced
    donated: list[int]


class JitFunction(Generic[P, R]):
    """A function that `jit` wraps. A call traces and compiles it where that is still to be done, then runs it."""

    def __init__(
        self,
        fn: Callable[P, R],
        static_argnums: int | Sequence[int],
        static_argnames: str | Sequence[str],
        donate_argnums: int | Sequence[int],
        donate_argnames: str | Sequence[str],
        validate: bool,
    ) -> None:
        functools.update_wrapper(self, fn)
        self._fn: Callable[..., Any] = fn
        self._name = getattr(fn, "__name__", type(fn).__name__)
        self._parameters, variadic = positional(fn)
        numbers = as_tuple(static_argnums, int)
        names, donated = as_tuple(static_argnames, str), as_tuple(donate_argnames, str)
        check_names(fn, names, "static_argnames")
        check_names(fn, donated, "donate_argnames")
        count = len(self._parameters)
        self._numbers = {argnum(n, count, variadic, "static_argnums") for n in numbers}
        self._numbers |= {self._parameters.index(name) for name in names if name in self._parameters}
        self._names = set(names) | {self._parameters[n] for n in self._numbers if n < count}
        # by number where the parameter has one, else by name
        self._donated: set[int | str] = {self._parameters.index(n) if n in self._parameters else n for n in donated}
        self._donated |= {argnum(n, count, variadic, "donate_argnums") for n in as_tuple(donate_argnums, int)}
        if both := (self._numbers | self._names) & self._donated:
            called = ", ".join(sorted(map(self._called, both)))
            raise ValueError(f"{called} of {self._name} is static: it holds no memory to donate")
        self._validate = validate
        self._traces: dict[Any, Traced] = {}
        self._last: Signature | None = None  # of the last call
        self._donated_leaves_of: dict[Any, frozenset[int]] = {}
        self._lock = threading.RLock()

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(
        self: "JitFunction[Concatenate[Any, Q], R]", instance: object, owner: type | None = None
    ) -> Callable[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<wgattn.jit of {self._name}>"

    def __reduce__(self) -> str:
        """As functions do it: pickled by name, and its own deep copy."""
        return getattr(self, "__qualname__", self._name)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        bound = self._bind(args, kwargs)
        if current_trace() is not None:
            return self._inline(bound)
        arrays = self._leaves(bound)
        now = self._signature(bound, [a._step.avals[a._result] for a in arrays])
        if now.donated:
            self._check_donated(bound, now.donated)
        return call(now.traced, arrays, self._name, now.donated, self._validate)

    def _signature(self, bound: Arguments, avals: list[Aval]) -> "Signature":
        """The signature of a call. Most calls are like the previous one, which comparing finds faster than hashing."""
        last = self._last
        if last is None or last.avals != avals or last.tree != bound.tree or last.static != bound.static:
            traced, donated = self._traced(bound, avals), sorted(self._places(bound))
            last = self._last = Signature(bound.tree, avals, bound.static, traced, donated)
        return last

    def lower(self, *args: Any, **kwargs: Any) -> "Lowered":
        """Trace for these arguments without running. Arguments may be jax.ShapeDtypeStruct or anything like it."""
        bound = self._bind(args, kwargs)
        avals, layouts = [], []
        for i, x in enumerate(bound.leaves):
            if not isinstance(x, Array) and hasattr(x, "shape") and hasattr(x, "dtype") and not hasattr(x, "__array__"):
                avals.append(Aval(tuple(x.shape), self._told(bound, i, lambda x=x: canonical(x.dtype))))
                layouts.append(View.natural(tuple(x.shape)))
                continue
            array = self._leaf(bound, i)
            value = array._step.values[array._result]
            avals.append(array._aval)
            layouts.append(value.view if isinstance(value, Stored) else View.natural(array.shape))
        return Lowered(self, self._traced(bound, avals), tuple(layouts), self._places(bound))

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        tree_util = _tree.util()
        numbered = dict(enumerate(args))
        static = self._static(numbered, kwargs) if self._numbers or self._names else ()
        if static:
            fixed = {key for key, _ in static}
            numbered = {i: x for i, x in numbered.items() if i not in fixed}
            kwargs = {name: x for name, x in kwargs.items() if name not in fixed}
        leaves, tree = tree_util.tree_flatten((numbered, kwargs))
        return Arguments((tree, len(args)), leaves, static)

    def _static(self, numbered: dict[int, Any], named: dict[str, Any]) -> tuple[tuple[Any, Hashable], ...]:
        found: list[tuple[Any, Hashable]] = []
        for key, value in (*numbered.items(), *sorted(named.items())):
            if key in (self._numbers if isinstance(key, int) else self._names):
                try:
                    hash(value)
                except TypeError:
                    raise TypeError(
                        f"static argument {self._called(key)} of {self._name} must be hashable; "
                        f"got {type(value).__name__}: give a tuple or a frozen value, or let it be traced"
                    ) from None
                # Equal values of two types (1, 1.0, True) are traced apart.
                found.append((key, (type(value), value)))
        return tuple(found)

    def _leaves(self, bound: Arguments) -> list[Array]:
        """The leaves as Arrays. Raises RuntimeError for one that was donated before."""
        return [
            x if type(x) is Array and type(x._step.values[x._result]) is not Dead else self._leaf(bound, i)
            for i, x in enumerate(bound.leaves)
        ]

    def _leaf(self, bound: Arguments, i: int) -> Array:
        """Leaf i as an Array. A NumPy value is used up within this call, so its bytes are not copied first."""
        x = bound.leaves[i]
        if isinstance(x, Array):
            if isinstance(gone := x._step.values[x._result], Dead):
                raise RuntimeError(f"argument {self._path(bound, i)} of {self._name}: {gone.reason}")
            return x
        return of(leaf(*self._told(bound, i, lambda: host_value(x, copy=False))))

    def _told(self, bound: Arguments, i: int, read: Callable[[], Any]) -> Any:
        """What `read` returns for leaf i. Its errors are raised again with the argument's name."""
        try:
            return read()
        except (TypeError, OverflowError) as error:
            path = self._path(bound, i)
            raise type(error)(
                f"argument {path} of {self._name}: {error}. A value that is no array can be named in static_argnums"
            ) from None

    def _traced(self, bound: Arguments, avals: list[Aval]) -> Traced:
        key = (bound.tree, tuple(avals), bound.static)
        found = self._traces.get(key)
        if found is None:
            with self._lock:
                found = self._traces.get(key)
                if found is None:
                    found = self._traces[key] = self._trace(bound, avals)
        return found

    def _trace(self, bound: Arguments, avals: list[Aval]) -> Traced:
        trace = Trace(self._name)
        steps = [
            Step(Argument(trace, i, f"argument {self._path(bound, i)}"), (), (aval,), [None])
            for i, aval in enumerate(avals)
        ]
        with tracing(trace):
            result = self._apply(bound, [of(step) for step in steps])
            return finish(result, steps, trace)

    def _apply(self, bound: Arguments, leaves: list[Array]) -> Any:
        tree_util = _tree.util()
        tree, count = bound.tree
        positional, named = tree_util.tree_unflatten(tree, leaves)
        fixed = {key: value for key, (_, value) in bound.static}  # type: ignore[misc]
        args = [fixed[i] if i in fixed else positional[i] for i in range(count)]
        return self._fn(*args, **named, **{key: value for key, value in fixed.items() if isinstance(key, str)})

    def _inline(self, bound: Arguments) -> Any:
        """Record the operations directly into the trace that surrounds this call."""
        return self._apply(bound, [x if isinstance(x, Array) else asarray(x) for x in bound.leaves])

    def _check_donated(self, bound: Arguments, donated: list[int]) -> None:
        """Raise TypeError for a donated leaf that is not an Array."""
        for i in donated:
            if not isinstance(bound.leaves[i], Array):
                raise TypeError(
                    f"argument {self._path(bound, i)} of {self._name} is to be donated, and is no wgattn.Array but "
                    f"{type(bound.leaves[i]).__name__}: only device memory can be; give wgattn.device_put(x)"
                )

    def _places(self, bound: Arguments) -> frozenset[int]:
        """The numbers of the donated leaves, found once per tree."""
        if not self._donated:
            return frozenset()
        found = self._donated_leaves_of.get(bound.tree)
        if found is None:
            tops = [keys[1].key for keys in self._keys(bound)]
            numbers = [self._parameters.index(top) if top in self._parameters else top for top in tops]
            found = frozenset(i for i, number in enumerate(numbers) if number in self._donated)
            self._donated_leaves_of[bound.tree] = found
        return found

    def _keys(self, bound: Arguments) -> list[Any]:
        """The key path of each leaf."""
        tree_util = _tree.util()
        tree, _ = bound.tree
        with_paths, _ = tree_util.tree_flatten_with_path(tree_util.tree_unflatten(tree, range(len(bound.leaves))))
        return [keys for keys, _ in with_paths]

    def _path(self, bound: Arguments, i: int) -> str:
        """Leaf i as the user would write it: q, or q['w'][0]."""
        tree_util = _tree.util()
        _, top, *rest = self._keys(bound)[i]
        return self._called(top.key) + tree_util.keystr(tuple(rest))

    def _called(self, key: int | str) -> str:
        return self._parameters[key] if isinstance(key, int) and key < len(self._parameters) else str(key)


class Lowered:
    """A function traced for one signature: `as_text()` shows its graph before and after fusion, `compile()` is next."""

    def __init__(
        self, function: JitFunction, traced: Traced, layouts: tuple[View, ...], donated: frozenset[int]
    ) -> None:
        self._function, self._traced, self._layouts = function, traced, layouts
        # an argument that is returned keeps its memory
        self._donated = donated - {i for kind, i in traced.sources if kind == "argument"}

    def as_text(self) -> str:
        """The recorded graph beside the fused one. Needs no device."""
        graph = self._traced.graph_for((*self._layouts, *self._traced.captured_layouts()))
        told = self._traced.told
        return side_by_side(as_text(graph, results=told), as_text(_run.fused(graph), self._donated, told))

    @property
    def out_info(self) -> Any:
        """The pytree of results; each leaf has `shape` and `dtype`."""
        return self._traced.results

    def compile(self) -> "Compiled":
        """Choose the kernels and compile them for the device.

        Raises AdapterNotFoundError if there is none, UnsupportedError for a named family that cannot serve the call.
        """
        graph = self._traced.graph_for((*self._layouts, *self._traced.captured_layouts()))
        program = _run.executable(graph, self._donated)
        program.executable()
        return Compiled(self._function, self._traced, program)

    def __repr__(self) -> str:
        return f"Lowered({self._function._name})"


class Compiled:
    """A compiled function, to be called with arguments of the signature that it was lowered for."""

    def __init__(self, function: JitFunction, traced: Traced, program: Any) -> None:
        self._function, self._traced, self._program = function, traced, program

    def as_text(self) -> str:
        """Every shader that runs: its name, why it was chosen (if there was a choice), its constants and its WGSL."""
        chosen = self._program.schedule.variants
        parts = []
        for name, source in self._program.schedule.shaders.items():
            named, _, rest = source.partition("\n")  # every shader starts with its name
            reason = f"  // {chosen[name].variant.reason}" if name in chosen else ""
            parts.append(f"{named}{reason}\n{rest.rstrip()}\n")
        return "\n".join(parts)

    def cost_analysis(self) -> dict[str, int]:
        """The cost of a run: `flops`, counting every key for every query, and `bytes` read and written."""
        cost = self._program.schedule.cost
        return {"flops": cost.flops, "bytes": cost.nbytes}

    def memory_analysis(self) -> dict[str, int]:
        """Bytes on the device by purpose: inputs, outputs, constants and scratch."""
        memory = self._program.schedule.memory
        return {name: getattr(memory, name) for name in ("inputs", "outputs", "constants", "scratch")}

    @property
    def variants(self) -> dict[str, Any]:
        """The attention shaders by name, each with its `problem` and its `variant`, which has the reason."""
        return self._program.schedule.variants

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = self._function
        bound = function._bind(args, kwargs)
        arrays = function._leaves(bound)
        if function._traces.get((bound.tree, tuple(a._aval for a in arrays), bound.static)) is not self._traced:
            raise TypeError(
                f"{function._name} was compiled for other arguments (structure, shapes, dtypes, static values): "
                "lower it for these"
            )
        donated = sorted(function._places(bound))
        function._check_donated(bound, donated)
        return call(self._traced, arrays, function._name, donated, function._validate)

    def __repr__(self) -> str:
        return f"Compiled({self._function._name})"


@overload
def jit(
    fn: Callable[P, R],
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    validate: bool = False,
) -> JitFunction[P, R]: ...
@overload
def jit(
    fn: None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    validate: bool = False,
) -> Callable[[Callable[P, R]], JitFunction[P, R]]: ...
def jit(
    fn: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    validate: bool = False,
) -> Any:
    """`fn`, traced once per signature and then run as one submit, as `jax.jit`.

    Arguments and results are pytrees of arrays, of the classes that jax.tree_util has registered. A signature consists
    of the tree structure, the shapes, dtypes and layouts of the leaves, and the values of static arguments, which must
    be hashable. NumPy arrays are uploaded. Python scalars become 0-d arrays, whose values may change without a new
    trace. The memory of arguments in `donate_argnums` or `donate_argnames` may be overwritten, so using them afterwards
    raises. With `validate`, or WGATTN_VALIDATE=1, every attention call is compared with the float64 reference.

    Raises TypeError if the function asks a traced Array for its value.

    Example:
        >>> double = wgattn.jit(lambda x: x * 2); double(np.ones(3, np.float32)).shape
        (3,)
    """
    if fn is None:
        return functools.partial(
            jit,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            validate=validate,
        )
    if not callable(fn):
        raise TypeError(f"jit wraps a function; got {type(fn).__name__}")
    return JitFunction(fn, static_argnums, static_argnames, donate_argnums, donate_argnames, validate)
