"""The text form of a graph: a line an operation, names in order, attention in words. Equal graphs give equal text."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from wgattn._dtypes import short_name
from wgattn._kernels.attention.problem import Bound, Call, Clause, scale_of
from wgattn._kernels.rotation import Rope
from wgattn._terminal import columns

from .aliases import storage, written_in_place
from .graph import Graph, Node, Use, View, describe
from .operations import (
    Attention,
    AttentionGradient,
    BroadcastTo,
    CacheAppend,
    CacheMove,
    CacheRows,
    Cast,
    Concatenate,
    Constant,
    Copy,
    Elementwise,
    Input,
    Merge,
    Pad,
    Repeat,
    Reshape,
    Rotate,
    Slice,
    Sum,
    Transpose,
)

WIDTH = 100  # of a line, where the terminal has as much
PAIR = 163  # of two texts side by side, where no terminal says
INDENT = "  "
AXES = {"query": "BTNH", "key": "BSKH", "value": "BSKH"}


Result = tuple[str, Any]  # ("computed", number of an output), ("argument", its number) or ("value", Aval)


def as_text(graph: Graph, donated: Collection[int] | None = None, results: Sequence[Result] | None = None) -> str:
    """The graph in words, lines folded where a terminal is narrow.

    With `donated`, the numbers of donated arguments, it says which caches are written in place. `results` are those of
    a function, where they are not the graph's outputs in turn: some may be arguments, or values that nothing computes.

    Example:
        a: f16[2,1024,8,64]
        b = multiply a 0.5
        out b: f16[2,1024,8,64]
    """
    names = _names(graph)
    inputs = {
        node.operation.index: f"{names[n, 0]}: {describe(node.avals[0])}"
        for n, node in enumerate(graph.nodes)
        if isinstance(node.operation, Input)
    }
    width = min(WIDTH, columns(PAIR) - len(INDENT))
    in_place = None if donated is None else written_in_place(graph, donated)
    lines = _wrapped([inputs[index] for index in sorted(inputs)], "  ", "", width)
    for n, node in enumerate(graph.nodes):
        if not isinstance(node.operation, Input | Constant):
            made = ", ".join(names[n, result] for result in range(len(node.avals)))
            words = _operation(graph, node, names)
            if in_place is not None and any(True for _ in storage(node)):
                words.append(_where_written(graph, n, names, in_place))
            lines += _wrapped(words, "  ", f"{made} = ", width)
    outputs = [f"{_used(graph, use, names)}: {describe(graph.aval(use))}" for use in graph.outputs]
    if results is not None:
        outputs = [_result(*each, outputs, inputs) for each in results]
    return "\n".join(lines + _wrapped(outputs, "  ", "out ", width))


def _result(kind: str, which: Any, outputs: list[str], inputs: dict[int, str]) -> str:
    """A function's result in words. An argument that nothing reads has lost its name in a fused graph."""
    if kind == "computed":
        return outputs[which]
    return inputs.get(which, f"argument {which}") if kind == "argument" else f"value: {describe(which)}"


def side_by_side(left: str, right: str, titles: tuple[str, str] = ("recorded", "fused")) -> str:
    """Two texts beside each other, or one above the other where the terminal is too narrow for that."""
    first, second = (
        [title, *(INDENT + line for line in text.splitlines())]
        for title, text in zip(titles, (left, right), strict=True)
    )
    lines = [f"{a:<{max(map(len, first))}}   {b}".rstrip() for a, b in zip_longest(first, second, fillvalue="")]
    return "\n".join(lines if max(map(len, lines)) <= columns(PAIR) else [*first, "", *second])


def key_ranges(clauses: tuple[Clause, ...], position: str = "i") -> str:
    """Which keys j a row keeps, in words: `i-255 ≤ j ≤ i`, clauses joined by `or`; `every j` where nothing bounds."""
    words = [_clause(clause, position) for clause in clauses]
    return "none" if not words else " or ".join(words)


