"""The arguments of an attention call, bound once: Arrays that fit together, or an error that says what to do."""

import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._array import Array, asarray
from ._dtypes import FLOATS, bool_, canonical, float32, int32, is_float
from ._kernels.rotation import Rope


@dataclass(frozen=True, slots=True)
class BoundCall:
    """query, key and value, each with a batch axis, and their sizes. `lead` is query's own batch shape: (B,) or ().

    For a cache, S is its capacity, and key and value may be pools of pages.
    """

    query: Array
    key: Array
    value: Array
    lead: tuple[int, ...]
    S: int
    Hv: int

    @property
    def B(self) -> int:
        return self.query.shape[0]

    @property
    def T(self) -> int:
        return self.query.shape[1]

    @property
    def N(self) -> int:
        return self.query.shape[2]

    @property
    def H(self) -> int:
        return self.query.shape[3]


def bind(query: Any, key: Any, value: Any) -> BoundCall:
    """query (B)TNH, key (B)SKH and value (B)SKHv of one float dtype, as Arrays that fit together.

    Raises ValueError for shapes that do not fit, saying how each was read, and TypeError for dtypes.
    """
    given = {name: array_of(x, name) for name, x in (("query", query), ("key", key), ("value", value))}
    for name, x in given.items():
        letters = "BTNH or TNH" if name == "query" else "BSKH or SKH"
        if x.ndim not in (3, 4):
            hint = f": {name}[:, None] gives it an axis of one head" if x.ndim == 2 else ""
            if x.ndim > 4:
                hint = f": {name}.reshape(-1, *{name}.shape[-3:]) has one batch axis"
            raise ValueError(f"{name} must have 3 or 4 axes, {letters}; got shape {x.shape}{hint}")
    dtype = given["query"].dtype
    for name, x in given.items():
        if x.dtype not in FLOATS:
            raise TypeError(
                f"{name} is {x.dtype.name}; attention takes float32, float16 or bfloat16: "
                f"cast with {name}.astype(np.{'float32' if dtype not in FLOATS else dtype.name})"
            )
    for name, x in given.items():
        if x.dtype != dtype:
            raise TypeError(
                f"{name} is {x.dtype.name} and query is {dtype.name}; attention takes one dtype for query, key and "
                f"value: cast with {name}.astype(query.dtype)"
            )
    q, k, v = (x if x.ndim == 4 else x[None] for x in given.values())
    if problem := _misfit(q.shape, k.shape, v.shape):
        raise ValueError(_legend(given, problem))
    return BoundCall(q, k, v, given["query"].shape[:-3], k.shape[1], v.shape[3])


def array_of(given: Any, name: str) -> Array:
    """`given` as an Array. Errors begin with the argument's name."""
    try:
        return asarray(given)
    except (TypeError, ValueError, OverflowError) as error:
        if type(error) not in (TypeError, ValueError, OverflowError):  # a subclass may take other arguments
            raise
        raise type(error)(f"{name}: {error}") from None


