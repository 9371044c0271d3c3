"""`wgattn.nn.merge_attention`: results of attention over disjoint ranges of keys, merged into one."""

from __future__ import annotations  # jaxtyping is for readers and type checkers: it loads too much for an import

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from ._array import Array, bounded, of
from ._bind import array_of, sink_logits
from ._dtypes import FLOATS, float32
from ._functions import concatenate
from ._graph.graph import Aval
from ._graph.operations import Merge
from ._record import leaf, record

if TYPE_CHECKING:
    from jaxtyping import Float

ArrayLike = Any  # what asarray takes: NumPy, JAX, DLPack, numbers


@overload
def merge_attention(
    outputs: Sequence[ArrayLike] | ArrayLike,
    residuals: Sequence[ArrayLike] | ArrayLike,
    sinks: ArrayLike | None = None,
    *,
    return_residual: Literal[False] = False,
) -> Float[Array, "*B T N Hv"]: ...
@overload
def merge_attention(
    outputs: Sequence[ArrayLike] | ArrayLike,
    residuals: Sequence[ArrayLike] | ArrayLike,
    sinks: ArrayLike | None = None,
    *,
    return_residual: Literal[True],
) -> tuple[Float[Array, "*B T N Hv"], Float[Array, "*B T N"]]: ...
@overload
def merge_attention(
    outputs: Sequence[ArrayLike] | ArrayLike,
    residuals: Sequence[ArrayLike] | ArrayLike,
    sinks: ArrayLike | None = None,
    *,
    return_residual: bool,
) -> Array | tuple[Array, Array]: ...
def merge_attention(
    outputs: Sequence[Float[Array, "*B T N Hv"] | ArrayLike] | Float[Array, "P *B T N Hv"] | ArrayLike,
    residuals: Sequence[Float[Array, "*B T N"] | ArrayLike] | Float[Array, "P *B T N"] | ArrayLike,
    sinks: Float[Array, " N"] | ArrayLike | None = None,
    *,
    return_residual: bool = False,
) -> Array | tuple[Array, Array]:
    """Attention over all keys, from its results over disjoint ranges of keys, each weighted by exp(its residual).

    A part is the result of one call for the same queries: of `dot_product_attention(…, return_residual=True,
    residual_dtype=np.float32)` or of `cached_attention`. The merge is computed in float32; the result has the outputs'
    dtype.

    Args:
        outputs: P arrays (B)TNHv, float32, float16 or bfloat16, or one array (P, …) of them.
        residuals: P arrays (B)TN, float32, or one array (P, …).
        sinks: (N,), one logit per head that joins the softmax once. The calls that made the parts must not have had it.
        return_residual: also return the natural logsumexp over all parts and the sink, (B)TN in float32, for further
            merges.

    A row whose residual is -inf is neutral: its output is not read and may hold anything. So is a row in which
    `dot_product_attention` kept no key, with a residual of -0.7 times the largest float32. If all parts of a row are
    neutral, the result is 0 and its residual -inf (with sinks, 0 and the sink).

    Gradients flow to outputs, residuals and sinks. As in jax, no gradient flows through the residual of
    `dot_product_attention`. A loss on parts that are computed and merged in one program therefore reaches their
    outputs, but misses the part of the gradient that flows through their weights: to train, use one call over all keys.

    Raises ValueError for shapes that do not fit and TypeError for dtypes, when it is called and without a device.

    Example:
        >>> q = np.ones((2, 5, 8, 64), np.float32); kv = np.ones((2, 7, 2, 64), np.float32)
        >>> options = dict(return_residual=True, residual_dtype=np.float32)
        >>> parts = [wgattn.nn.dot_product_attention(q, x, x, **options) for x in (kv[:, :4], kv[:, 4:])]
        >>> wgattn.nn.merge_attention(*zip(*parts)).shape
        (2, 5, 8, 64)
    """
    parts, logits = _stacked(outputs, "outputs"), _stacked(residuals, "residuals")
    check_parts(parts._aval, logits._aval)
    N = parts.shape[-2]
    sink = None if sinks is None else sink_logits(sinks, N)
    out, residual = merged(parts, logits, sink)
    return (out, residual) if return_residual else out


def merged(outputs: Array, residuals: Array, sinks: Array | None) -> tuple[Array, Array]:
    """The merge of parts (P, …, N, Hv) of any rank, and its residual. `sinks` broadcast to (…, N)."""
    if not residuals.size:
        shape = outputs.shape[1:]
        empty = np.zeros(shape, outputs.dtype), np.zeros(shape[:-1], np.float32)
        out, residual = (of(leaf(x, Aval(x.shape, x.dtype))) for x in empty)
        return out, residual
    operands = [outputs, residuals] if sinks is None else [outputs, residuals, sinks]
    step = record(Merge(sinks is not None), [(x._step, x._result) for x in operands])
    return bounded(of(step, 0)), of(step, 1)


def check_parts(outputs: Aval, residuals: Aval) -> None:
    """Raise if there are no parts, or if parts and residuals do not fit together."""
    if outputs.ndim not in (4, 5):
        raise ValueError(
            f"outputs are parts of shape BTNHv or TNHv, in a sequence or along a leading axis; got {outputs.shape} "
            "with the parts' axis in front"
        )
    if outputs.dtype not in FLOATS:
        raise TypeError(
            f"outputs must be float32, float16 or bfloat16; got {outputs.dtype.name}: cast with .astype(np.float32)"
        )
    if residuals.dtype != float32:
        raise TypeError(
            f"residuals must be float32; got {residuals.dtype.name}: ask for residual_dtype=np.float32 where they are "
            "made, since a cast does not bring back what was rounded"
        )
    P, *batch, T, N, Hv = outputs.shape
    if not P or not Hv:
        raise ValueError(f"merge_attention takes at least one part, of one feature or more; got shape {outputs.shape}")
    if residuals.shape != outputs.shape[:-1]:
        swapped = residuals.shape == (P, *batch, N, T)
        raise ValueError(
            f"outputs {outputs.shape[1:]} are read as {'B T N Hv' if batch else 'T N Hv'}, so residuals must be {P} of "
            f"shape {outputs.shape[1:-1]}; got {residuals.shape[0]} of shape {residuals.shape[1:]}"
            + (": these look like BNT, use residual.swapaxes(-1, -2)" if swapped else "")
        )


def check_alike(parts: Sequence[Aval], name: str) -> None:
    """Raise if a sequence of parts is empty or mixes shapes or dtypes."""
    if not parts:
        raise ValueError(f"merge_attention takes at least one part; {name} is empty")
    for place, x in enumerate(parts):
        if x.shape != parts[0].shape:
            raise ValueError(f"{name}[{place}] has shape {x.shape}, {name}[0] {parts[0].shape}: parts have one shape")
        if x.dtype != parts[0].dtype:
            raise TypeError(
                f"{name}[{place}] is {x.dtype.name}, {name}[0] {parts[0].dtype.name}: cast them to one dtype"
            )


def _stacked(given: Any, name: str) -> Array:
    """Parts along a leading axis; those of a sequence are concatenated."""
    if not isinstance(given, list | tuple):
        return array_of(given, name)
    parts = [array_of(x, f"{name}[{place}]") for place, x in enumerate(given)]
    check_alike([x._aval for x in parts], name)
    return parts[0][None] if len(parts) == 1 else concatenate([x[None] for x in parts])