def _clause(clause: Clause, position: str) -> str:
    lower = [_edge(bound, position) for bound in clause if bound.side == "lower"]
    upper = [_edge(bound, position) for bound in clause if bound.side == "upper"]
    if not clause:
        return "every j"
    start = lower[0] if len(lower) == 1 else f"max({', '.join(lower)})"
    end = upper[0] if len(upper) == 1 else f"min({', '.join(upper)})"
    return (f"{start} ≤ " if lower else "") + "j" + (f" ≤ {end}" if upper else "")


def _edge(bound: Bound, position: str) -> str:
    if bound.kind == "chunk":
        return f"{'start' if bound.side == 'lower' else 'end'} of {position}'s {bound.addend}"
    terms = [position] if bound.kind == "diagonal" else []
    terms += [bound.source] if bound.source else []
    number = bound.addend
    if not terms:
        return str(number)
    return "+".join(terms) + (f"{number:+d}" if number else "")


def _names(graph: Graph) -> dict[tuple[int, int], str]:
    """Letters in order, inputs first; a constant is its number."""
    names: dict[tuple[int, int], str] = {}
    named = []
    for n, node in enumerate(graph.nodes):
        if isinstance(node.operation, Constant):
            names[n, 0] = str(node.avals[0].dtype.type(node.operation.value))
        elif isinstance(node.operation, Input):
            named.append((node.operation.index, n, 0))
        else:
            named += [(len(graph.nodes), n, result) for result in range(len(node.avals))]
    return names | {(n, result): _letters(i) for i, (_, n, result) in enumerate(sorted(named))}


def _letters(number: int) -> str:
    """a … z, aa, ab, …"""
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(ord("a") + rest) + text
    return text


def _used(graph: Graph, use: Use, names: dict[tuple[int, int], str], axes: str = "") -> str:
    """A name, with the view it is seen through: axes in memory order, or what is taken of it."""
    name = names[use.node, use.result]
    written = graph.nodes[use.node].layouts[use.result]
    if use.view is None or use.view == written:
        return name
    return f"{name}[{_seen(use.view, written, axes)}]"


def _seen(view: View, written: View, axes: str) -> str:
    sizes = [(size, stride) for size, stride in zip(written.shape, written.strides, strict=True) if size > 1]
    seen = [(size, stride) for size, stride in zip(view.shape, view.strides, strict=True) if size > 1]
    letters = axes if len(axes) == len(view.shape) else "".join(str(axis) for axis in range(len(view.shape)))
    order = sorted(range(len(view.shape)), key=lambda axis: -view.strides[axis])
    if sorted(sizes) == sorted(seen) and view.offset == written.offset:
        return ",".join(letters[axis] for axis in order)
    shape = ",".join(map(str, view.shape))
    strides = ",".join(map(str, view.strides))
    return f"{shape} by {strides}" + (f" from {view.offset}" if view.offset else "")


