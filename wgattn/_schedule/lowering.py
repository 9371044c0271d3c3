"""Each node of a fused graph as planned steps: operands from views, copies where a kernel takes none, its plan."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from wgattn._dtypes import float32, uint8
from wgattn._errors import UnsupportedError
from wgattn._graph import operations as op
from wgattn._graph.graph import Graph, Node, Use
from wgattn._graph.rewrite.strides import through
from wgattn._kernels.array import copy, elementwise, merge_parts, pad, reduce, rope
from wgattn._kernels.array.pointwise import cut
from wgattn._kernels.attention.backward.choose import choose_backward
from wgattn._kernels.attention.backward.choose import plan as plan_gradient
from wgattn._kernels.attention.backward.problem import GradientProblem, describe_gradient
from wgattn._kernels.attention.boxes import POOLED
from wgattn._kernels.attention.choose import choose
from wgattn._kernels.attention.choose import plan as plan_attention
from wgattn._kernels.attention.problem import AttentionProblem, Call, describe, vectorized
from wgattn._kernels.kernel import Operand, Plan, Variant, natural_strides
from wgattn._kernels.rotation import TABLES, Rope, tables
from wgattn._runtime.profile import DeviceProfile

from .caches import lower_append, lower_move, lower_rows
from .operands import ALIGNMENT, expand, heads, narrow, nbytes, operand, per_entry, rows_are_runs, small_dtype
from .placement import Places, place_parts
from .values import Steps, Value


@dataclass(frozen=True, slots=True)
class Chosen:
    """The shader that was chosen for attention node `node` of the fused graph, and for what."""

    node: int
    problem: AttentionProblem | GradientProblem
    variant: Variant


@dataclass(slots=True)
class Lowering:
    """Values of the graph's results, and the steps so far."""

    graph: Graph
    profile: DeviceProfile
    steps: Steps = field(default_factory=Steps)
    results: dict[tuple[int, int], int] = field(default_factory=dict)
    chosen: list[Chosen] = field(default_factory=list)
    places: Places = field(default_factory=dict)

    def operand(self, use: Use) -> Operand:
        dtype = self.graph.nodes[use.node].avals[use.result].dtype
        if use.node in self.places and use.result == 0:
            view = through(self.graph.view(use), self.graph.nodes[use.node].layouts[0], self.places[use.node][1])
            assert view is not None, "a placed result is used as its layout allows"
            return operand(dtype, view)
        return operand(dtype, self.graph.view(use))

    def value(self, use: Use) -> int:
        return self.results[use.node, use.result]

    def allocate(self, number: int) -> list[Operand]:
        """New values for a node's results, and how they lie."""
        node, laid = self.graph.nodes[number], []
        if number in self.places:
            whole, _ = self.places[number]
            if (whole, 0) not in self.results:
                self.allocate(whole)
            self.results[number, 0] = self.results[whole, 0]
        for result in range(len(node.avals)):
            laid.append(self.operand(Use(number, result)))
            if (number, result) not in self.results:
                self.results[number, result] = self.steps.buffer(nbytes(laid[-1]))
        return laid

    def copied(self, source: Operand, value: int, dtype: np.dtype | None = None) -> tuple[Operand, int]:
        """A contiguous copy of an operand, in `dtype`."""
        made = Operand(dtype or source.dtype, source.shape, natural_strides(source.shape))
        copy_value = self.steps.buffer(nbytes(made))
        plan = copy.plan(source, made, self.profile)
        self.steps.run(plan, {"source": value, "result": copy_value}, "copy")
        return made, copy_value

    def tables(self, rule: Rope, head_dim: int) -> bytes:
        """The bytes of a rotation's tables."""
        return _table_bytes(rule, head_dim)


def lower(graph: Graph, profile: DeviceProfile, in_place: Collection[tuple[int, int]] = ()) -> Lowering:
    """All nodes in order; `in_place` are the operands that `written_in_place` found.

    Raises UnsupportedError where a named implementation, or no kernel, can serve a node.
    """
    lowering = Lowering(graph, profile, places=place_parts(graph))
    for number, node in enumerate(graph.nodes):
        match node.operation:
            case op.Input(index):
                laid = operand(node.avals[0].dtype, node.layouts[0])
                whole = laid.extent()[1] * laid.itemsize // ALIGNMENT * ALIGNMENT
                value = Value(nbytes(laid), argument=index, reusable=whole)
                lowering.results[number, 0] = lowering.steps.new(value)
            case op.Constant(given):
                content = np.asarray(given).astype(node.avals[0].dtype).tobytes()
                lowering.results[number, 0] = lowering.steps.constant(content)
            case op.Attention():
                _attention(lowering, number)
            case op.AttentionGradient():
                _attention_gradient(lowering, number)
            case op.CacheAppend():
                lower_append(lowering, number, in_place)
            case op.CacheMove():
                lower_move(lowering, number, in_place)
            case op.CacheRows():
                lower_rows(lowering, number)
            case op.Merge():
                _merge(lowering, number)
            case _:
                _array(lowering, number, node)
    return lowering


