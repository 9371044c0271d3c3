"""RoPE on query and key becomes the call's own: both are rotated as they are read, and their gradients back."""

from dataclasses import dataclass, replace

from wgattn._graph.graph import Graph, Use
from wgattn._graph.operations import Attention, AttentionGradient, Rotate
from wgattn._kernels.rotation import Rope

from .rebuild import Rebuild, before, users


@dataclass(frozen=True, slots=True)
class Plain:
    """A call's query and key before they were rotated, and how they were; the nodes that rotate its gradients back."""

    query: Use
    key: Use
    rope: Rope
    back: tuple[int, ...] = ()


def fold_rotations(graph: Graph) -> Graph:
    """Where all that uses a rotated value is attention that can rotate for itself. Else it is rotated once, for all."""
    uses = users(graph)
    plain = {number: found for number in range(len(graph.nodes)) if (found := _plain(graph, number, uses)) is not None}
    while kept := [
        n for n in plain if not all(user in plain for use in graph.nodes[n].uses[:2] for user in uses[use.node, 0])
    ]:
        for number in kept:
            del plain[number]

    back = {number for found in plain.values() for number in found.back}
    rebuild = Rebuild(graph)
    for number, node in enumerate(graph.nodes):
        if number in back:
            rebuild.became[number, 0] = rebuild.use(node.uses[0])
        elif number in plain:
            attention, found = node.operation, plain[number]
            assert isinstance(attention, Attention | AttentionGradient)
            rotating = replace(attention, call=replace(attention.call, rope=found.rope))
            uses_before = (found.query, found.key, *node.uses[2:])
            rebuild.keep(number, replace(node, operation=rotating, uses=uses_before))
        else:
            rebuild.keep(number)
    return rebuild.finish()


def _plain(graph: Graph, number: int, uses: dict[tuple[int, int], list[int]]) -> Plain | None:
    node = graph.nodes[number]
    attention = node.operation
    if not isinstance(attention, Attention | AttentionGradient) or attention.call.rope is not None:
        return None
    if attention.call.page_size is not None or attention.call.ring is not None:
        return None  # key's axes do not count positions
    forward = isinstance(attention, Attention)
    if forward and {"bias", "mask"} <= set(attention.operands) and attention.call.residual is not None:
        return None  # the tables would be one storage buffer more than every device binds
    query, key = node.uses[:2]
    turned_query, turned_key = graph.nodes[query.node], graph.nodes[key.node]
    by_query, by_key = turned_query.operation, turned_key.operation
    if not isinstance(by_query, Rotate) or not isinstance(by_key, Rotate) or by_query.rope != by_key.rope:
        return None
    places = dict(zip(attention.operands, node.uses, strict=True))
    if by_query.inverse or by_key.inverse:
        return None
    offset = places.get("query_offset")
    at = turned_query.uses[1] if by_query.where == "offset" else None
    if by_key.where != "arange" or by_query.where == "positions" or at != offset:
        return None
    if not (_from_the_first(graph, query) and _from_the_first(graph, key)):
        return None
    before_query, before_key = before(graph, query), before(graph, key)
    if before_query is None or before_key is None:
        return None
    back = () if forward else _turned_back(graph, number, uses)
    return None if back is None else Plain(before_query, before_key, by_query.rope, back)


def _turned_back(graph: Graph, number: int, uses: dict[tuple[int, int], list[int]]) -> tuple[int, ...] | None:
    """The nodes that rotate the gradients of query and key back; None where one of these is used otherwise."""
    gradient, found = graph.nodes[number], []
    assert isinstance(gradient.operation, AttentionGradient)
    for result, name in enumerate(gradient.operation.wanted):
        if name not in ("query", "key"):
            continue
        turned = graph.nodes[gradient.uses[("query", "key").index(name)].node]
        assert isinstance(turned.operation, Rotate)
        for user in uses.get((number, result), []):
            other = graph.nodes[user]
            whole = user >= 0 and other.uses[0] == Use(number, result)
            if (
                not whole
                or other.operation != replace(turned.operation, inverse=True)
                or other.uses[1:] != turned.uses[1:]
            ):
                return None
            found.append(user)
    return tuple(found)


def _from_the_first(graph: Graph, use: Use) -> bool:
    """Whether token i of `use` is token i of what was rotated, for every batch entry and head."""
    view, turned = graph.view(use), graph.nodes[use.node].layouts[0]
    token, tokens = turned.strides[-3], turned.shape[-3]
    *outer, row, heads, inner = view.strides
    if inner != 1 or view.shape[-1] != turned.shape[-1] or (view.shape[-3] > 1 and row != token):
        return False
    low = high = view.offset % (tokens * token)
    for size, stride in zip((*view.shape[:-3], view.shape[-2]), (*outer, heads), strict=True):
        if size > 1 and stride % (tokens * token):
            low, high = low + min(stride, 0) * (size - 1), high + max(stride, 0) * (size - 1)
    return low >= 0 and high < token
