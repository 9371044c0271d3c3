"""New tokens written into a KV cache: dense, paged or a ring, cast or quantised on the way, keys and values at once."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from wgattn._dtypes import float8_e4m3fn, float8_e5m2, short_name, uint32
from wgattn._errors import UnsupportedError
from wgattn._kernels.array import pointwise
from wgattn._kernels.kernel import (
    Binding,
    Bytes,
    Copy,
    Launch,
    Operand,
    Parameters,
    Plan,
    Scalar,
    Scratch,
    Variant,
    bound_bytes,
    fold_workgroups,
)
from wgattn._kernels.rotation import DIGITS, TABLES, Rope
from wgattn._kernels.stored import BLOCK, SIDES, scale_count
from wgattn._runtime.profile import DeviceProfile

NAME = "cache_append"
WORKGROUP = 64
WORD = 4
SMALL = ("lengths", "counts", "pages")
MOST = {"i8": 127, "u8": 7}


@dataclass(frozen=True, slots=True)
class Append:
    """One append: its operands by name, and what `CacheAppend` says of them."""

    operands: Mapping[str, Operand]
    ring: int | None
    rope: Rope | None
    profile: DeviceProfile

    @property
    def sides(self) -> tuple[str, ...]:
        return tuple(side for side in SIDES if side in self.operands)

    @property
    def new(self) -> tuple[Operand, ...]:
        return tuple(self.operands[f"new_{side}"] for side in self.sides)

    @property
    def stored(self) -> str:
        return short_name(self.operands[self.sides[0]].dtype)

    @property
    def written(self) -> tuple[str, ...]:
        return (*self.sides, *(["scales"] if "scales" in self.operands else []))

    @property
    def small(self) -> tuple[str, ...]:
        return tuple(name for name in SMALL if name in self.operands)

    @property
    def packed(self) -> bool:
        """Whether the small arrays have to lie in one buffer, since the device binds no more."""
        others = len(self.written) + len(self.sides) + (self.rope is not None) + 1
        return others + len(self.small) > self.profile.limits.storage_buffers

    @property
    def unit(self) -> int:
        """The elements that a thread writes at a time."""
        return BLOCK if self.stored == "u8" else 4

    @property
    def lanes(self) -> int:
        """The threads that share a row: a power of two."""
        units = max(-(-new.shape[3] // self.unit) for new in self.new)
        return min(1 << (units - 1).bit_length(), WORKGROUP)


def plan(
    operands: Mapping[str, Operand], ring: int | None, rope: Rope | None, new_lengths: str, profile: DeviceProfile
) -> Plan:
    """Write new_key and new_value (B, T, K, ·), any views, into key and value, which are contiguous, as are the others.

    Operands and what they hold: `CacheAppend`; they go by their own names, the bytes of `rotation.tables` by
    "rope_tables", and the new lengths, which have B elements and no stride, by `new_lengths`. key, value and scales are
    written where they lie; what the new tokens do not take is kept. Storage wider than a binding takes a launch for
    each part of it that can be bound.

    Raises UnsupportedError where not even one token of all heads can be bound.
    """
    append = Append(operands, ring, rope, profile)
    new = append.new
    B, T, _, _ = new[0].shape
    if B == 0:
        return Plan(())
    if T == 0:
        return Plan((Copy(Bytes("lengths", WORD * operands["lengths"].offset, WORD * B), new_lengths, 0),))
    variant, (placed, copies, scratch) = _variant(append), _small(append)
    heads = Operand(uint32, new[0].shape, (0, 0, 1, 1))
    places = tuple(pointwise.coordinate(new[0].shape, axis) for axis in (0, 1))
    cuts = pointwise.pieces((*new, heads, *places), ((0, 0),) * len(new), profile, uncut=len(new))
    windows = tuple(_windows(append))
    resources = {"new_lengths": Bytes(new_lengths)} | {name: bound for name, bound, _ in placed.values()}
    at = {f"{name}_at": first for name, (_, _, first) in placed.items()}
    launches = (_launch(append, variant, part, rows, resources, at) for part in cuts for rows in windows)
    return Plan((*copies, *launches), scratch)


def _small(append: Append) -> tuple[dict[str, tuple[str, Bytes, int]], tuple[Copy, ...], dict[str, Scratch]]:
    """Of lengths, counts and pages: the binding, its bytes and the first element there; and what brings them there."""
    placed: dict[str, tuple[str, Bytes, int]] = {}
    if not append.packed:
        for name in append.small:
            bound, first = bound_bytes(append.operands[name], name, append.profile.limits.offset_alignment)
            placed[name] = name, bound, first
        return placed, (), {}
    copies, first = [], 0
    for name in append.small:
        operand = append.operands[name]
        count = math.prod(operand.shape)
        placed[name] = "rows", Bytes("rows"), first
        copies.append(Copy(Bytes(name, WORD * operand.offset, WORD * count), "rows", WORD * first))
        first += count
    return placed, tuple(copies), {"rows": Scratch(WORD * first)}


def _windows(append: Append) -> Iterator[range]:
    """The rows of storage, a token of all heads each, in runs that can be bound."""
    key, profile = append.operands[append.sides[0]], append.profile
    total = key.shape[0] * key.shape[1]
    widest = max(_row_bytes(append.operands[name]) for name in append.written)
    limit = pointwise.binding_limit(profile)
    if total * widest <= limit:
        yield range(total)
        return
    count = (limit - profile.limits.offset_alignment) // widest
    if count < 1:
        raise UnsupportedError(
            f"a token of {widest:,} bytes cannot be bound on {profile.name}, whose limit is {limit:,}: split the heads"
        )
    for first in range(0, total, count):
        yield range(first, min(first + count, total))


def _row_bytes(operand: Operand) -> int:
    return operand.shape[2] * operand.shape[3] * operand.itemsize


def _variant(append: Append) -> Variant:
    stored, small = append.stored, append.small
    sources = tuple((side, short_name(new.dtype)) for side, new in zip(append.sides, append.new, strict=True))
    style = "" if append.rope is None else append.rope.style
    words = ["B", "T", "K", "piece", "groups", "first_b", "first_t", "capacity", "first_row", "rows"]
    words += ["pinned"] if append.ring is not None else []
    words += [f"{name}_at" for name in small]
    words += ["pages", "page_bits", "pool"] if "pages" in small else []
    words += ["rope_pairs"] if style else []
    words += ["scales_at", "blocks"] if stored in MOST else []
    for side in append.sides:
        words += [f"{side}_{field}" for field in ("dim", "at", "words", *(["block"] if stored in MOST else []))]
        words += [f"new_{side}_{field}" for field in ("at", "b", "t", "k", "h")]
    bindings = [Binding(name, "write", "u32") for name in append.written]
    bindings += [Binding(f"new_{side}", "read", "u32") for side in append.sides]
    bindings += [Binding(name, "read", "i32") for name in (("rows",) if append.packed else small)]
    bindings += [Binding(TABLES, "read", "vec2<f32>")] if style else []
    bindings += [Binding("new_lengths", "write", "i32")]
    fields: tuple[tuple[str, Scalar], ...] = tuple((word, "u32") for word in words)
    name = [NAME, stored, *(f"{side[0]}{source}" for side, source in sources), f"l{append.lanes}"]
    name += [name for name in ("counts", "pages") if name in small]
    name += ["ring"] if append.ring is not None else []
    name += [style] if style else []
    name += ["packed"] if append.packed else []
    return Variant(
        family=NAME,
        name="-".join(name),
        template="array/cache_append.wgsl",
        constants=(
            ("WORKGROUP", WORKGROUP),
            ("LANES", append.lanes),
            *((("MOST", MOST[stored]),) if stored in MOST else ()),
            ("stored", stored),
            ("saturated", _saturated(append.operands[append.sides[0]].dtype)),
            ("unit", append.unit),
            ("sides", sources),
            ("small", small),
            ("packed", append.packed),
            ("ring", append.ring is not None),
            ("rotated", style),
        ),
        bindings=tuple(bindings),
        parameters=Parameters(fields),
        workgroup_bytes=WORD * WORKGROUP if stored == "i8" else 0,
    )


def _saturated(dtype: np.dtype) -> int:
    """The bits, as float32, of the largest finite number of a type that is clipped to it; 0 for others."""
    if dtype not in (float8_e4m3fn, float8_e5m2):
        return 0
    return int(np.float32(ml_dtypes.finfo(dtype).max).view(np.uint32))


def _launch(
    append: Append,
    variant: Variant,
    part: tuple[Operand, ...],
    rows: range,
    small: Mapping[str, Bytes],
    small_at: Mapping[str, int],
) -> Launch:
    """One dispatch: of the new tokens those in `part`, of the storage `rows`."""
    operands, sides, limits = append.operands, append.sides, append.profile.limits
    key, (B, piece, K, _) = operands[sides[0]], part[0].shape
    pages = operands["pages"].shape[1] if "pages" in operands else 1
    groups = -(-B * piece * K * append.lanes // WORKGROUP)
    resources: dict[str, Bytes] = dict(small)
    values: dict[str, float] = {
        **small_at,
        "B": B,
        "T": append.new[0].shape[1],
        "K": K,
        "piece": piece,
        "groups": groups,
        "first_b": part[-2].offset,
        "first_t": part[-1].offset,
        "capacity": pages * key.shape[1],
        "first_row": rows.start,
        "rows": len(rows),
    }
    if append.ring is not None:
        values["pinned"] = append.ring
    if "pages" in operands:
        values |= {"pages": pages, "page_bits": key.shape[1].bit_length() - 1, "pool": key.shape[0]}
    if append.rope is not None:
        pairs = append.rope.rotated(operands["new_key"].shape[3]) // 2
        values["rope_pairs"] = pairs
        resources[TABLES] = Bytes(TABLES, 0, sum(DIGITS) * pairs * 8)
    for name in append.written:
        resources[name], values[f"{name}_at"] = _bound(name, operands[name], rows, limits.offset_alignment)
    block = 0
    for side, new in zip(sides, part, strict=False):
        stored, dim = operands[side], new.shape[3]
        values |= {f"{side}_dim": dim, f"{side}_words": stored.shape[3] * stored.itemsize // WORD}
        if "scales" in operands:
            values[f"{side}_block"] = block
            block += scale_count(stored.dtype, dim)
        start, nbytes, values[f"new_{side}_at"] = pointwise.window(new, limits.offset_alignment)
        resources[f"new_{side}"] = Bytes(f"new_{side}", start, nbytes)
        steps = zip("btkh", new.strides, strict=True)
        values |= {f"new_{side}_{axis}": stride & 0xFFFFFFFF for axis, stride in steps}
    if "scales" in operands:
        values["blocks"] = block
    bound = {binding.name: resources[binding.name] for binding in variant.bindings}
    grid = fold_workgroups(groups * len(sides), limits.workgroups_per_dimension)
    return Launch(variant, bound, variant.parameters.pack(**values), grid)


def _bound(name: str, stored: Operand, rows: range, alignment: int) -> tuple[Bytes, int]:
    """The bytes that hold rows of storage, and the first one's word in them."""
    each = _row_bytes(stored)
    start = rows.start * each // alignment * alignment
    return Bytes(name, start, rows.stop * each - start), (rows.start * each - start) // WORD
