"""A kernel's Plan turned into a Program by itself and run on arrays: what the schedule does for whole graphs."""

from collections.abc import Mapping
from functools import cache

import numpy as np

from wgattn import _runtime
from wgattn._kernels.compose import Dialect, compose
from wgattn._kernels.kernel import Bytes, Copy, CopyToTexture, Launch, Plan, Scratch, Variant
from wgattn._runtime import program as device

Content = np.ndarray | bytes


def run_plan(
    plan: Plan, operands: Mapping[str, Content], results: Mapping[str, int | Content]
) -> dict[str, np.ndarray]:
    """The bytes (uint8) that `plan` leaves in each of `results`.

    A result is given as its size in bytes, or as what is in it before: then bytes that the plan leaves alone are seen.
    Names of the plan that are neither operands, results, constants nor scratch are an error.

    Example:
        run_plan(copy.plan(source, result, profile), {"source": x}, {"result": x.nbytes})["result"].view(x.dtype)
    """
    given = {**operands, **{name: old for name, old in results.items() if not isinstance(old, int)}}
    sizes = {name: _padded(_nbytes(content)) for name, content in {**operands, **results}.items()}
    program = program_of(plan, sizes, tuple(given), tuple(results), _runtime.current_profile().provider)
    outputs = _runtime.prepare(program).run([_runtime.upload(content) for content in given.values()])
    return {
        name: _runtime.download(output)[: _nbytes(results[name])] for name, output in zip(results, outputs, strict=True)
    }


def program_of(
    plan: Plan, sizes: Mapping[str, int], inputs: tuple[str, ...], outputs: tuple[str, ...], dialect: Dialect
) -> device.Program:
    """The Program of one plan, over buffers of `sizes` bytes."""
    slots: dict[str, device.Slot] = {name: device.BufferSlot(nbytes) for name, nbytes in sizes.items()}
    for name, scratch in plan.scratch.items():
        if isinstance(scratch, Scratch):
            slots[name] = device.BufferSlot(_padded(scratch.nbytes))
        else:
            slots[name] = device.TextureSlot(scratch.width, scratch.height, scratch.format)
    slots |= {name: device.BufferSlot(_padded(len(content))) for name, content in plan.constants.items()}
    number = {name: n for n, name in enumerate(slots)}

    def part(given: Bytes) -> device.Range:
        slot = slots[given.name]
        assert isinstance(slot, device.BufferSlot)
        nbytes = slot.nbytes - given.offset if given.nbytes is None else given.nbytes
        return device.Range(number[given.name], given.offset, nbytes)

    def command(step: Launch | Copy | CopyToTexture) -> device.Command:
        if isinstance(step, Copy):
            return device.CopyBuffer(part(step.source), number[step.destination], step.offset)
        if isinstance(step, CopyToTexture):
            destination = number[step.destination]
            place = step.bytes_per_row, destination, step.x, step.y, step.width, step.height
            return device.CopyToTexture(part(step.source), *place)
        taken = [step.resources[binding.name] for binding in step.variant.bindings]
        return device.Dispatch(
            shader_of(step.variant, dialect),
            tuple(part(given) if isinstance(given, Bytes) else number[given] for given in taken),
            step.parameters,
            step.workgroups,
            step.variant.name,
        )

    return device.Program(
        slots=tuple(slots.values()),
        inputs=tuple(number[name] for name in inputs),
        outputs=tuple(number[name] for name in outputs),
        commands=tuple(command(step) for step in plan.steps),
        constants=tuple(
            (number[name], content.ljust(_padded(len(content)), b"\0")) for name, content in plan.constants.items()
        ),
    )


@cache
def shader_of(variant: Variant, dialect: Dialect) -> device.Shader:
    """The shader that the runtime compiles for `variant`."""
    resources: list[device.Resource] = []
    for binding in variant.bindings:
        if binding.access == "read" or binding.access == "write":
            resources.append(binding.access)
        else:
            way = "write" if binding.access == "write_texture" else "read"
            resources.append(f"{way} {binding.element}")  # type: ignore[arg-type]
    return device.Shader(variant.name, compose(variant, dialect), tuple(resources), variant.features)


def _nbytes(content: int | Content) -> int:
    if isinstance(content, int):
        return content
    return content.nbytes if isinstance(content, np.ndarray) else len(content)


def _padded(nbytes: int) -> int:
    return -(-nbytes // 4) * 4
