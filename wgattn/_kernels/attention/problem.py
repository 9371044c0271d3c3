"""What an attention call must compute: the Call (every static number) and the Problem (what changes the shader).

Masks reach the kernels as key ranges: a query row keeps the keys of at most two clauses, and a clause is an
intersection of bounds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from wgattn._dtypes import short_name, uint8
from wgattn._kernels.kernel import Operand
from wgattn._kernels.rotation import Rope

HEAD_DIMS = (16, 32, 48, 64, 80, 96, 128, 160, 192, 256)
QueryClass = Literal["one", "few", "short", "many"]
# Workgroups with 64 rows that run at once on the 132 multiprocessors of an H200: two on each, or three where rows are
# short and of 16 bits. So many blocks of rows, of all heads, are small calls.
BLOCK, SMALL_BLOCKS, SMALL_SHORT_BLOCKS, SHORT_DIM = 64, 264, 396, 80
# Parts of the keys fill a device with larger workgroups too: of so many times as many keys as queries, and in float32
# of so many rows.
LONG_KEYS, LONG_ROWS = 4, 1024

# Operands beside query, key, value, bias and mask: small int32 or float32 arrays, gathered into the one `rows` binding.
ROW_OPERANDS = (
    "query_lengths",
    "key_value_lengths",
    "query_offset",
    "sinks",
    "scale",
    "query_segments",
    "key_segments",
    "pages",
)
# Of these, those with an axis of their own: N, T, S, or a sequence's pages.
TAILED = ("sinks", "query_segments", "key_segments", "pages")
EmptyRule = Literal["mean", "zero"]


@dataclass(frozen=True, slots=True)
class Bound:
    """One side of a range of kept keys, for the query row at p = i + query_offset; every bound is inclusive.

    diagonal: p + addend + source · constant: addend + source · chunk: the edge of p's chunk of `addend` keys.
    `source` names a run-time int32 operand, 0-d or (B,).
    """

    side: Literal["lower", "upper"]
    kind: Literal["diagonal", "constant", "chunk"]
    addend: int = 0
    source: str | None = None


Clause = tuple[Bound, ...]
EVERY_KEY: tuple[Clause, ...] = ((),)


@dataclass(frozen=True, slots=True)
class Call:
    """The static options of one attention call. Run-time values are operands; shapes and strides are theirs."""

    clauses: tuple[Clause, ...] = EVERY_KEY
    scale: float | None = None  # None: 1/√H
    softcap: float | None = None
    rope: Rope | None = None  # both q (at i + query_offset) and k (at j) are rotated as they are read
    residual: np.dtype | None = None  # dtype of the logsumexp that is kept, None: not kept
    empty: EmptyRule = "mean"  # of a row that keeps no key: the mean of V, or 0 with residual -inf
    page_size: int | None = None  # tokens a page, a power of two; None: key and value are no pools of pages
    ring: int | None = None  # tokens pinned in the first slots, the others in turn; None: slot s holds key s
    value_dim: int | None = None  # Hv where value holds packed int4, whose rows do not tell

    @property
    def sources(self) -> tuple[str, ...]:
        """The run-time operands that bounds add, in order."""
        return tuple(dict.fromkeys(b.source for clause in self.clauses for b in clause if b.source is not None))


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The shape of the kept ranges: each clause's (side, kind, has a source); and whether keys have a length."""

    clauses: tuple[tuple[tuple[str, str, bool], ...], ...] = ((),)
    lengths: bool = False

    @property
    def name(self) -> str:
        """`all`, or a word a clause: l/u lower/upper, d/c/k diagonal/constant/chunk, + where a source is added."""
        words = [
            "".join(
                side[0] + {"diagonal": "d", "constant": "c", "chunk": "k"}[kind] + "+" * source
                for side, kind, source in clause
            )
            for clause in self.clauses
        ]
        ranges = "or".join(words) or "all"
        return ranges + ("len" if self.lengths else "")


