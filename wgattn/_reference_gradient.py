"""The gradient of `_reference.attention` in float64, derived by hand: what backward kernels are measured against."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ._reference import (
    Entries,
    RopeRule,
    RowMask,
    _batched,
    _f64,
    _heads,
    _logits,
    _padded,
    kept_keys,
    rotate,
    rotation,
)


@dataclass(frozen=True, slots=True)
class Gradient:
    """Gradients in float64, each of its operand's shape; None for what the call does not have."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    bias: np.ndarray | None
    sinks: np.ndarray | None
    scale: np.ndarray


def attention_gradient(
    grad_out: np.ndarray,
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
) -> Gradient:
    """The gradient of sum(grad_out · out) by query, key, value, bias, sinks and scale; the arguments are `attention`'s.

    grad_out has out's shape; what it holds in rows ≥ query_seq_lengths is not read, nor is K or V of keys that no row
    keeps. The scale's gradient is by each of B where scale is (B,), else (); that of sinks likewise. Holds T × S of
    one key/value head.
    """
    queries, keys, values, given = (_batched(x) for x in (query, key, value, grad_out))
    (B, T, N, H), (S, K) = queries.shape, keys.shape[1:3]
    dq, dk, dv = (np.zeros(x.shape) for x in (queries, keys, values))
    padded = None if bias is None else _padded(bias)
    dbias: np.ndarray | None = None if padded is None else np.zeros_like(padded, np.float64)
    dsinks = None if sinks is None else np.zeros((B, N))
    rows_of_sinks = None if sinks is None else np.broadcast_to(_f64(sinks), (B, N))
    dscale = np.zeros(B)
    if given.size and S:
        G = N // K
        entries = Entries.of(queries, S, scale, query_offset, query_seq_lengths, key_value_seq_lengths)
        rows = np.arange(T)
        positions = rows + entries.offset
        keep = kept_keys(rows, positions, S, mask, is_causal, local_window_size)
        for b in range(B):
            live: np.ndarray = np.less(rows, entries.queries[b])
            alive = live.reshape(T, 1)
            turn = _turns(rope, positions[min(b, len(positions) - 1)], S, H)
            for k in range(K):
                heads = slice(k * G, k * G + G)
                kept = _heads(keep, b, heads) & (np.arange(S) < entries.keys[b])
                part = np.zeros((1, 1, 1)) if padded is None else _f64(_heads(padded, b, heads, rows))
                kept = np.broadcast_to(kept & ~np.isneginf(part) & alive, (G, T, S))
                seen = kept.any((0, 1)).reshape(S, 1)
                q = _f64(queries[b, :, heads]).swapaxes(0, 1)
                q, do = (np.where(alive, x, 0) for x in (q, _f64(given[b, :, heads]).swapaxes(0, 1)))
                stored, v = (np.where(seen, _f64(x[b, :, k]), 0) for x in (keys, values))
                if rope is not None:
                    q, stored = _rotated(q, turn[0], rope), _rotated(stored, turn[1], rope)
                product = q @ stored.T
                capped = _logits(q, stored, entries.scale[b], softcap)
                sink = None if rows_of_sinks is None else rows_of_sinks[b, heads, None]
                p, sink_share = _weights(capped + np.where(np.isneginf(part), 0, part), kept, sink)
                dp = np.where(kept, do @ v.T, 0)
                delta = (p * dp).sum(-1, keepdims=True)
                dlogit = p * (dp - delta)
                if dsinks is not None:
                    dsinks[b, heads] -= (sink_share * delta[..., 0]).sum(-1)
                if dbias is not None:
                    at = min(b, len(dbias) - 1), heads if dbias.shape[1] > 1 else slice(None)
                    over = tuple(axis for axis in range(3) if dbias.shape[axis + 1] == 1)
                    dbias[at] += dlogit.sum(over, keepdims=True)
                draw = dlogit if softcap is None else dlogit * (1 - (capped / softcap) ** 2)
                dscale[b] += (draw * product).sum()
                by_query, by_key = (entries.scale[b] * x for x in (draw @ stored, (draw.swapaxes(1, 2) @ q).sum(0)))
                if rope is not None:
                    by_query, by_key = _rotated(by_query, turn[0], rope, -1), _rotated(by_key, turn[1], rope, -1)
                dq[b, :, heads], dk[b, :, k] = by_query.swapaxes(0, 1), by_key
                alone = ~kept.any(-1) & live
                mean = 0.0 if sinks is not None else do[alone].sum(0) / S
                dv[b, :, k] = (p.swapaxes(1, 2) @ do).sum(0) + mean
    return Gradient(
        dq.reshape(query.shape),
        dk.reshape(key.shape),
        dv.reshape(value.shape),
        None if dbias is None or bias is None else dbias.reshape(bias.shape),
        dsinks if dsinks is None or sinks is None or sinks.ndim == 2 else dsinks.sum(0),
        dscale if isinstance(scale, np.ndarray) and scale.ndim else np.asarray(dscale.sum()),
    )


def _turns(rope: RopeRule | None, positions: np.ndarray, S: int, H: int) -> tuple[Any, Any]:
    """cos and sin of the query rows and of the keys."""
    if rope is None:
        return None, None
    return tuple(rotation(at, H, rope.base, rope.rotary_dim, rope.scaling) for at in (positions, np.arange(S)))  # type: ignore[return-value]


def _rotated(x: np.ndarray, turn: tuple[np.ndarray, np.ndarray], rope: RopeRule, way: int = 1) -> np.ndarray:
    """x (…, T, H) rotated; back again where `way` is -1."""
    return rotate(x[..., None, :], turn[0], way * turn[1], rope.style)[..., 0, :]


def _weights(logits: np.ndarray, kept: np.ndarray, sink: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Softmax weights (G, T, S), and the sink's (G, T), of sinks (G, 1); 0 in rows that keep no key."""
    alone = ~kept.any(-1)
    peak = np.where(kept, logits, -np.inf).max(-1)
    if sink is not None:
        peak = np.maximum(peak, sink)
    peak = np.where(alone, 0, peak)
    with np.errstate(over="ignore", invalid="ignore"):
        weights = np.where(kept, np.exp(logits - peak[..., None]), 0)
        share = np.zeros(alone.shape) if sink is None else np.where(alone, 0, np.exp(sink - peak))
    total = np.where(alone, 1, weights.sum(-1) + share)
    return weights / total[..., None], share / total
