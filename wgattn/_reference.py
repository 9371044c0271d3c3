"""What every call must mean, in float64 NumPy: the values that kernels are measured against, apart from every kernel.

Axes: B batch, T queries, S keys, N query heads, K key/value heads, G = N / K, H head dim, Hv value head dim. A missing
batch axis is added to each argument by itself. Inputs may be of any dtype; everything is computed in float64.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

# The residual of a row that keeps no key: what logsumexp gives over logits that are all -0.7 times float32's maximum.
EMPTY_RESIDUAL = float(np.float32(-0.7 * float(np.finfo(np.float32).max)))

# (rows (R,), positions (B or 1, R)) -> bool, broadcastable to (B, N, R, S). Positions are rows plus query_offset.
RowMask = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class Result:
    """An attention result in float64: out (B)TNHv, residual (B)TN (natural logsumexp of the kept logits)."""

    out: np.ndarray
    residual: np.ndarray


@dataclass(frozen=True, slots=True)
class Tolerance:
    """‖out − reference‖ / ‖reference‖ over a call, and max|out − reference| on unit-normal data."""

    norm: float
    most: float


RESIDUAL_TOLERANCE = 1e-5  # absolute, of a float32 residual
LONG = 4096  # above so many keys float32 is allowed more


def tolerance(dtype: Any, S: int = 1, gradient: bool = False) -> Tolerance:
    """How far a result of `dtype` (float32, float16 or bfloat16) over S keys may be off; gradients twice as far."""
    rows = {
        "float32": Tolerance(5e-6, 5e-5) if S > LONG else Tolerance(2e-6, 2e-5),
        "float16": Tolerance(1e-3, 2e-3),
        "bfloat16": Tolerance(8e-3, 2e-2),
    }
    row = rows[np.dtype(dtype).name]
    return Tolerance(2 * row.norm, 2 * row.most) if gradient else row


class RopeRule(Protocol):
    """What `attention` reads of a rotary embedding; `wgattn.nn.Rope` is one."""

    @property
    def base(self) -> float: ...
    @property
    def rotary_dim(self) -> int | None: ...
    @property
    def style(self) -> str: ...
    @property
    def scaling(self) -> Any: ...


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    bias: np.ndarray | None = None,
    mask: np.ndarray | RowMask | None = None,
    *,
    scale: float | np.ndarray | None = None,
    is_causal: bool = False,
    query_seq_lengths: np.ndarray | None = None,
    key_value_seq_lengths: np.ndarray | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
    query_offset: int | np.ndarray | None = None,
    rope: RopeRule | None = None,
    empty: Literal["mean", "zero"] = "mean",
    rows: slice | np.ndarray | None = None,
) -> Result:
    """Attention of query BTNH over key BSKH and value BSKHv (or without B), row by row, never holding T × S.

    `mask` is a bool array broadcastable to BNTS, or a function of the rows. `scale` is a number, or one for each of B;
    `sinks` are (N,) or (B, N). `empty` says what a row that keeps no key gives: "mean" is `dot_product_attention`'s
    rule, "zero" (0, residual -inf) that of caches and partial results. `rows` computes only those queries; the result's
    T axis is then theirs. Raises ValueError where shapes do not fit.

    >>> one = np.ones((1, 1, 2)); attention(one, one, one).out.tolist()
    [[[1.0, 1.0]]]
    """
    queries, keys, values = (_batched(x) for x in (query, key, value))
    (B, T, N, H), (S, K) = queries.shape, keys.shape[1:3]
    Hv = values.shape[3]
    if keys.shape != (B, S, K, H) or values.shape != (B, S, K, Hv) or (N % K if K else N):
        raise ValueError(f"query {query.shape}, key {key.shape} and value {value.shape} do not fit together")
    chosen = np.arange(T) if rows is None else np.arange(T)[rows]
    out = np.zeros((B, len(chosen), N, Hv))
    residual = np.empty((B, len(chosen), N))
    sinks = None if sinks is None else np.broadcast_to(_f64(sinks), (B, N))
    residual[...] = -np.inf if sinks is None else sinks[:, None]

    if out.size and S:
        G = N // K
        entries = Entries.of(queries, S, scale, query_offset, query_seq_lengths, key_value_seq_lengths)
        bias = None if bias is None else _padded(bias)
        turn = None if rope is None else rotation(np.arange(S), H, rope.base, rope.rotary_dim, rope.scaling)
        step = max(1, (1 << 22) // (max(G, B) * S))
        for start in range(0, len(chosen), step):
            block = chosen[start : start + step]
            positions = block + entries.offset
            keep = kept_keys(block, positions, S, mask, is_causal, local_window_size)
            asked = queries[:, block].astype(np.float64)
            if rope is not None:
                cos, sin = rotation(positions, H, rope.base, rope.rotary_dim, rope.scaling)
                asked = rotate(asked, cos, sin, rope.style)
            for b in range(B):
                for k in range(K):
                    heads = slice(k * G, k * G + G)
                    stored = _f64(keys[b, :, k])
                    if rope is not None and turn is not None:
                        stored = rotate(stored[:, None], *turn, rope.style)[:, 0]
                    logits = _logits(asked[b, :, heads].swapaxes(0, 1), stored, entries.scale[b], softcap)
                    kept = _heads(keep, b, heads) & (np.arange(S) < entries.keys[b])
                    if bias is not None:
                        part = _f64(_heads(bias, b, heads, block))
                        kept = kept & ~np.isneginf(part)
                        with np.errstate(invalid="ignore"):
                            logits = logits + np.where(np.isneginf(part), 0, part)
                    kept = np.broadcast_to(kept, logits.shape) & (block < entries.queries[b])[:, None]
                    sink = None if sinks is None else sinks[b, heads]
                    o, r = _rows(logits, kept, _f64(values[b, :, k]), sink, empty)
                    o[:, block >= entries.queries[b]] = 0
                    out[b, start : start + step, heads] = o.swapaxes(0, 1)
                    residual[b, start : start + step, heads] = r.swapaxes(0, 1)
    return Result(out.reshape(*query.shape[:-3], *out.shape[1:]), residual.reshape(*query.shape[:-3], *out.shape[1:3]))


def _logits(query: np.ndarray, key: np.ndarray, scale: float, softcap: float | None) -> np.ndarray:
    """Scaled and capped scores (G, R, S) of query (G, R, H) and key (S, H)."""
    with np.errstate(invalid="ignore", over="ignore"):
        scores = scale * (query @ key.T)
        return scores if softcap is None else softcap * np.tanh(scores / softcap)


def _rows(
    logits: np.ndarray, kept: np.ndarray, value: np.ndarray, sink: np.ndarray | None, empty: str
) -> tuple[np.ndarray, np.ndarray]:
    """Softmax over the kept logits (G, R, S), times value (S, Hv): out (G, R, Hv) and residual (G, R)."""
    alone = ~kept.any(-1)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        peak = np.where(kept, logits, -np.inf).max(-1)
        if sink is not None:
            peak = np.maximum(peak, sink[:, None])
        peak = np.where(alone, 0, peak)
        weights = np.where(kept, np.exp(logits - peak[..., None]), 0)
        total = weights.sum(-1)
        if sink is not None:
            total = total + np.where(alone, 0, np.exp(sink[:, None] - peak))
        # What is not finite in V reaches only the rows that keep its key, so it stays out of the product.
        out = weights @ np.where(np.isfinite(value), value, 0)
        for j in np.flatnonzero(~np.isfinite(value).all(-1) & kept.any((0, 1))):
            wild = np.where(np.isfinite(value[j]), 0, value[j])
            out += np.where(kept[..., j, None], weights[..., j, None] * wild, 0)
        out /= np.where(alone, 1, total)[..., None]
        residual = peak + np.log(np.where(alone, 1, total))
        if sink is not None:
            residual = np.where(alone, sink[:, None], residual)
        elif empty == "mean":
            out[alone] = value.mean(0)
            residual[alone] = EMPTY_RESIDUAL
        else:
            residual[alone] = -np.inf
    return out, residual


def kept_keys(
    rows: np.ndarray,
    positions: np.ndarray,
    S: int,
    mask: np.ndarray | RowMask | None = None,
    is_causal: bool = False,
    local_window_size: int | tuple[int, int] | None = None,
) -> np.ndarray:
    """All masks of these rows but the lengths and the bias, as one bool array broadcastable to (B, N, R, S)."""
    keep = np.ones((1, 1, 1, 1), bool)
    if callable(mask):
        keep = _padded(np.asarray(mask(rows, positions)))
    elif mask is not None:
        dense = _padded(mask)
        keep = dense if dense.shape[2] == 1 else dense[:, :, rows]
    if is_causal:
        keep = keep & causal(positions, S)
    if local_window_size is not None:
        window = local_window_size
        left, right = window if isinstance(window, tuple | list) else (window, window)
        keep = keep & local(positions, S, int(left), int(right))
    return keep


def causal(positions: np.ndarray, S: int, offset: int | np.ndarray = 0) -> np.ndarray:
    """Which keys j ≤ position + offset: positions (R,) or (B, R), offset an int or (B,); bool (B or 1, 1, R, S)."""
    return np.arange(S) <= _columns(positions, offset)


def local(positions: np.ndarray, S: int, left: int, right: int, offset: int | np.ndarray = 0) -> np.ndarray:
    """Which keys lie from `left` before to `right` behind position + offset, both included; bool (B or 1, 1, R, S)."""
    here, j = _columns(positions, offset), np.arange(S)
    return (here - left <= j) & (j <= here + right)


def prefix(S: int, n: int | np.ndarray) -> np.ndarray:
    """Which keys j < n, n an int or (B,); bool (B or 1, 1, 1, S)."""
    return np.arange(S) < np.reshape(n, (-1, 1, 1, 1))


def chunked(positions: np.ndarray, S: int, size: int) -> np.ndarray:
    """Which keys share the position's chunk of `size`; bool (B or 1, 1, R, S)."""
    return np.arange(S) // size == _columns(positions, 0) // size


