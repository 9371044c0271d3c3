"""The check of every attention launch that `jit(validate=True)` and WGATTN_VALIDATE=1 ask for."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .._errors import ValidationError
from .._kernels.attention.problem import Bound, Call
from .._reference import RowMask, attention, segments
from .measure import SCORES, allowance, chosen_rows, conditioned, explain, measure
from .stored import Stored, stored


def check_launch(
    call: Call,
    operands: Mapping[str, np.ndarray],
    out: np.ndarray,
    residual: np.ndarray | None,
    variant: str,
    scores: int = SCORES,
) -> None:
    """Raise ValidationError where a launch's out, or its residual, is further from the reference than is allowed.

    `operands` are those of the graph's attention node, by name, as NumPy arrays: query (B, T, N, H) or with a second
    batch axis in front, key, value, and what the call has beside, scales and pages of a cache among it. Above `scores`
    logits a sample of rows is checked.
    """
    cache = stored(call, operands) if call.empty == "zero" else None
    for entry, arrays, options in _entries(call, operands if cache is None else cache.operands, cache):
        query, key, value = arrays
        if not query.size or not key.shape[1]:
            continue
        rows = chosen_rows(query.shape[0], query.shape[2], query.shape[1], key.shape[1], scores)
        right = attention(*arrays, **options, rows=rows)
        rows_of = (key, value) if cache is None else (key[cache.held >= 0], value[cache.held >= 0])
        loose = allowance(query, *rows_of, options.get("scale"))
        kept = conditioned(right.residual)
        given = np.where(kept[..., None], np.asarray(out[entry][:, rows]).astype(np.float64), right.out)
        found = [measure("out", given, right.out, loose.out(out.dtype, key.shape[1]), rows, 1, loose.finite)]
        if residual is not None and residual.dtype == np.float32:
            given = np.where(kept, residual[entry][:, rows].astype(np.float64), right.residual)
            found.append(
                measure("residual", given, right.residual, loose.residual(right.residual), rows, 1, loose.finite)
            )
        for one in found:
            if not one.ok:
                raise ValidationError(explain(one, variant, entry))


def _entries(
    call: Call, operands: Mapping[str, np.ndarray], cache: Stored | None
) -> Iterator[tuple[tuple[int, ...], list[np.ndarray], dict[str, Any]]]:
    """The calls that the reference takes: one for each index of the outer batch axis, if there is one."""
    *batch, _, _, _ = operands["query"].shape
    S = operands["key"].shape[-3]

    def entry(name: str, b: int) -> np.ndarray:
        """The operand of one index of the outer axis."""
        array = operands[name]
        if name in ("bias", "mask"):
            return array[min(b, array.shape[0] - 1)] if array.ndim == 5 else array
        inner = {"query": 3, "key": 3, "value": 3, "query_segments": 1, "key_segments": 1, "sinks": 1}.get(name, 0)
        whole = np.broadcast_to(array, (*batch, *array.shape[array.ndim - inner :]))
        return whole[b] if len(batch) == 2 else whole

    for b in range(batch[0] if len(batch) == 2 else 1):
        beside = {name: entry(name, b) for name in operands if name not in ("query", "key", "value")}
        sources = {name: beside[name] for name in call.sources}
        scale = call.scale
        if "scale" in beside:
            scale = beside["scale"].astype(np.float64) * (
                1 / math.sqrt(operands["query"].shape[-1]) if scale is None else scale
            )
        options: dict[str, Any] = {
            "bias": beside.get("bias"),
            "mask": _mask(call, beside, sources, np.arange(S)[None] if cache is None else cache.held),
            "scale": scale,
            "query_seq_lengths": beside.get("query_lengths"),
            "key_value_seq_lengths": beside.get("key_value_lengths"),
            "softcap": call.softcap,
            "sinks": beside.get("sinks"),
            "query_offset": beside.get("query_offset"),
            "rope": None if cache is not None and cache.turned else call.rope,
            "empty": call.empty,
        }
        yield (b,) * (len(batch) == 2), [entry(name, b) for name in ("query", "key", "value")], options


def _mask(call: Call, beside: Mapping[str, np.ndarray], sources: Mapping[str, np.ndarray], held: np.ndarray) -> RowMask:
    """The dense mask, the segments and the key ranges of a call, as a function of its rows; keys sit at `held`."""

    def keep(rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        kept = in_clauses(call.clauses, sources, positions, held) & (held >= 0)[:, None, None]
        if "query_segments" in beside:
            kept = kept & segments(rows, beside["query_segments"], beside["key_segments"])
        if "mask" in beside:
            dense = beside["mask"].reshape((1,) * (4 - beside["mask"].ndim) + beside["mask"].shape) != 0
            kept = kept & (dense if dense.shape[2] == 1 else dense[:, :, rows])
        return kept

    return keep


def in_clauses(
    clauses: tuple[tuple[Bound, ...], ...], sources: Mapping[str, np.ndarray], positions: np.ndarray, held: np.ndarray
) -> np.ndarray:
    """Which keys, at positions `held` (B or 1, S), lie in any of the clauses, for query positions (B or 1, R).

    bool (B or 1, 1, R, S).
    """
    p, j = positions[:, None, :, None].astype(np.int64), held[:, None, None]
    kept = np.zeros((1, 1, positions.shape[1], held.shape[1]), bool)
    for clause in clauses:
        here = np.ones_like(kept)
        for bound in clause:
            added = 0 if bound.source is None else np.reshape(sources[bound.source], (-1, 1, 1, 1)).astype(np.int64)
            lower = bound.side == "lower"
            if bound.kind == "chunk":
                edge = p // bound.addend * bound.addend + (0 if lower else bound.addend - 1)
            else:
                edge = bound.addend + added + (p if bound.kind == "diagonal" else 0)
            here = here & (j >= edge if lower else j <= edge)
        kept = kept | here
    return kept
