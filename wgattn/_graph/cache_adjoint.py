"""The adjoint of CacheAppend on dense float storage: written rows go to what was new, the others to what was there."""

from wgattn._dtypes import FLOATS, int32
from wgattn._errors import UnsupportedError
from wgattn._kernels.stored import SIDES

from .graph import Aval
from .operations import BroadcastTo, CacheAppend, CacheRows, Cast, Elementwise, Rotate, Slice
from .recorder import Forward, Recorder, V


def check_differentiable(append: CacheAppend, operands: tuple[Aval, ...]) -> None:
    """Raise UnsupportedError for storage that no gradient passes."""
    given = dict(zip(append.operands, operands, strict=True))
    (dtype,) = {given[side].dtype for side in SIDES if side in given}
    why = "is paged" if "pages" in given else "is a ring" if append.ring is not None else f"stores {dtype.name}"
    if why.startswith("is") or dtype not in FLOATS:
        raise UnsupportedError(
            f"no gradient passes through a cache that {why}: use a dense one of float32, float16 or bfloat16, or "
            "attention over the keys and values themselves"
        )


def append_adjoint(
    record: Recorder[V], of: Forward[V], cotangents: tuple[V | None, ...], wanted: tuple[bool, ...]
) -> tuple[V | None, ...]:
    """The cotangents of key, value, new_key and new_value; those of key and value have zeros in the written rows."""
    append = of.operation
    assert isinstance(append, CacheAppend)
    avals = dict(zip(append.operands, of.avals, strict=True))
    values = dict(zip(append.operands, of.operands, strict=True))
    asked = dict(zip(append.operands, wanted, strict=True))
    small = {name: value for name in ("lengths", "counts") if (value := values.get(name)) is not None}
    given = dict(zip(append.results, cotangents, strict=True))
    found: dict[str, V] = {}
    for side in SIDES:
        cotangent, new = given.get(side), f"new_{side}"
        if cotangent is None:
            continue
        if asked[new]:
            rows = record.do(CacheRows(avals[new].shape[1]), cotangent, *small.values())[0]
            found[new] = _unstored(record, append, side, rows, avals[new], small["lengths"])
        if asked[side]:
            zero = record.constant(0.0, avals[new].dtype)
            zeros = record.do(BroadcastTo(avals[new].shape), zero)[0]
            clear = CacheAppend((side, "lengths", new, *(["counts"] if "counts" in small else [])))
            operands = {side: cotangent, new: zeros, **small}
            found[side] = record.do(clear, *(operands[name] for name in clear.operands))[0]
    return tuple(found.get(name) for name in append.operands)


def _unstored(record: Recorder[V], append: CacheAppend, side: str, rows: V, new: Aval, lengths: V) -> V:
    """The cotangent of new rows from that of the rows that they were stored as: cut, cast, turned back."""
    if record.aval(rows).shape != new.shape:
        rows = record.do(Slice((0,) * 4, new.shape, (1,) * 4), rows)[0]
    if record.aval(rows).dtype != new.dtype:
        rows = record.do(Cast(new.dtype), rows)[0]
    if side == "value" or append.rope is None:
        return rows
    start = record.do(Elementwise("maximum"), lengths, record.constant(0, int32))[0]
    return record.do(Rotate(append.rope, "offset", inverse=True), rows, start)[0]