def _array(lowering: Lowering, number: int, node: Node) -> None:
    """An operation of the array kernels."""
    operands, profile = [lowering.operand(use) for use in node.uses], lowering.profile
    values = [lowering.value(use) for use in node.uses]
    (result,) = lowering.allocate(number)
    names = {"result": lowering.results[number, 0]}
    match node.operation:
        case op.Cast() | op.Copy():
            plan = copy.plan(operands[0], result, profile)
            names["source"] = values[0]
        case op.Elementwise(function):
            plan = elementwise.plan(function, tuple(operands), result, profile)
            names |= {f"operand{place}": value for place, value in enumerate(values)}
        case op.Sum(axes, _, divisor):
            plan = reduce.plan(operands[0], axes, result, divisor, profile)
            names["source"] = values[0]
        case op.Pad(low, _):
            plan = pad.plan(operands[0], low, result, profile)
            names["source"] = values[0]
        case op.Concatenate(axis):
            start, steps = 0, []
            for place, (use, part) in enumerate(zip(node.uses, operands, strict=True)):
                end = start + part.shape[axis]
                if use.result or use.node not in lowering.places:
                    steps += copy.plan(part, cut(result, axis, start, end), profile, f"source{place}").steps
                start = end
            plan = Plan(tuple(steps))
            names |= {f"source{place}": value for place, value in enumerate(values)}
        case op.Rotate(rule, where, inverse):
            given = dict(zip(("x", where), operands, strict=False))
            positions, offset = given.get("positions"), given.get("offset")
            plan = rope.plan(given["x"], positions, offset, result, rule, profile, inverse=inverse)
            names |= dict(zip(("x", where), values, strict=False))
            names[TABLES] = lowering.steps.constant(_table_bytes(rule, result.shape[-1]))
        case _:
            raise UnsupportedError(f"{node.operation} cannot be run: no kernel computes it")
    lowering.steps.run(plan, names, type(node.operation).__name__.lower())


@lru_cache(maxsize=16)
def _table_bytes(rule: Rope, head_dim: int) -> bytes:
    return tables(rule, head_dim).tobytes()


Batch = tuple[int, int]


def _batch(lowering: Lowering, node: Node) -> Batch:
    shape = lowering.graph.view(node.uses[0]).shape
    return (shape[0], shape[1]) if len(shape) == 5 else (1, shape[0])


def _call_operands(
    lowering: Lowering, uses: Mapping[str, Use], call: Call, batch: Batch
) -> tuple[dict[str, Operand], dict[str, int]]:
    """Operands and values of an attention call on the axes that its kernels take, copied where they take no view."""
    *_, T, N, _ = lowering.graph.view(uses["query"]).shape
    paged = call.page_size is not None
    S = lowering.graph.view(uses["key"]).shape[-3]
    if call.page_size is not None:
        S = lowering.graph.view(uses["pages"]).shape[-1] * call.page_size
    sources = [bound.source for clause in call.clauses for bound in clause if bound.source is not None]
    # kernels know what a bound adds by the bound's place: bound0, bound1, …
    places = {name: [f"bound{n}" for n, source in enumerate(sources) if source == name] for name in sources}
    operands: dict[str, Operand] = {}
    names: dict[str, int] = {}
    for name, use in uses.items():
        if name in ("query", "key", "value", "scales", "out", "grad_out"):
            given, value = _rows(lowering, use, batch, pooled=paged and name in POOLED)
        elif name in ("bias", "mask"):
            given, value = expand(lowering.operand(use), (*batch, N, T, S)), lowering.value(use)
        elif name == "residual":
            given, value = lowering.operand(use), lowering.value(use)
            if not given.contiguous() or given.offset:
                given, value = lowering.copied(given, value)
        else:
            given, value = per_entry(name, lowering.operand(use), batch), lowering.value(use)
            if given.dtype != small_dtype(name) or not given.contiguous():
                given, value = lowering.copied(given, value, small_dtype(name))
                given = per_entry(name, given, batch)
        for known in places.get(name, (name,)):
            operands[known], names[known] = given, value
    return operands, names


def _rows(lowering: Lowering, use: Use, batch: Batch, pooled: bool = False) -> tuple[Operand, int]:
    """Rows of heads, each lying element by element; those of a pool of pages, token after token."""
    given, value = lowering.operand(use), lowering.value(use)
    if pooled:
        if given.strides[0] != given.shape[1] * given.strides[1]:
            given, value = lowering.copied(given, value)
        given = replace(given, shape=(given.shape[0] * given.shape[1], *given.shape[2:]), strides=given.strides[1:])
    if not rows_are_runs(given) or (given.dtype == uint8 and not vectorized(given)):
        once = narrow(given)
        made, value = lowering.copied(replace(once, shape=(*once.shape[:-1], given.shape[-1])), value)
        given = expand(made, given.shape)
    given = heads(given, batch)
    return replace(given, strides=(*given.strides[:-1], 1)), value