def segments(rows: np.ndarray, query_ids: np.ndarray, key_value_ids: np.ndarray) -> np.ndarray:
    """Which keys carry the row's id: query_ids (T,) or (B, T), key_value_ids (S,) or (B, S); bool (B or 1, 1, R, S)."""
    asked, stored = np.atleast_2d(query_ids)[:, rows], np.atleast_2d(key_value_ids)
    return (asked[:, :, None] == stored[:, None, :])[:, None]


def rope(
    x: np.ndarray,
    positions: np.ndarray | None = None,
    *,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    style: str = "half",
    scaling: Any = None,
) -> np.ndarray:
    """Rotary embedding of x (B)TNH at positions (T,) or (B, T), 0..T-1 unless given; float64, x's shape."""
    positions = np.arange(x.shape[-3]) if positions is None else np.asarray(positions)
    return rotate(_f64(x), *rotation(positions, x.shape[-1], base, rotary_dim, scaling), style)


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, style: str) -> np.ndarray:
    """x (…, T, N, H) with its first 2·D features turned by cos and sin (…, T, D); the rest stays."""
    D = cos.shape[-1]
    cos, sin = cos[..., None, :], sin[..., None, :]
    first, second = {
        "half": (slice(0, D), slice(D, 2 * D)),
        "interleaved": (slice(0, 2 * D, 2), slice(1, 2 * D, 2)),
    }[style]
    turned = np.array(x, np.float64)
    with np.errstate(invalid="ignore"):
        turned[..., first] = x[..., first] * cos - x[..., second] * sin
        turned[..., second] = x[..., second] * cos + x[..., first] * sin
    return turned