def _operation(graph: Graph, node: Node, names: dict[tuple[int, int], str]) -> list[str]:
    """The words of a node, to be put on one line or several."""
    operation = node.operation
    if isinstance(operation, Attention):
        return _attention(graph, node, operation, names)
    if isinstance(operation, AttentionGradient):
        return _attention_gradient(graph, node, operation, names)
    used = [_used(graph, use, names) for use in node.uses]
    operands = " ".join(used)
    match operation:
        case Reshape(shape) | BroadcastTo(shape):
            name = "reshape" if isinstance(operation, Reshape) else "broadcast_to"
            text = f"{name} {operands} ({','.join(map(str, shape))})"
        case Transpose(axes):
            moved = [axis for axis, other in enumerate(axes) if axis != other]
            swap = len(moved) == 2
            text = f"swapaxes {operands} {moved[0]} {moved[1]}" if swap else f"transpose {operands} {_list(axes)}"
        case Slice():
            text = f"slice {operands} {_sliced(operation, graph.view(node.uses[0]).shape)}"
        case Repeat(repeats, axis):
            text = f"repeat {operands} {repeats} axis={axis}"
        case Cast(dtype):
            text = f"cast {operands} {short_name(dtype)}"
        case Elementwise(function):
            text = f"{function} {operands}"
        case Sum(axes, keepdims, divisor):
            name = "sum" if divisor == 1 else "mean"
            text = f"{name} {operands} axes={_list(axes)}" + (" keepdims" if keepdims else "")
        case Pad(low, high):
            text = f"pad {operands} low={_list(low)} high={_list(high)}"
        case Concatenate(axis):
            text = f"concatenate {operands} axis={axis}"
        case Rotate(rope, where, inverse):
            positions = "" if where == "arange" else f" at {where} {used[1]}"
            return [f"{'rope back' if inverse else 'rope'} {used[0]}{positions}", *_rope_options(rope)]
        case Merge(sinks):
            return [f"merge {used[0]} by {used[1]}", *([f"sinks={used[2]}"] if sinks else [])]
        case CacheAppend():
            return _cache_append(graph, node, operation, names)
        case CacheRows(count):
            return [f"cache_rows {used[0]}", f"{count} from {used[1]}", *(f"counts={name}" for name in used[2:])]
        case CacheMove(destination):
            return [f"cache_move {used[0]}", f"from {used[1]}", *([f"to {used[2]}"] if destination else [])]
        case Copy():
            text = f"copy {operands}"
        case _:
            text = f"{type(operation).__name__.lower()} {operands}"
    return [text]


def _attention(graph: Graph, node: Node, operation: Attention, names: dict[tuple[int, int], str]) -> list[str]:
    given = dict(zip(operation.operands, node.uses, strict=True))
    query = graph.aval(given["query"])
    words = _call("attention", graph, given, operation.call, names)
    if node.avals[0].dtype != query.dtype:
        words.append(f"as {short_name(node.avals[0].dtype)}")
    if operation.store is not None:
        axes = _axes("query", query.ndim)
        words.append(f"stored [{','.join(axes[axis] for axis in operation.store)}]")
    if operation.implementation is not None:
        words.append(f"implementation={operation.implementation}")
    return words


def _cache_append(graph: Graph, node: Node, append: CacheAppend, names: dict[tuple[int, int], str]) -> list[str]:
    used = {name: _used(graph, use, names) for name, use in zip(append.operands, node.uses, strict=True)}
    words = ["cache_append " + " ".join(used[name] for name in ("key", "value") if name in used)]
    words.append("new " + " ".join(used[name] for name in ("new_key", "new_value") if name in used))
    words.append(f"at {used['lengths']}")
    words += [f"{name}={used[name]}" for name in ("counts", "scales", "pages") if name in used]
    words += [f"ring, {append.ring} pinned"] if append.ring is not None else []
    words += [f"rope(k; {', '.join(_rope_options(append.rope, full=True))})"] if append.rope is not None else []
    return words


def _where_written(
    graph: Graph, number: int, names: dict[tuple[int, int], str], in_place: Collection[tuple[int, int]]
) -> str:
    uses = graph.nodes[number].uses
    copied = [uses[place] for place, _ in storage(graph.nodes[number]) if (number, place) not in in_place]
    return "in place" if not copied else f"in a copy of {' '.join(_used(graph, use, names) for use in copied)}"


def _attention_gradient(
    graph: Graph, node: Node, operation: AttentionGradient, names: dict[tuple[int, int], str]
) -> list[str]:
    given = dict(zip(operation.operands, node.uses, strict=True))
    cotangent = _used(graph, given.pop("grad_out"), names)
    head = f"attention_gradient {cotangent} by {','.join(operation.wanted)} of"
    words = _call(head, graph, given, replace(operation.call, residual=None), names)
    if operation.implementation is not None:
        words.append(f"implementation={operation.implementation}")
    return words


