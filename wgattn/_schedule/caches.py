"""Operations on caches as planned steps: what they give back is written in place, or in a copy that is made first."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from wgattn._graph import operations as op
from wgattn._graph.aliases import storage
from wgattn._graph.graph import Graph, Node, Use
from wgattn._kernels.array import cache_append, cache_move, cache_rows
from wgattn._kernels.kernel import Operand
from wgattn._kernels.rotation import TABLES
from wgattn._kernels.stored import SIDES

from .operands import nbytes

if TYPE_CHECKING:
    from .lowering import Lowering

Names = dict[str, int]


def lower_append(lowering: "Lowering", number: int, in_place: Collection[tuple[int, int]]) -> None:
    node = lowering.graph.nodes[number]
    append = node.operation
    assert isinstance(append, op.CacheAppend)
    operands: dict[str, Operand] = {}
    names: Names = {}
    for name, use in zip(append.operands, node.uses, strict=True):
        operands[name], names[name] = lowering.operand(use), lowering.value(use)
        if name in cache_append.SMALL:
            operands[name], names[name] = _row_major(lowering, use)
    _hold(lowering, number, in_place, operands, names, append.operands)
    lengths = lowering.operand(Use(number, len(node.avals) - 1))
    names["new_lengths"] = lowering.results[number, len(node.avals) - 1] = lowering.steps.buffer(nbytes(lengths))
    if append.rope is not None and "new_key" in operands:
        names[TABLES] = lowering.steps.constant(lowering.tables(append.rope, operands["new_key"].shape[-1]))
    rope = append.rope if "new_key" in operands else None
    plan = cache_append.plan(operands, append.ring, rope, "new_lengths", lowering.profile)
    lowering.steps.run(plan, names, "cache append")


def lower_move(lowering: "Lowering", number: int, in_place: Collection[tuple[int, int]]) -> None:
    node = lowering.graph.nodes[number]
    move = node.operation
    assert isinstance(move, op.CacheMove)
    roles = ("cache", "source", "destination")[: len(node.uses)]
    given = [_row_major(lowering, use) for use in node.uses[1:]]
    operands = {name: laid for name, (laid, _) in zip(roles[1:], given, strict=True)}
    names: Names = {name: value for name, (_, value) in zip(roles[1:], given, strict=True)}
    if move.destination:
        _hold(lowering, number, in_place, operands, names, roles)
        plan = cache_move.replace(operands["cache"], operands["source"], operands["destination"], lowering.profile)
    else:
        (result,) = lowering.allocate(number)
        operands["cache"], names["cache"] = _row_major(lowering, node.uses[0])
        names["result"] = lowering.results[number, 0]
        plan = cache_move.take(operands["cache"], operands["source"], result, lowering.profile)
    lowering.steps.run(plan, names, "cache move")


def lower_rows(lowering: "Lowering", number: int) -> None:
    uses = lowering.graph.nodes[number].uses
    roles = ("cache", "lengths", "counts")[: len(uses)]
    cache, *small = (lowering.operand(use) for use in uses)
    (result,) = lowering.allocate(number)
    plan = cache_rows.plan(cache, small[0], small[1] if len(small) > 1 else None, result, lowering.profile)
    names = dict(zip(roles, map(lowering.value, uses), strict=True)) | {"result": lowering.results[number, 0]}
    lowering.steps.run(plan, names, "cache rows")


def _hold(
    lowering: "Lowering",
    number: int,
    in_place: Collection[tuple[int, int]],
    operands: dict[str, Operand],
    names: Names,
    roles: tuple[str, ...],
) -> None:
    """The arrays that are given back: those that lie where they may be written, and copies of the others."""
    node = lowering.graph.nodes[number]
    for place, result in storage(node):
        laid, value = lowering.operand(node.uses[place]), lowering.value(node.uses[place])
        if (number, place) not in in_place:
            laid, value = lowering.copied(laid, value)
        operands[roles[place]], names[roles[place]] = laid, value
        lowering.results[number, result] = value


def _row_major(lowering: "Lowering", use: Use) -> tuple[Operand, int]:
    """A use whose elements lie one behind the other from a whole word on: a copy where they do not."""
    laid, value = lowering.operand(use), lowering.value(use)
    if laid.contiguous() and laid.offset * laid.itemsize % 4 == 0:
        return laid, value
    return lowering.copied(laid, value)


def moved_bytes(graph: Graph, node: Node) -> int | None:
    """The bytes that an operation on a cache reads and writes, which are not those of its arrays; None for others."""
    match node.operation:
        case op.CacheAppend(operands):
            given = dict(zip(operands, map(graph.aval, node.uses), strict=True))
            total = 0
            for side in SIDES:
                if side in given:
                    new, stored = given[f"new_{side}"], given[side]
                    row = stored.shape[-1] * stored.dtype.itemsize
                    total += new.size * new.dtype.itemsize + new.size // new.shape[-1] * row
            if "scales" in given:
                B, T, K, _ = given["new_key" if "new_key" in given else "new_value"].shape
                total += B * T * K * given["scales"].shape[-1] * 4
            return total
        case op.CacheMove(destination):
            cache, source = graph.aval(node.uses[0]), graph.aval(node.uses[1])
            entry = cache.size // cache.shape[0] * cache.dtype.itemsize
            return source.size * (2 * entry + (8 if destination else 4))
    return None