def rotation(
    positions: np.ndarray, H: int, base: float, rotary_dim: int | None, scaling: Any
) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin (*positions.shape, rotary_dim / 2) of the angles, times yarn's attention factor where it has one."""
    width = H if rotary_dim is None else rotary_dim
    if width % 2 or not 0 <= width <= H:
        raise ValueError(f"rotary_dim {width} must be even and at most H = {H}")
    frequencies, factor = rope_frequencies(width, float(base), scaling)
    angles = np.asarray(positions, np.float64)[..., None] * frequencies
    return factor * np.cos(angles), factor * np.sin(angles)


def rope_frequencies(width: int, base: float, scaling: Any = None) -> tuple[np.ndarray, float]:
    """Radians a position of each of the width / 2 pairs, and the factor on cos and sin.

    `scaling` is None, a factor (positions are divided by it), or a rule with its parameters under the names that
    published model configurations give them: a mapping or its items, with `rule` or `rope_type`; or ("linear", factor).
    """
    plain = base ** -(np.arange(0, width, 2) / width)
    rule = _scaling_rule(scaling)
    kind, factor = rule.get("rule") or rule.get("rope_type", "default"), float(rule.get("factor", 1.0))
    if kind == "default":
        return plain, 1.0
    if kind == "linear":
        return plain / factor, 1.0
    trained = float(rule.get("original_max_position_embeddings", 8192))
    turns = trained * plain / (2 * math.pi)  # how often each pair turns within the length it was trained on
    if kind == "llama3":
        low, high = float(rule.get("low_freq_factor", 1)), float(rule.get("high_freq_factor", 4))
        kept = np.clip((turns - low) / (high - low), 0, 1)
        return plain * (kept + (1 - kept) / factor), 1.0
    if kind == "yarn":
        # Pairs that turn more than beta_fast times stay, those below beta_slow are slowed; a ramp over pairs between.
        fast, slow = float(rule.get("beta_fast") or 32), float(rule.get("beta_slow") or 1)
        first, last = (width * math.log(trained / (n * 2 * math.pi)) / (2 * math.log(base)) for n in (fast, slow))
        if rule.get("truncate", True):
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)
        ramp = np.clip((np.arange(width // 2) - first) / (last - first or 1e-3), 0, 1)
        return plain * (1 - ramp + ramp / factor), _yarn_factor(rule, factor)
    raise ValueError(f"rope scaling {kind!r} is not known: linear, llama3 and yarn are")


def _scaling_rule(scaling: Any) -> Mapping[str, Any]:
    if scaling is None:
        return {}
    if isinstance(scaling, int | float):
        return {"rule": "linear", "factor": scaling}
    if isinstance(scaling, tuple) and isinstance(scaling[0], str):
        return {"rule": scaling[0], "factor": scaling[1]}
    return dict(scaling)


def _yarn_factor(rule: Mapping[str, Any], factor: float) -> float:
    def grown(by: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0

    if rule.get("attention_factor") is not None:
        return float(rule["attention_factor"])
    if rule.get("mscale") and rule.get("mscale_all_dim"):
        return grown(rule["mscale"]) / grown(rule["mscale_all_dim"])
    return grown(1.0)


def merge(outputs: Sequence[np.ndarray], residuals: Sequence[np.ndarray], sinks: np.ndarray | None = None) -> Result:
    """Partial results over disjoint keys, outputs (B)TNHv and residuals (B)TN, as one; `sinks` (N,) join once.

    A part whose residual is -inf, or the residual of a row that keeps no key, adds nothing, whatever its output holds.
    Where all are such the result is 0 and its residual -inf; with sinks 0 and the sink.

    >>> merge([np.ones((1, 1, 1))] * 2, [np.zeros((1, 1))] * 2).residual.tolist() == [[math.log(2)]]
    True
    """
    logits, stacked = (np.stack([_f64(x) for x in parts]) for parts in (residuals, outputs))
    neutral = np.isneginf(logits) | (np.abs(logits - EMPTY_RESIDUAL) <= -1e-6 * EMPTY_RESIDUAL)
    peak = np.where(neutral, -np.inf, logits).max(0)
    if sinks is not None:
        peak = np.maximum(peak, _f64(sinks))
    peak = np.where(np.isneginf(peak), 0, peak)
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(neutral, 0, np.exp(logits - peak))
        total = part.sum(0) + (0 if sinks is None else np.exp(_f64(sinks) - peak))
        out = np.where(neutral[..., None], 0, part[..., None] * stacked).sum(0)
        return Result(out / np.where(total == 0, 1, total)[..., None], peak + np.log(total))


def _f64(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


def _batched(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x)
    return x if x.ndim == 4 else x[None]


def _padded(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x)
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def _heads(x: np.ndarray, b: int, heads: slice, rows: np.ndarray | None = None) -> np.ndarray:
    """The part of x, broadcastable to BNTS, that batch entry b, these heads and these rows see."""
    part = x[min(b, x.shape[0] - 1), heads if x.shape[1] > 1 else slice(None)]
    return part if rows is None or part.shape[1] == 1 else part[:, rows]


@dataclass(frozen=True, slots=True)
class Entries:
    """What batch entries have each of their own: a scale (B,), where row 0 stands (B or 1, 1), lengths (B,)."""

    scale: np.ndarray
    offset: np.ndarray
    queries: np.ndarray
    keys: np.ndarray

    @staticmethod
    def of(query: np.ndarray, S: int, scale: Any, offset: Any, queries: Any, keys: Any) -> "Entries":
        """Those of query BTNH against S keys; None stands for 1 / √H, 0 and every row."""
        B, T, _, H = query.shape

        def lengths(given: Any, most: int) -> np.ndarray:
            return np.clip(np.broadcast_to(most if given is None else np.asarray(given), (B,)), 0, most)

        return Entries(
            np.broadcast_to(1 / math.sqrt(H) if scale is None else _f64(scale), (B,)),
            np.reshape(0 if offset is None else offset, (-1, 1)).astype(np.int64),
            lengths(queries, T),
            lengths(keys, S),
        )


def _columns(positions: np.ndarray, offset: int | np.ndarray) -> np.ndarray:
    """Position + offset as (B or 1, 1, R, 1)."""
    moved = np.atleast_2d(positions).astype(np.int64) + np.reshape(offset, (-1, 1)).astype(np.int64)
    return moved[:, None, :, None]