def _call(head: str, graph: Graph, given: dict[str, Use], call: Call, names: dict[tuple[int, int], str]) -> list[str]:
    """The words of an attention call: its operands and static options."""
    query, key = graph.aval(given["query"]), graph.aval(given["key"])
    words = [
        f"{head} "
        + " ".join(_used(graph, given[name], names, _axes(name, query.ndim)) for name in ("query", "key", "value"))
    ]
    position = "i" if "query_offset" not in given else f"i+{_used(graph, given['query_offset'], names)}"
    ranges = key_ranges(_with_names(graph, call, given, names), position)
    if call.rope is not None:
        words.append(f"rope(q,k; {', '.join(_rope_options(call.rope, full=True))})")
    if query.shape[-2] != key.shape[-2]:
        words.append(f"group={query.shape[-2] // key.shape[-2]}")
    if ranges != "every j":
        words.append(f"keys {ranges}")
    hidden = ("query", "key", "value", "query_offset", "scale", *call.sources)
    words += [f"{name}={_used(graph, use, names)}" for name, use in given.items() if name not in hidden]
    factors = [] if "scale" in given and call.scale == 1.0 else [f"{scale_of(call, query.shape[-1]):.6g}"]
    factors += [_used(graph, given["scale"], names)] if "scale" in given else []
    words.append(f"scale={'·'.join(factors)}")
    if call.softcap is not None:
        words.append(f"softcap={call.softcap:g}")
    if call.residual is not None:
        words.append(f"residual={short_name(call.residual)}")
    if call.empty == "zero":
        words.append("empty=zero")
    if call.page_size is not None:
        words.append(f"page_size={call.page_size}")
    if call.ring is not None:
        words.append("ring" if call.ring == 0 else f"ring after {call.ring} pinned")
    return words


def _with_names(
    graph: Graph, call: Call, given: dict[str, Use], names: dict[tuple[int, int], str]
) -> tuple[Clause, ...]:
    """The call's clauses with the names of the run-time values that bounds add."""
    named = {source: _used(graph, given[source], names) for source in call.sources}
    return tuple(
        tuple(Bound(b.side, b.kind, b.addend, b.source and named[b.source]) for b in clause) for clause in call.clauses
    )


def _axes(name: str, ndim: int) -> str:
    return AXES[name] if ndim == 4 else "A" + AXES[name] if ndim == 5 else ""


def _rope_options(rope: Rope, full: bool = False) -> list[str]:
    words = []
    if full or rope.base != 10000.0:
        words.append(f"base={rope.base:g}")
    if full or rope.style != "half":
        words.append(rope.style)
    if rope.rotary_dim is not None:
        words.append(f"rotary_dim={rope.rotary_dim}")
    if rope.scaling is not None:
        words.append(f"scaling={rope.scaling}")
    return words


def _sliced(operation: Slice, shape: tuple[int, ...]) -> str:
    parts = []
    for start, size, step, n in zip(operation.start, operation.size, operation.step, shape, strict=True):
        stop = start + size * step
        if (start, size, step) == (0, n, 1):
            parts.append(":")
        else:
            parts.append(f"{start}:{stop if stop >= 0 else ''}" + (f":{step}" if step != 1 else ""))
    return f"[{', '.join(parts)}]"


def _list(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers)) or "()"


def _wrapped(words: list[str], gap: str, head: str, width: int) -> list[str]:
    """`words` on lines of at most `width` characters, the first after `head`, the others indented under it."""
    lines, line = [], head
    for position, word in enumerate(words):
        if position and len(line) + len(gap) + len(word) > width:
            lines.append(line)
            line = " " * (len(head) + 4 if head else 0) + word
        else:
            line += (gap if position else "") + word
    return [*lines, line] if line.strip() else lines
