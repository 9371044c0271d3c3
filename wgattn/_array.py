"""Array: a lazy, immutable value that is on the device, or will be once it is needed."""

import operator
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import reduce
from typing import TYPE_CHECKING, Any, NoReturn, cast
from weakref import ref

import numpy as np

from . import _run
from ._dtypes import FLOATS, bool_, canonical, float32, promote, uint32
from ._errors import AdapterNotFoundError
from ._graph.graph import Aval, describe
from ._graph.indexing import axis_of, basic, sizes_of
from ._graph.operations import BroadcastTo, Cast, Elementwise, Function, Reshape, Transpose
from ._host import Scalar, checked, host_value, is_scalar, scalar_dtype
from ._kernels.array.elementwise import COMPARISONS
from ._record import LONGEST_CHAIN, Argument, Dead, Step, Stored, constant, current_trace, leaf, record
from ._ufunc import array_ufunc, refuse_dtype_and_out

_MISSING = "wgattn computes attention, and little around it: take np.asarray(x), or compute this part with jax.numpy"


class Array:
    """An immutable, lazy array. Made by `wgattn.asarray` and by operations on Arrays, never by calling this class.

    An operation checks shapes and dtypes and records what to compute. The device works only when a value is needed:
    for `np.asarray(x)`, `x.block_until_ready()` or `float(x)`. Everything that x depends on then runs in one submit,
    and results that other Arrays hold are kept. If there is a device, a chain of 512 recorded operations runs at once.

    Example:
        >>> x = wgattn.asarray(np.ones((2, 3), np.float32)); (x.T * 2).shape
        (3, 2)
    """

    __slots__ = ("__weakref__", "_result", "_step")
    __array_ufunc__ = array_ufunc
    __hash__ = None  # type: ignore[assignment]  # == gives an Array

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("wgattn.Array is not called: make one with wgattn.asarray(x)")

    @property
    def shape(self) -> tuple[int, ...]:
        return self._aval.shape

    @property
    def dtype(self) -> np.dtype:
        return self._aval.dtype

    @property
    def ndim(self) -> int:
        return len(self._aval.shape)

    @property
    def size(self) -> int:
        return self._aval.size

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without padding."""
        return self._aval.size * self._aval.dtype.itemsize

    @property
    def device(self) -> str | None:
        """The name of the adapter that holds the value; None while the value is not on a device."""
        value = self._step.values[self._result]
        return value.buffer.device.profile.name if isinstance(value, Stored) else None

    @property
    def weak_type(self) -> bool:
        """Whether this came from Python scalars alone, so that its dtype yields to the other operand's."""
        return self._aval.weak

    @property
    def _aval(self) -> Aval:
        return self._step.avals[self._result]

    def __repr__(self) -> str:
        value = self._step.values[self._result]
        if isinstance(self._step.operation, Argument):
            return f"Array({describe(self._aval)}, traced {self._step.operation.path})"
        if isinstance(value, np.ndarray) and (value.ndim < 3 or value.size <= 20):
            text = np.array2string(value, separator=", ", threshold=20, edgeitems=2, prefix="Array(")
            return f"Array({text}, dtype={self.dtype.name})"
        states = {Dead: "donated", Stored: "on the device", np.ndarray: "on the host"}
        return f"Array({describe(self._aval)}, {states.get(type(value), 'recorded')})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an Array without axes")
        return self.shape[0]

    def __iter__(self) -> "Iterator[Array]":
        return (self[i] for i in range(len(self)))

    # The value.

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False and not isinstance(self._step.values[self._result], np.ndarray):
            raise ValueError("np.asarray(x, copy=False): the value is on the device, and reading it makes a copy")
        value = _run.to_numpy(self._step, self._result, "np.asarray")
        if dtype is not None and value.dtype != dtype:
            return value.astype(dtype)
        return value.copy() if copy and not value.flags.writeable else value

    def __dlpack__(self, **options: Any) -> Any:
        return np.array(self).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # a copy in host memory

    def block_until_ready(self) -> "Array":
        """Compute the value and wait for it. Returns this Array."""
        _run.force([(self._step, self._result)], "block_until_ready()")
        _run.wait(self._step.values[self._result])
        return self

    def is_ready(self) -> bool:
        """Whether the value has been computed, without waiting for it. False while it is only recorded."""
        return _run.is_ready(self._step.values[self._result])

    def item(self) -> Scalar:
        """The only element, as a Python scalar."""
        return self._item("item()")

    def _item(self, use: str) -> Scalar:
        if self.size != 1:
            raise ValueError(f"{use} takes an Array of one element; this one has shape {self.shape}")
        return _run.to_numpy(self._step, self._result, use).item()

    def __bool__(self) -> bool:
        return bool(self._item("bool() (if, while, and, or, not)"))

    def __float__(self) -> float:
        return float(self._item("float()"))

    def __int__(self) -> int:
        return int(self._item("int()"))

    def __format__(self, spec: str) -> str:
        return format(self._item(f"the format {spec!r}"), spec) if spec else repr(self)

    def __index__(self) -> int:
        if self.shape or self.dtype.kind not in "iu":
            raise TypeError(f"only an integer Array without axes is an index; got {describe(self._aval)}")
        return int(self._item("an index"))

    def __copy__(self) -> "Array":
        return self

    def __deepcopy__(self, _: object) -> "Array":
        return self

    def __reduce__(self) -> Any:
        return asarray, (np.asarray(self),)

    # Views.

    @property
    def T(self) -> "Array":
        """The axes in reverse order."""
        return self.transpose()

    def __getitem__(self, index: Any) -> "Array":
        """Basic indexing: integers, slices, None, `...`. Integers out of range raise IndexError, arrays TypeError."""
        sliced, kept = basic(index, self.shape)
        whole = sliced.size == self.shape and all(step == 1 for step in sliced.step)
        return (self if whole else apply(sliced, self)).reshape(kept)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise TypeError("a wgattn.Array never changes: wgattn.where and wgattn.concatenate make a new one")

    def reshape(self, *shape: Any) -> "Array":
        """The elements in row-major order as another shape; one size may be -1."""
        sizes = sizes_of(shape)
        if sizes.count(-1) == 1:
            rest = reduce(operator.mul, (n for n in sizes if n != -1), 1)
            if rest == 0 or self.size % rest:
                raise ValueError(f"an array of shape {self.shape} cannot be reshaped to {sizes}")
            sizes = tuple(self.size // rest if n == -1 else n for n in sizes)
        if any(n < 0 for n in sizes):
            raise ValueError(f"reshape takes sizes of at least 0, and one -1; got {sizes}")
        return self if sizes == self.shape else apply(Reshape(sizes), self)

    def transpose(self, *axes: Any) -> "Array":
        """The axes in the given order; by default reversed."""
        order = sizes_of(axes) if axes and axes != (None,) else tuple(reversed(range(self.ndim)))
        order = tuple(axis_of(a, self.ndim) for a in order)
        return self if order == tuple(range(self.ndim)) else apply(Transpose(order), self)

    def swapaxes(self, axis1: int, axis2: int) -> "Array":
        """The Array with two axes exchanged: swapaxes(1, 2) turns (B, N, T, H) into (B, T, N, H)."""
        order = list(range(self.ndim))
        a, b = axis_of(axis1, self.ndim), axis_of(axis2, self.ndim)
        order[a], order[b] = b, a
        return self.transpose(order)

    def astype(self, dtype: Any) -> "Array":
        """The elements as `dtype`; 64-bit types become 32-bit."""
        wanted = canonical(dtype)
        if self.dtype == wanted and not self.weak_type:
            return self
        value = self._step.values[self._result]
        if self.dtype == wanted and isinstance(value, np.ndarray):
            return of(leaf(value, Aval(self.shape, wanted)))
        return apply(Cast(wanted), self)

    def sum(self, axis: Any = None, keepdims: bool = False, *, dtype: Any = None, out: Any = None) -> "Array":
        """`wgattn.sum` of this Array. `dtype` and `out`, which np.sum passes, must be None."""
        from ._functions import sum

        refuse_dtype_and_out(dtype, out)
        return sum(self, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False, *, dtype: Any = None, out: Any = None) -> "Array":
        """`wgattn.mean` of this Array. `dtype` and `out`, which np.mean passes, must be None."""
        from ._functions import mean

        refuse_dtype_and_out(dtype, out)
        return mean(self, axis, keepdims)

    # Arithmetic.

    def __add__(self, other: Any) -> "Array":
        return _binary("add", self, other)

    def __radd__(self, other: Any) -> "Array":
        return _binary("add", other, self)

    def __sub__(self, other: Any) -> "Array":
        return _binary("subtract", self, other)

    def __rsub__(self, other: Any) -> "Array":
        return _binary("subtract", other, self)

    def __mul__(self, other: Any) -> "Array":
        return _binary("multiply", self, other)

    def __rmul__(self, other: Any) -> "Array":
        return _binary("multiply", other, self)

    def __truediv__(self, other: Any) -> "Array":
        return _binary("divide", self, other)

    def __rtruediv__(self, other: Any) -> "Array":
        return _binary("divide", other, self)

    def __neg__(self) -> "Array":
        return elementwise("negative", self)

    def __abs__(self) -> "Array":
        return self if self.dtype.kind in "bu" else elementwise("maximum", self, -self)

    def __pos__(self) -> "Array":
        return self

    def __and__(self, other: Any) -> "Array":
        return _binary("logical_and", self, other)

    def __rand__(self, other: Any) -> "Array":
        return _binary("logical_and", other, self)

    def __or__(self, other: Any) -> "Array":
        return _binary("logical_or", self, other)

    def __ror__(self, other: Any) -> "Array":
        return _binary("logical_or", other, self)

    def __invert__(self) -> "Array":
        return elementwise("logical_not", self)

    def __eq__(self, other: Any) -> "Array":  # type: ignore[override]
        return _binary("equal", self, other)

    def __ne__(self, other: Any) -> "Array":  # type: ignore[override]
        return _binary("not_equal", self, other)

    def __lt__(self, other: Any) -> "Array":
        return _binary("less", self, other)

    def __le__(self, other: Any) -> "Array":
        return _binary("less_equal", self, other)

    def __gt__(self, other: Any) -> "Array":
        return _binary("greater", self, other)

    def __ge__(self, other: Any) -> "Array":
        return _binary("greater_equal", self, other)

    if not TYPE_CHECKING:  # a type checker would conclude that an Array has every attribute

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__") or name in Array.__slots__:
                raise AttributeError(name)
            raise AttributeError(f"wgattn.Array has no {name}: {_MISSING}")

        def _refuse(self, *_: object) -> NoReturn:
            raise TypeError(
                "wgattn has no matrix product, power, modulo or integer division. It is for attention: "
                "wgattn.nn.dot_product_attention(query, key, value) multiplies and softmaxes in one kernel; "
                "do projections and the like with jax.numpy or NumPy"
            )

        __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = _refuse


def of(step: Step, result: int = 0) -> Array:
    """The Array of a step's result."""
    array = Array.__new__(Array)
    array._step, array._result = step, result
    step.owners.append(ref(array))
    return array


def apply(operation: object, *arrays: Array) -> Array:
    """Record an operation with one result. A result without elements is made at once instead."""
    step = record(operation, [(a._step, a._result) for a in arrays])
    (aval,) = step.avals
    if aval.size == 0:
        return of(leaf(np.empty(aval.shape, aval.dtype), aval))
    return bounded(of(step))


def bounded(array: Array) -> Array:
    """`array`, computed now if its chain has grown long and there is a device."""
    if array._step.depth and array._step.depth % LONGEST_CHAIN == 0 and current_trace() is None:
        with suppress(AdapterNotFoundError):  # the chain grows on; the error is raised when a value is needed
            _run.force([(array._step, array._result)], "a long chain")
    return array


def asarray(x: Any, dtype: Any = None) -> Array:
    """`x` as an Array. Takes NumPy and JAX arrays, anything with DLPack or `__array__`, scalars and lists of scalars.

    The bytes are copied at once, so later writes to x have no effect; they go to the device when they are first needed
    there. 64-bit types become 32-bit. An Array is returned unchanged. Raises TypeError for a dtype that wgattn does not
    have.

    Example:
        >>> wgattn.asarray(np.arange(3)).dtype
        dtype('int32')
    """
    array = x if isinstance(x, Array) else from_host(x, copy=True)
    return array if dtype is None else array.astype(dtype)


def from_host(x: Any, copy: bool) -> Array:
    """`asarray` of anything but an Array. Without `copy`, the caller must use x's bytes before they change."""
    return of(leaf(*host_value(x, copy)))


def promoted(operands: Sequence[Array | Scalar]) -> tuple[np.dtype, bool]:
    """The dtype that the operands promote to and whether it is weak, by jax.numpy's rules with x64 off."""
    known = [
        (scalar_dtype(cast(Scalar, x)), not isinstance(x, bool)) if is_scalar(x) else (x.dtype, x.weak_type)  # type: ignore[union-attr]
        for x in operands
    ]

    def meet(a: tuple[np.dtype, bool], b: tuple[np.dtype, bool]) -> tuple[np.dtype, bool]:
        dtype = promote(a[0], b[0], a[1], b[1])
        weak = (a[1] and b[1]) or (a[1] != b[1] and dtype != (b[0] if a[1] else a[0]))
        return dtype, weak

    return reduce(meet, known)


def coerced(x: Array | Scalar, dtype: np.dtype, weak: bool = False) -> Array:
    """x in `dtype`, recorded as a cast or a constant; `weak` says whether that cast or constant is weakly typed."""
    if isinstance(x, Array):
        return x if x.dtype == dtype else of(record(Cast(dtype), [(x._step, x._result)], (Aval(x.shape, dtype, weak),)))
    value = x % 2**32 if dtype == uint32 and isinstance(x, int) else checked(x, dtype)
    return of(constant(value, dtype, weak))


def elementwise(function: Function, *operands: Array | Scalar) -> Array:
    """Record `function` of the operands, promoted and broadcast as jax.numpy does."""
    dtype, weak = promoted(operands)
    if function in ("divide", "exp") and dtype not in FLOATS and dtype.kind in "biu":
        dtype = float32
    if dtype == bool_:
        function = {"add": "logical_or", "multiply": "logical_and"}.get(function, function)  # type: ignore[assignment]
    return apply(Elementwise(function), *(coerced(x, dtype, weak) for x in operands))


def _binary(function: Function, left: Any, right: Any) -> Array:
    operands = []
    for x in (left, right):
        if not (is_scalar(x) or hasattr(x, "__array__")):
            if function in COMPARISONS:
                return NotImplemented  # type: ignore[return-value]
            raise TypeError(f"{function} takes Arrays, NumPy and JAX arrays and numbers; got {type(x).__name__}")
        operands.append(x if isinstance(x, Array) or is_scalar(x) else from_host(x, copy=True))
    return elementwise(function, *operands)


def broadcast(x: Array, shape: tuple[int, ...]) -> Array:
    """x broadcast to `shape`."""
    return x if x.shape == shape else apply(BroadcastTo(shape), x)
