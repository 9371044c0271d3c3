"""The rows of a dense cache that stand behind its lengths, read: what an append writes there, the other way round."""

from dataclasses import replace

from wgattn._dtypes import short_name
from wgattn._kernels.array import pointwise
from wgattn._kernels.kernel import Operand, Plan
from wgattn._runtime.profile import DeviceProfile

NAME = "cache_rows"


def plan(storage: Operand, lengths: Operand, counts: Operand | None, result: Operand, profile: DeviceProfile) -> Plan:
    """result[b, t] = storage[b, lengths[b] + t], 0 from the capacity and from counts[b] on, in one dtype.

    storage is (B, C, K, H), any view, lengths and counts int32 (B,), result (B, T, K, H). Names: "cache", "lengths",
    "counts", "result". Raises UnsupportedError for what cannot be bound.
    """
    capacity, step = storage.shape[1], storage.strides[1]
    rows = replace(storage, shape=result.shape, strides=(storage.strides[0], 0, *storage.strides[2:]))
    small = {"lengths": lengths} | ({} if counts is None else {"counts": counts})
    kernel = pointwise.Pointwise(
        family=NAME,
        name="-".join((NAME, short_name(storage.dtype), *(["counts"] if counts is not None else []))),
        template="array/cache_rows.wgsl",
        result=result,
        inputs={"cache": rows, **{name: _per_entry(given, result.shape) for name, given in small.items()}},
        coordinates={"time": pointwise.coordinate(result.shape, 1)},
        reach={"cache": (min(0, step * (capacity - 1)), max(0, step * (capacity - 1)))},
        values=(("slot_step", "u32", step & 0xFFFFFFFF), ("capacity", "u32", capacity), ("T", "u32", result.shape[1])),
    )
    return pointwise.plan(kernel, profile)


def _per_entry(given: Operand, shape: tuple[int, ...]) -> Operand:
    return pointwise.broadcast(replace(given, shape=(*given.shape, 1, 1, 1), strides=(*given.strides, 0, 0, 0)), shape)
