"""Planned steps over values become the runtime's Program over slots."""

from collections.abc import Sequence
from functools import cache

from wgattn._kernels.compose import Dialect, compose
from wgattn._kernels.kernel import Bytes, Copy, CopyToTexture, Texture, Variant
from wgattn._runtime.program import (
    BufferSlot,
    Command,
    CopyBuffer,
    Dispatch,
    Program,
    Range,
    Resource,
    Shader,
    TextureSlot,
)
from wgattn._runtime.program import CopyToTexture as CopyToTextureSlot

from .lifetimes import Slots
from .values import Step, Value


def assemble(
    values: Sequence[Value], steps: Sequence[Step], slots: Slots, outputs: Sequence[int], dialect: Dialect
) -> Program:
    """The Program that runs `steps`; inputs in the order of their argument numbers, `outputs` (values) as given."""
    arguments = sorted((v.argument, number) for number, v in enumerate(values) if v.argument is not None)
    constants = [(number, v.content) for number, v in enumerate(values) if v.content is not None]
    return Program(
        slots=tuple(
            TextureSlot(size.width, size.height, size.format) if isinstance(size, Texture) else BufferSlot(size)
            for size in slots.sizes
        ),
        inputs=tuple(_slot(slots, number) for _, number in arguments),
        outputs=tuple(_slot(slots, number) for number in outputs),
        commands=tuple(_command(values, step, slots, dialect) for step in steps),
        constants=tuple((_slot(slots, number), content) for number, content in constants),
    )


def _slot(slots: Slots, value: int) -> int:
    slot = slots.of[value]
    assert slot is not None, f"value {value} has no slot"
    return slot


def _command(values: Sequence[Value], step: Step, slots: Slots, dialect: Dialect) -> Command:
    planned, names = step.planned, step.names

    def part(given: Bytes) -> Range:
        whole = values[names[given.name]].nbytes
        nbytes = whole - given.offset if given.nbytes is None else given.nbytes
        return Range(_slot(slots, names[given.name]), given.offset, nbytes)

    if isinstance(planned, Copy):
        return CopyBuffer(part(planned.source), _slot(slots, names[planned.destination]), planned.offset)
    if isinstance(planned, CopyToTexture):
        return CopyToTextureSlot(
            part(planned.source),
            planned.bytes_per_row,
            _slot(slots, names[planned.destination]),
            planned.x,
            planned.y,
            planned.width,
            planned.height,
        )
    taken = [planned.resources[binding.name] for binding in planned.variant.bindings]
    return Dispatch(
        shader_of(planned.variant, dialect),
        tuple(part(given) if isinstance(given, Bytes) else _slot(slots, names[given]) for given in taken),
        planned.parameters,
        planned.workgroups,
        step.label or planned.variant.name,
    )


@cache
def shader_of(variant: Variant, dialect: Dialect) -> Shader:
    """The shader that the runtime compiles for a variant."""
    resources: list[Resource] = []
    for binding in variant.bindings:
        match binding.access, binding.element:
            case ("read" | "write") as access, _:
                resources.append(access)
            case "texture", "rgba32float":
                resources.append("read rgba32float")
            case "texture", "rgba32uint":
                resources.append("read rgba32uint")
            case "write_texture", "rgba32float":
                resources.append("write rgba32float")
            case "write_texture", "rgba32uint":
                resources.append("write rgba32uint")
            case _:
                raise ValueError(f"{variant.name} binds {binding.name} as {binding.access} of {binding.element}")
    return Shader(variant.name, compose(variant, dialect), tuple(resources), variant.features)