@dataclass(frozen=True, slots=True)
class AttentionProblem:
    """What must be computed, with everything that does not change the shader taken out."""

    query_dtype: np.dtype
    key_dtype: np.dtype
    value_dtype: np.dtype
    out_dtype: np.dtype
    head_dim: int  # padded class of H; above 256, H rounded up to 16
    value_dim: int  # padded class of Hv
    exact_dims: bool  # H and Hv are their classes: no element of a row is padding
    group: int  # G, query heads a key/value head
    queries: QueryClass  # T: one, few (2 to 16), short (17 to 256), many; T itself is run-time
    small: bool  # rows, of all heads, and keys are so few that large tiles would leave a large GPU idle
    keys: KeyRange
    bias: np.dtype | None
    mask: bool
    query_lengths: bool
    query_offset: bool
    sinks: bool
    softcap: bool
    run_time_scale: bool
    segments: bool
    rope: Literal["half4", "half", "interleaved"] | None  # half4: pairs lie a multiple of four elements apart
    residual: np.dtype | None
    vectors: tuple[str, ...]  # operands whose rows can be read (or written) four elements at a time
    empty_rows: EmptyRule | None  # a row may keep no key: what it ends as
    paged: bool  # key, value and scales are pools of pages, which the operand `pages` deals to the batch
    ring: bool  # slots hold keys in turn: key_position, not the slot, says where a key sits
    scales: bool  # key and value are int8 or packed int4 (uint8), with float32 scales
    dense_rows: tuple[str, ...]  # of bias and mask, those whose keys lie one behind the other
    aligned: int  # rows of key and value start and end at multiples of so many bytes: 16, 8, 4, or 0 for fewer

    @property
    def dense(self) -> bool:
        """Some logits need a look-up of their own, beyond key ranges."""
        return self.bias is not None or self.mask or self.segments

    @property
    def features(self) -> tuple[str, ...]:
        """Short words for what is there, for variant names."""
        words = {
            "bias" + (short_name(self.bias) if self.bias else ""): self.bias is not None,
            "mask": self.mask,
            "seg": self.segments,
            "cap": self.softcap,
            "sink": self.sinks,
            "rope" + {"half4": "4", "interleaved": "i"}.get(self.rope or "", ""): self.rope is not None,
            "res" + (short_name(self.residual) if self.residual else ""): self.residual is not None,
            "qlen": self.query_lengths,
            "off": self.query_offset,
            "scale": self.run_time_scale,
            "empty": self.empty_rows == "mean",
            "zero": self.empty_rows == "zero",
            "paged": self.paged,
            "ring": self.ring,
            "scales": self.scales,
        }
        return tuple(word for word, there in words.items() if there)

    @property
    def dtype_name(self) -> str:
        """`f16`, or query, key, value and out where they differ."""
        names = [short_name(d) for d in (self.query_dtype, self.key_dtype, self.value_dtype, self.out_dtype)]
        return names[0] if len(set(names)) == 1 else "_".join(names)


