"""One call measured: wgattn, and jax.nn where it has the call, against the float64 reference, in blocks of rows."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._array import Array, asarray
from .._bind import array_of
from .._record import build
from .._reference import Result, RowMask, attention, kept_keys, segments
from .._run import executable
from .._terminal import columns
from ..masks import Mask, bind
from .launch import in_clauses
from .measure import SCORES, Measure, allowance, chosen_rows, conditioned, measure

_OURS = ("implementation", "return_residual", "residual_dtype")  # keywords that the reference has no word for
_NOT_IN_JAX = ("softcap", "sinks", "rope")
_BLOCK = 1 << 24  # logits that jax.nn holds at once


@dataclass(frozen=True, slots=True)
class Report:
    """What `validate` found, printed as a table. `ok`: wgattn's results are within the contract's tolerances; a report
    is true in a condition where it is ok.
    """

    call: str
    variant: str
    measures: tuple[Measure, ...]
    peers: tuple[Measure, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(one.ok for one in self.measures)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        width = columns(120)
        titles = "", "relative", "allowed", "max", "allowed", "worst at", "gives", "reference", ""
        table = Table(*titles, title=self.call)
        if width < 104:  # without its lines the table takes a quarter less
            table.box, table.padding, table.pad_edge = None, (0, 1, 0, 0), False
        for one in (*self.measures, *self.peers):
            verdict = ("ok" if one.ok else "WRONG") if one in self.measures else "a peer"
            relative = (one.norm, one.allowed.norm) if one.allowed.norm < float("inf") else ()
            errors = [f"{number:.2g}" for number in (*relative, one.most, one.allowed.most)]
            errors = [""] * (4 - len(errors)) + errors
            index = ",".join(map(str, one.worst))
            table.add_row(one.what, *errors, index, f"{one.given:.7g}", f"{one.right:.7g}", verdict)
        console = Console(file=io.StringIO(), width=width, force_terminal=False)
        console.print(table)
        console.print(f"variant: {self.variant}", highlight=False)
        for note in self.notes:
            console.print(f"note: {note}", highlight=False)
        return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def validate(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, **options: Any) -> Report:
    """Run one `wgattn.nn.dot_product_attention` call and measure it against the float64 reference, jax.nn too.

    Takes what the call takes: query (B)TNH, key (B)SKH, value (B)SKHv, and its keywords. The reference works on blocks
    of rows, never on T × S; of a call with more than 2**28 logits an even sample of rows is measured, and the report
    says so. A wrong result raises nothing: look at `.ok`, or print the report. Raises what the call itself raises.

    Example:
        >>> x = np.random.default_rng(0).standard_normal((1, 64, 4, 32), np.float32)
        >>> wgattn.validate(x, x, x, is_causal=True).ok
        True
    """
    from ..nn import dot_product_attention

    arrays = array_of(query, "query"), array_of(key, "key"), array_of(value, "value")
    given = {**options, "return_residual": True, "residual_dtype": np.float32}
    out, residual = dot_product_attention(*arrays, bias=bias, mask=mask, **given)
    variant = _variant(out, residual)
    known = {name: option for name, option in options.items() if name not in _OURS}
    for name in ("scale", "query_offset", "sinks", "query_seq_lengths", "key_value_seq_lengths"):
        if known.get(name) is not None:
            known[name] = np.asarray(known[name])
    known["bias"] = None if bias is None else np.asarray(asarray(bias))
    known["mask"] = _row_mask(mask, arrays[1].shape[-3])
    q, k, v = arrays
    return report((np.asarray(q), np.asarray(k), np.asarray(v)), known, np.asarray(out), np.asarray(residual), variant)


def _variant(out: Array, residual: Array) -> str:
    """The shader that serves a recorded call. It is compiled here, and found again when the call runs."""
    recording = build([(x._step, x._result) for x in (out, residual)])
    names = executable(recording.graph).schedule.variants
    return ", ".join(names) or "none: an axis is empty"


def _row_mask(mask: Any, S: int) -> np.ndarray | RowMask | None:
    """A mask as the reference takes it: dense as it is, a value of `wgattn.masks` row by row."""
    if not isinstance(mask, Mask):
        return None if mask is None else np.asarray(asarray(mask))
    clauses, sources, ids = bind(mask)
    added = {f"bound{n}": np.asarray(source) for n, source in enumerate(sources)}

    def keep(rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        kept = in_clauses(clauses, added, positions, np.arange(S)[None])
        return kept if ids is None else kept & segments(rows, *(np.asarray(x) for x in ids))

    return keep


def report(
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray],
    options: Mapping[str, Any],
    out: np.ndarray,
    residual: np.ndarray,
    variant: str,
    scores: int = SCORES,
) -> Report:
    """Measure `out` and the float32 `residual` that wgattn gave for a call.

    `options` are the reference's keywords (a mask is dense or a function of rows), as NumPy.
    """
    query, key, value = arrays
    *batch, T, N, _ = query.shape
    B, S = batch[0] if batch else 1, key.shape[-3]
    rows = chosen_rows(B, N, T, S, scores)
    right = attention(*arrays, **options, rows=rows)
    loose = allowance(query, key, value, options.get("scale"))
    kept = conditioned(right.residual)
    peers, notes = _jax(arrays, options, right, rows)
    if len(rows) < T:
        notes = (
            f"{len(rows)} of {T:,} query rows were computed, evenly spaced: the whole has {B * N * T * S:,} logits",
            *notes,
        )
    if not kept.all():
        notes = (*notes, f"{int((~kept).sum())} rows have logits of magnitude above 1e4 and are left out")
    if not loose.finite:
        notes = (*notes, "operands hold NaN or infinities: only what is finite on both sides is compared")
    if loose.logits > 1:
        notes = (*notes, f"logits may be {loose.logits:.1f} times those of unit-normal data, and so may errors")
    given = np.where(kept[..., None], out[..., rows, :, :].astype(np.float64), right.out)
    logs = np.where(kept, residual[..., rows, :].astype(np.float64), right.residual)
    sizes = f"B={B} T={T} S={S} N={N} K={key.shape[-2]} H={query.shape[-1]} Hv={value.shape[-1]} {out.dtype.name}"
    said = " ".join(name for name, option in options.items() if option is not None and option is not False)
    return Report(
        f"{sizes} {said}".rstrip(),
        variant,
        (
            measure("out", given, right.out, loose.out(out.dtype, S), rows, -3, loose.finite),
            measure("residual", logs, right.residual, loose.residual(right.residual), rows, -2, loose.finite),
        ),
        peers,
        notes,
    )


def _jax(
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray], options: Mapping[str, Any], right: Result, rows: np.ndarray
) -> tuple[tuple[Measure, ...], tuple[str, ...]]:
    """jax.nn's own errors on the rows that keep a key, or why it was not asked."""
    missing = [name for name in _NOT_IN_JAX if options.get(name) is not None]
    if arrays[2].shape[-1] != arrays[0].shape[-1]:
        missing.append("a value head dim of its own")
    if missing:
        return (), (f"jax.nn has no {', '.join(missing)}: the reference alone was compared",)
    if not right.out.size or not arrays[1].size:
        return (), ("an axis is empty: jax.nn was not asked",)
    out = _jax_rows(arrays, options, rows).reshape(right.out.shape)
    # Rows that keep no key, or nothing but the lowest bias, are where jax.nn's rules differ.
    kept = np.abs(right.residual) < 1e30
    loose = allowance(*arrays, options.get("scale"))
    allowed = loose.out(out.dtype, arrays[1].shape[-3])
    given = np.where(kept[..., None], out.astype(np.float64), right.out)
    notes = (
        () if kept.all() else (f"{int((~kept).sum())} rows keep no key: they are compared with the reference alone",)
    )
    return (measure("jax.nn", given, right.out, allowed, rows, -3, loose.finite),), notes