def _attention(lowering: Lowering, number: int) -> None:
    node, profile = lowering.graph.nodes[number], lowering.profile
    attention = node.operation
    assert isinstance(attention, op.Attention)
    batch = _batch(lowering, node)
    call = attention.call
    operands, names = _call_operands(lowering, dict(zip(attention.operands, node.uses, strict=True)), call, batch)
    out, *_ = lowering.allocate(number)
    operands["out"], names["out"] = heads(out, batch), lowering.results[number, 0]
    if call.residual is not None:
        call = replace(call, residual=float32)  # kernels write it so; another dtype is a cast of it
        names["residual"] = lowering.results[number, 1]
        if attention.call.residual != float32:
            names["residual"] = lowering.steps.buffer(4 * node.avals[1].size)
    if call.rope is not None:
        names[TABLES] = lowering.steps.constant(_table_bytes(call.rope, operands["query"].shape[-1]))
    problem = describe(call, operands)
    variant = choose(problem, profile, attention.implementation)
    lowering.chosen.append(Chosen(number, problem, variant))
    lowering.steps.run(plan_attention(problem, variant, call, operands, profile), names, f"attention {number}")
    if call.residual is not None and attention.call.residual != float32:
        laid = operand(node.avals[1].dtype, node.layouts[1])
        plan = copy.plan(replace(laid, dtype=float32), laid, profile)
        lowering.steps.run(plan, {"source": names["residual"], "result": lowering.results[number, 1]}, "copy")


def _attention_gradient(lowering: Lowering, number: int) -> None:
    node, profile = lowering.graph.nodes[number], lowering.profile
    gradient = node.operation
    assert isinstance(gradient, op.AttentionGradient)
    batch, call = _batch(lowering, node), gradient.call
    operands, names = _call_operands(lowering, dict(zip(gradient.operands, node.uses, strict=True)), call, batch)
    if call.rope is not None:
        names[TABLES] = lowering.steps.constant(_table_bytes(call.rope, operands["query"].shape[-1]))
    for result, (name, laid) in enumerate(zip(gradient.wanted, lowering.allocate(number), strict=True)):
        names[f"grad_{name}"] = lowering.results[number, result]
        if name in ("query", "key", "value"):
            laid = heads(laid, batch)
        elif name == "bias":
            shape = (1,) * (5 - len(laid.shape)) + laid.shape
            laid = Operand(laid.dtype, shape, natural_strides(shape), laid.offset)
        operands[f"grad_{name}"] = laid
    problem = describe_gradient(call, operands, gradient.wanted)
    variant = choose_backward(problem, profile, gradient.implementation)
    lowering.chosen.append(Chosen(number, problem, variant))
    plan = plan_gradient(problem, variant, call, operands, profile)
    lowering.steps.run(plan, names, f"attention gradient {number}")


def _merge(lowering: Lowering, number: int) -> None:
    """Partial results as one; parts whose rows are no runs are copied."""
    uses = dict(zip(("outputs", "residuals", "sinks"), lowering.graph.nodes[number].uses, strict=False))
    given = {name: lowering.operand(use) for name, use in uses.items()}
    names = {name: lowering.value(use) for name, use in uses.items()}
    if not rows_are_runs(given["outputs"]):
        given["outputs"], names["outputs"] = lowering.copied(given["outputs"], names["outputs"])
    laid = dict(zip(("out", "residual"), lowering.allocate(number), strict=True))
    names |= {name: lowering.results[number, result] for result, name in enumerate(laid)}
    sinks = given.pop("sinks", None)
    lowering.steps.run(merge_parts.plan(**given, **laid, sinks=sinks, profile=lowering.profile), names, "merge")


def settle_outputs(lowering: Lowering, uses: Collection[Use], donated: frozenset[int]) -> list[tuple[int, Operand]]:
    """The value and layout of each output. What lies in an input that is not donated, or in a constant, is copied."""
    settled = []
    known: dict[tuple[int, Operand], tuple[int, Operand]] = {}
    for use in uses:
        value, given = lowering.value(use), lowering.operand(use)
        kind = lowering.steps.values[value]
        if kind.content is not None or (kind.argument is not None and kind.argument not in donated):
            if (value, given) not in known:
                made, made_value = lowering.copied(given, value)
                known[value, given] = made_value, made
            value, given = known[value, given]
        settled.append((value, given))
    return settled