def dim_class(dim: int) -> int:
    """The padded class of a head dim: the variants that are compiled are these."""
    return next((size for size in HEAD_DIMS if dim <= size), -(-dim // 16) * 16)


def query_class(queries: int) -> QueryClass:
    return "one" if queries <= 1 else "few" if queries <= 16 else "short" if queries <= 256 else "many"


def vectorized(operand: Operand) -> bool:
    """Whether four consecutive elements of a row always start at a multiple of four elements.

    They end at one too, but for elements of one byte, which are read a word at a time wherever a row ends.
    """
    *outer, inner = operand.strides
    sized = [stride for stride, size in zip(outer, operand.shape, strict=False) if size > 1]
    ends = (operand.shape[-1],) if operand.itemsize > 1 else ()
    return inner == 1 and all(n % 4 == 0 for n in (*ends, operand.offset, *sized))


def in_rows(operand: Operand) -> bool:
    """Whether the elements of a row lie one behind the other."""
    return operand.strides[-1] == 1 or operand.shape[-1] == 1


def describe(call: Call, operands: Mapping[str, Operand]) -> AttentionProblem:
    """The Problem of a call. `operands` holds query and out as (B0, B1, T, N, ·), key, value and scales as
    (B0, B1, S, K, ·), and what else is there. Of a pool of pages S is all its tokens, the same for every batch entry.
    """
    query, key, value, out = (operands[name] for name in ("query", "key", "value", "out"))
    head_dim, value_dim = query.shape[-1], out.shape[-1]
    padded, value_padded = dim_class(head_dim), dim_class(value_dim)
    bias = operands.get("bias")
    segments = "query_segments" in operands
    dense = bias is not None or "mask" in operands or segments
    keys = KeyRange(
        tuple(tuple((b.side, b.kind, b.source is not None) for b in clause) for clause in call.clauses),
        "key_value_lengths" in operands,
    )
    return AttentionProblem(
        query_dtype=query.dtype,
        key_dtype=key.dtype,
        value_dtype=value.dtype,
        out_dtype=out.dtype,
        head_dim=padded,
        value_dim=value_padded,
        exact_dims=(padded, value_padded) == (head_dim, value_dim),
        group=query.shape[3] // key.shape[3],
        queries=query_class(query.shape[2]),
        small=is_small(query, key_count(call, operands), max(padded, value_padded)),
        keys=keys,
        bias=None if bias is None else bias.dtype,
        mask="mask" in operands,
        query_lengths="query_lengths" in operands,
        query_offset="query_offset" in operands,
        sinks="sinks" in operands,
        softcap=call.softcap is not None,
        run_time_scale="scale" in operands,
        segments=segments,
        rope=None if call.rope is None else _rope_class(call.rope, head_dim),
        residual=call.residual,
        vectors=tuple(name for name in ("query", "key", "value", "out") if vectorized(operands[name])),
        empty_rows=call.empty if _may_be_empty(call, operands, dense) else None,
        paged="pages" in operands,
        ring=call.ring is not None,
        scales="scales" in operands,
        dense_rows=tuple(n for n in ("bias", "mask") if n in operands and in_rows(operands[n])),
        aligned=aligned_bytes(key, value),
    )


def aligned_bytes(*operands: Operand) -> int:
    """The most bytes, up to 16, that rows can be read by at a time; 0 for rows of packed int4."""
    steps = [16]
    for operand in operands:
        sized = [stride for stride, size in zip(operand.strides[:-1], operand.shape, strict=False) if size > 1]
        steps += [n * operand.itemsize for n in (operand.shape[-1], operand.offset, *sized)]
    step = math.gcd(*steps)
    return step if step >= 4 and all(o.strides[-1] == 1 and o.dtype != uint8 for o in operands) else 0


def key_count(call: Call, operands: Mapping[str, Operand]) -> int:
    """S, the keys of a call: of pages, as many as a sequence's table has room for."""
    if call.page_size is None:
        return operands["key"].shape[2]
    return operands["pages"].shape[-1] * call.page_size


def is_small(query: Operand, keys: int, dims: int) -> bool:
    """Whether workgroups of more than BLOCK rows would be empty in part, or too few for a large GPU."""
    b0, b1, T, N, _ = query.shape
    if T <= BLOCK:
        return True
    if keys >= LONG_KEYS * T or (query.itemsize == 4 and T > LONG_ROWS):
        return False
    most = SMALL_SHORT_BLOCKS if dims <= SHORT_DIM and query.itemsize == 2 else SMALL_BLOCKS
    return b0 * b1 * N * -(-T // BLOCK) <= most


def _rope_class(rope: Rope, head_dim: int) -> Literal["half4", "half", "interleaved"]:
    if rope.style == "interleaved":
        return "interleaved"
    return "half4" if rope.rotated(head_dim) % 8 == 0 else "half"


def _may_be_empty(call: Call, operands: Mapping[str, Operand], dense: bool) -> bool:
    if dense or "key_value_lengths" in operands or "query_lengths" in operands:
        return True
    return not any(all(_keeps_first_key(bound, operands) for bound in clause) for clause in call.clauses)


def _keeps_first_key(bound: Bound, operands: Mapping[str, Operand]) -> bool:
    if bound.side == "lower" or bound.source is not None:
        return False
    if bound.kind == "constant":
        return bound.addend >= 0
    return bound.kind == "diagonal" and bound.addend >= 0 and "query_offset" not in operands


def scale_of(call: Call, head_dim: int) -> float:
    return 1.0 / math.sqrt(head_dim) if call.scale is None else call.scale