def _misfit(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> str | None:
    """What is wrong with shapes BTNH, BSKH and BSKHv, if anything."""
    if not q[0] == k[0] == v[0]:
        hint = ": wgattn.broadcast_to repeats a batch of one without a copy" if 1 in (q[0], k[0], v[0]) else ""
        return f"query, key and value must have the same B{hint}"
    if q[3] != k[3]:
        return f"query and key must have the same H; got {q[3]} and {k[3]}"
    if k[1:3] != v[1:3]:
        return "key and value must have the same S and the same K"
    if not q[3] or not v[3]:
        return f"H and Hv must be at least 1; got {q[3]} and {v[3]}"
    if q[2] and (not k[2] or q[2] % k[2]):
        return f"N={q[2]} must be a multiple of K={k[2]}"
    return None


def _legend(given: dict[str, Array], problem: str) -> str:
    """`query (2, 8, 128, 64) is read as B=2 T=8 N=128 H=64; …`, what is wrong, and the likely remedy."""
    letters = {"query": "BTNH", "key": "BSKH", "value": ("B", "S", "K", "Hv")}
    read = []
    for name, x in given.items():
        axes = letters[name][4 - x.ndim :]
        read.append(f"{name} {x.shape} is read as {' '.join(f'{a}={n}' for a, n in zip(axes, x.shape, strict=True))}")
    text = "; ".join(read) + f": {problem}."
    shapes = [x.shape if x.ndim == 4 else (1, *x.shape) for x in given.values()]
    swapped = [(s[0], s[2], s[1], s[3]) for s in shapes]
    for flips in ((1, 1, 1), (1, 0, 0), (0, 1, 1), (0, 0, 1), (0, 1, 0)):
        tried = [b if flip else a for a, b, flip in zip(shapes, swapped, flips, strict=True)]
        if _misfit(*tried) is None:
            names = [name for name, flip in zip(given, flips, strict=True) if flip]
            axes = {name: (1, 2) if given[name].ndim == 4 else (0, 1) for name in names}
            calls = " and ".join(f"{name}.swapaxes{axes[name]}" for name in names)
            if any(x[2] > x[1] for x, flip in zip(shapes, flips, strict=True) if flip):  # more heads than positions
                return f"{text} {'These look' if len(names) > 1 else 'It looks'} like BNTH: use {calls}"
            return f"{text} If {'these are' if len(names) > 1 else 'it is'} BNTH, use {calls}"
    return text


def check_implementation(name: str) -> None:
    """Raise ValueError unless `name` is a kernel family."""
    from ._kernels.attention.choose import IMPLEMENTATIONS

    if name in IMPLEMENTATIONS:
        return
    hint = "; leave it out, wgattn has kernels of its own (wgattn.jax takes it and chooses)"
    raise ValueError(
        f"implementation is None or one of {', '.join(IMPLEMENTATIONS)}; got {name!r}"
        + (hint if name in ("xla", "cudnn") else "")
    )


def scores(given: Any, name: str, call: BoundCall) -> Array:
    """A bias or mask as (B or 1, N or 1, T or 1, S or 1)."""
    if name == "mask":
        check_mask(given)
    x = array_of(given, name)
    if name == "mask" and x.dtype != bool_:
        raise TypeError(
            f"mask must be bool, True where a key takes part; got {x.dtype.name}: pass an additive mask as bias, "
            "or compare it, as in mask != 0"
        )
    if name == "bias" and not is_float(x.dtype):
        raise TypeError(f"bias must be float; got {x.dtype.name}: cast with bias.astype(np.float32)")
    whole = (call.B, call.N, call.T, call.S)
    shape = (1,) * (4 - x.ndim) + x.shape
    if len(shape) != 4 or any(n not in (1, m) for n, m in zip(shape, whole, strict=True)):
        K = call.key.shape[2]
        heads = f"; its head axis is 1 or N={call.N}, not K={K}" if len(shape) == 4 and shape[1] == K != call.N else ""
        raise ValueError(
            f"{name} {x.shape} must broadcast to (B, N, T, S) = {whole}{heads}{_missing_axes(x.shape, name, call)}"
        )
    return x.reshape(shape)


def _missing_axes(shape: tuple[int, ...], name: str, call: BoundCall) -> str:
    """The hint for a padding mask (B, S), or for one that lacks its head axis."""
    if shape == (call.B, call.S):
        lengths = ", or give key_value_seq_lengths" if name == "mask" else ""
        return f"; a padding {name} (B, S) is {name}[:, None, None, :]{lengths}"
    return f"; (B, T, S) is {name}[:, None]" if shape == (call.B, call.T, call.S) else ""


def check_mask(given: Any) -> None:
    """Raise TypeError if a function, or the name of one, is given as a mask."""
    from . import masks

    if not isinstance(given, str) and not callable(given):
        return
    name = getattr(given, "__name__", "")
    if getattr(masks, name, None) is given:
        raise TypeError(f"mask is the function {name}; call it: wgattn.masks.{name}()")
    hint = ": is_causal=True is the causal one" if given == "causal" else ""
    raise TypeError(f"mask is a bool array or a value of wgattn.masks; got {given!r}{hint}")


def window(given: Any) -> tuple[int, int]:
    """local_window_size as (left, right)."""
    try:
        if isinstance(given, tuple | list):
            left, right = (operator.index(n) for n in given)
            return left, right
        return operator.index(given), operator.index(given)
    except (TypeError, ValueError):
        told = f"local_window_size is an integer, or a pair (left, right) of integers, and static; got {given!r}"
        if isinstance(given, Array):
            told += ": name it in static_argnums, or give masks.local(left, right, offset), whose offset is run-time"
        raise TypeError(told) from None


def per_entry(given: Any, name: str, B: int, scalar: bool = True) -> Array:
    """A run-time int32 array (B,), or () if `scalar`."""
    x = array_of(given, name)
    if x.dtype != int32:
        raise TypeError(f"{name} must be int32; got {x.dtype.name}: cast with .astype(np.int32)")
    if x.shape != (B,) and not (scalar and x.shape == ()):
        raise ValueError(f"{name} must have shape {'() or ' if scalar else ''}(B,) = ({B},); got {x.shape}")
    return x


def rope_of(given: Any) -> Rope:
    """The `rope` of a call. Raises TypeError for anything but a Rope."""
    if not isinstance(given, Rope):
        raise TypeError(f"rope takes a wgattn.nn.Rope; got {type(given).__name__}: wgattn.nn.Rope() is the usual one")
    return given


def segment_ids(given: Any, name: str, B: int, letter: str, count: int) -> Array:
    """Run-time int32 ids (count,) or (1 or B, count). `letter` names the axis in errors."""
    x = array_of(given, f"segments: {name}")
    if x.dtype != int32:
        raise TypeError(f"segments: {name} must be int32; got {x.dtype.name}: cast with .astype(np.int32)")
    if x.shape not in ((count,), (1, count), (B, count)):
        raise ValueError(f"segments: {name} must have shape ({letter},) = ({count},) or (B, {letter}); got {x.shape}")
    return x


def sink_logits(given: Any, N: int) -> Array:
    """The sinks of a call, float32 (N,)."""
    x = array_of(given, "sinks")
    if not is_float(x.dtype):
        raise TypeError(f"sinks must be float; got {x.dtype.name}: cast with sinks.astype(np.float32)")
    if x.shape != (N,):
        raise ValueError(f"sinks hold one logit a query head: shape (N,) = ({N},); got {x.shape}")
    return x.astype(float32)


def scale_of(given: Any) -> tuple[float | None, Array | None]:
    """The scale as a static number and the run-time array () by which that is multiplied, if there is one."""
    if given is None:
        return None, None
    if isinstance(given, int | float | np.generic):
        number = float(given)
        if not math.isfinite(number):
            raise ValueError(f"scale must be finite; got {given}")
        return number, None
    x = array_of(given, "scale")
    if x.shape != () or x.dtype == bool_:
        raise ValueError(f"scale is a number or an array (); got {x.dtype.name} {x.shape}")
    return 1.0, x.astype(float32)


def softcap_of(given: Any) -> float | None:
    """The cap as a static number, finite and above 0; None for no cap."""
    if given is None:
        return None
    if not isinstance(given, int | float | np.generic):
        raise TypeError(f"softcap is a static number; got {type(given).__name__}: give float(softcap)")
    cap = float(given)
    if not (math.isfinite(cap) and cap > 0):
        raise ValueError(f"softcap must be finite and above 0; got {given}: leave it out for no cap")
    return cap


def residual_dtype_of(given: Any) -> np.dtype:
    """The dtype of a returned residual. Raises TypeError for anything but wgattn's float dtypes."""
    dtype = canonical(given)
    if dtype not in FLOATS:
        raise TypeError(f"residual_dtype must be float32, float16 or bfloat16; got {dtype.name}")
    return dtype
