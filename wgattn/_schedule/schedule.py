"""A fused graph as one Program, and what is known of it before it runs: outputs, choices, cost, memory."""

import math
from dataclasses import dataclass

from wgattn._graph import operations as op
from wgattn._graph.aliases import written_in_place
from wgattn._graph.graph import Graph, Use, View
from wgattn._kernels.kernel import Operand
from wgattn._runtime.profile import DeviceProfile
from wgattn._runtime.program import BufferSlot, Dispatch, Program

from .assemble import assemble
from .caches import moved_bytes
from .lifetimes import assign_slots
from .lowering import Chosen, lower, settle_outputs
from .order import gather_copies


@dataclass(frozen=True, slots=True)
class Output:
    """Where an output lies: in which of the program's output buffers, and how, in elements of its dtype."""

    buffer: int
    layout: Operand

    @property
    def view(self) -> View:
        return View(self.layout.shape, self.layout.strides, self.layout.offset)


@dataclass(frozen=True, slots=True)
class Tap:
    """An attention node of the fused graph with all that it read and wrote, as the graph's uses see it."""

    node: int
    attention: op.Attention
    operands: dict[str, Output]
    results: dict[str, Output]


@dataclass(frozen=True, slots=True)
class Cost:
    """Floating-point operations of attention (every key for every query) and of arithmetic; bytes read and written."""

    flops: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the inputs that are used, of outputs, of constants, and of the scratch that is held while it runs."""

    inputs: int
    outputs: int
    constants: int
    scratch: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """A Program and how to use it. `arguments`: the number of the argument that fills each of the program's inputs."""

    graph: Graph
    program: Program
    arguments: tuple[int, ...]
    outputs: tuple[Output, ...]
    chosen: tuple[Chosen, ...]
    cost: Cost
    memory: Memory
    taps: tuple[Tap, ...] = ()

    @property
    def variants(self) -> dict[str, Chosen]:
        """The attention shaders by name, with the reason of the choice."""
        return {chosen.variant.name: chosen for chosen in self.chosen}

    @property
    def shaders(self) -> dict[str, str]:
        """The WGSL of every shader of the program, by name."""
        dispatched = (command.shader for command in self.program.commands if isinstance(command, Dispatch))
        return {shader.name: shader.source for shader in dispatched}


def compile(
    graph: Graph, profile: DeviceProfile, donated: frozenset[int] = frozenset(), *, taps: bool = False
) -> Schedule:
    """The Program of a fused graph for a device. Pure: equal arguments, equal Schedule.

    `donated` are argument numbers whose buffers may be written once they were last read. With `taps`, the operands and
    results of every attention node are kept, as further outputs of the program.

    Raises UnsupportedError where a named implementation cannot serve a call, or no kernel a dtype or size.
    """
    attentions = [n for n, node in enumerate(graph.nodes) if isinstance(node.operation, op.Attention)] if taps else []
    tapped = {use for n in attentions for use in (*graph.nodes[n].uses, *_results(graph, n))}
    lowering = lower(graph, profile, written_in_place(graph, donated, tapped))
    settled = settle_outputs(lowering, graph.outputs, donated)
    kept = dict.fromkeys([value for value, _ in settled] + [lowering.value(use) for use in sorted(tapped, key=_order)])
    values, steps = lowering.steps.values, gather_copies(lowering.steps.steps)
    donated_values = {n for n, value in enumerate(values) if value.argument in donated and value.argument is not None}
    slots = assign_slots(values, steps, kept, donated_values)
    program = assemble(values, steps, slots, tuple(kept), profile.provider)
    places = {value: place for place, value in enumerate(kept)}

    def output(use: Use) -> Output:
        return Output(places[lowering.value(use)], lowering.operand(use))

    def tap(number: int) -> Tap:
        node = graph.nodes[number]
        assert isinstance(node.operation, op.Attention)
        operands = zip(node.operation.operands, map(output, node.uses), strict=True)
        results = zip(("out", "residual"), map(output, _results(graph, number)), strict=False)
        return Tap(number, node.operation, dict(operands), dict(results))

    return Schedule(
        graph=graph,
        program=program,
        arguments=tuple(sorted(v.argument for v in values if v.argument is not None)),
        outputs=tuple(Output(places[value], layout) for value, layout in settled),
        chosen=tuple(lowering.chosen),
        cost=_cost(graph),
        memory=_memory(program),
        taps=tuple(tap(number) for number in attentions),
    )


def _results(graph: Graph, number: int) -> list[Use]:
    return [Use(number, result) for result in range(len(graph.nodes[number].avals))]


def _order(use: Use) -> tuple[int, int]:
    return use.node, use.result


def _cost(graph: Graph) -> Cost:
    flops = nbytes = 0
    for node in graph.nodes:
        if isinstance(node.operation, op.Input | op.Constant):
            continue
        if (moved := moved_bytes(graph, node)) is not None:
            nbytes += moved
            continue
        written = sum(aval.size * aval.dtype.itemsize for aval in node.avals)
        nbytes += written + sum(_distinct(graph.view(use)) * graph.aval(use).dtype.itemsize for use in node.uses)
        if isinstance(node.operation, op.Attention):
            *batch, T, N, H = graph.view(node.uses[0]).shape
            S, Hv = graph.view(node.uses[1]).shape[-3], node.avals[0].shape[-1]
            if (page_size := node.operation.call.page_size) is not None:
                S = graph.view(node.uses[node.operation.operands.index("pages")]).shape[-1] * page_size
            flops += 2 * math.prod(batch) * N * T * S * (H + Hv)
        elif isinstance(node.operation, op.AttentionGradient):
            *batch, T, N, H = graph.view(node.uses[0]).shape
            S, _, Hv = graph.view(node.uses[2]).shape[-3:]
            flops += 2 * math.prod(batch) * N * T * S * (3 * H + 2 * Hv)
        elif isinstance(node.operation, op.Sum):
            flops += graph.aval(node.uses[0]).size
        elif isinstance(node.operation, op.Elementwise):
            flops += node.avals[0].size
        elif isinstance(node.operation, op.Merge):
            flops += 2 * graph.view(node.uses[0]).shape[0] * node.avals[0].size
        elif isinstance(node.operation, op.Rotate):
            flops += 3 * node.avals[0].size
    return Cost(flops, nbytes)


def _distinct(view: View) -> int:
    """How many elements a view reads, those that it broadcasts once."""
    return math.prod(size for size, stride in zip(view.shape, view.strides, strict=True) if stride)


def _memory(program: Program) -> Memory:
    def size(slots: set[int]) -> int:
        found = [program.slots[slot] for slot in slots]
        return sum(slot.nbytes if isinstance(slot, BufferSlot) else 16 * slot.width * slot.height for slot in found)

    inputs, outputs = set(program.inputs), set(program.outputs)
    constants = {slot for slot, _ in program.constants}
    scratch = set(range(len(program.slots))) - inputs - outputs - constants
    return Memory(size(inputs), size(outputs - inputs), size(constants), size(scratch))