def _jax_rows(
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray], options: Mapping[str, Any], rows: np.ndarray
) -> np.ndarray:
    """jax.nn over some query rows, a block of them at a time, with every mask made dense for the block."""
    import jax.nn

    query, key, value = (x if x.ndim == 4 else x[None] for x in arrays)
    (B, T, N, _), S = query.shape, key.shape[1]
    bias = options.get("bias")
    offset = np.reshape(_given(options, "query_offset", 0), (-1, 1))
    lengths = np.reshape(_given(options, "key_value_seq_lengths", np.full(B, S)), (B, 1, 1, 1))
    ends = np.reshape(_given(options, "query_seq_lengths", np.full(B, T)), (B, 1))
    step = max(1, _BLOCK // (B * N * S))
    found = []
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        keep = kept_keys(
            block,
            block + offset,
            S,
            options.get("mask"),
            options.get("is_causal", False),
            options.get("local_window_size"),
        )
        keep = keep & (np.arange(S) < lengths)
        keep = np.broadcast_to(keep, (*keep.shape[:2], len(block), S))
        part = None
        if bias is not None:
            part = np.reshape(bias, (1,) * (4 - np.ndim(bias)) + np.shape(bias))
            part = part if part.shape[2] == 1 else part[:, :, block]
        out = jax.nn.dot_product_attention(
            query[:, block], key, value, part, keep, scale=options.get("scale"), implementation="xla"
        )
        found.append(np.where((block < ends)[..., None, None], np.asarray(out), 0))
    return np.concatenate(found, axis=1)


def _given(options: Mapping[str, Any], name: str, otherwise: Any) -> Any:
    return otherwise if options.get(name) is None else options[name]
