"""A Program on a device: its constants and parameters uploaded, its commands encoded and submitted as one."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._errors import WgattnError
from .check import check_program
from .memory import Buffer, Texture, TextureKey, as_bytes
from .program import BufferSlot, CopyBuffer, CopyToTexture, Dispatch, Program, Range, Slot

if TYPE_CHECKING:
    from .device import Device

KEPT_BINDINGS = 8  # sets of buffers whose bind groups are kept: callers come back with the same few
ONE_SUBMIT = 64 << 20  # bytes in and out above which copies in chunks overlap better
ALIGNMENT = 256  # of each dispatch's parameters in the uniform buffer


@dataclass(frozen=True, slots=True)
class Read:
    """Bytes from `offset` of output number `output` that go to `into`; both are multiples of 4."""

    output: int
    offset: int
    into: NDArray[np.uint8]


class BoundProgram:
    """A Program, checked against one device's limits and compiled for it."""

    def __init__(self, program: Program, device: "Device") -> None:
        check_program(program, device.profile.limits)
        self.program, self.device = program, device
        self._dispatches = [c for c in program.commands if isinstance(c, Dispatch)]
        with device.lock:
            self._pipelines = device.pipelines.pipelines([d.shader for d in self._dispatches])
            self._layouts = [device.pipelines.layout(d.shader.resources) for d in self._dispatches]
        self._constants = [(slot, device.constant(content)) for slot, content in program.constants]
        self._places, self._parameters = self._upload_parameters()
        given = {*program.inputs, *(slot for slot, _ in program.constants)}
        made = [slot for slot in range(len(program.slots)) if slot not in given]
        # outputs first: the pool gives back what came last, so scratch is the same each run and bind groups are found
        made = sorted(made, key=lambda slot: slot not in program.outputs)
        self._made = [(slot, _least(program.slots[slot])) for slot in made]
        self._wanted = [_least(program.slots[slot]) for slot in program.inputs]
        self._groups: dict[tuple[int, ...], tuple[list[Any], list[Any]]] = {}

    def run(self, inputs: Sequence[Buffer | Texture]) -> tuple[Buffer | Texture, ...]:
        """Submit the commands; the outputs are being written when this returns."""
        with self.device.guard("run a program"), self.device.lock:
            held = self._hold(inputs)
            natives, groups = self._bound(held)
            encoder = self.device.native.create_command_encoder()
            self._encode(encoder, natives, groups)
            self.device.submit(encoder)
        return tuple(held[slot] for slot in self.program.outputs)  # type: ignore[misc]

    def run_on_host(self, given: Sequence[NDArray[Any] | Buffer], reads: Sequence[Read]) -> None:
        """Upload the arrays among `given`, run, and bring `reads` back; in one submit where bytes are staged."""
        device = self.device
        data = {i: as_bytes(x) for i, x in enumerate(given) if isinstance(x, np.ndarray)}
        moved = sum(x.nbytes for x in data.values()) + sum(read.into.nbytes for read in reads)
        if device.mappable or moved > ONE_SUBMIT:
            made = self.run([device.upload(data[i]) if i in data else x for i, x in enumerate(given)])  # type: ignore[misc]
            for read in reads:
                buffer = made[read.output]
                assert isinstance(buffer, Buffer)
                device.download(buffer, read.offset, read.into.nbytes, read.into)
            return
        with device.guard("run a program"):
            inputs = [device.empty(data[i].nbytes) if i in data else x for i, x in enumerate(given)]
            written = {i: device.memory.staged(x) for i, x in data.items() if x.nbytes}  # copied without the lock
            received = [device.memory.receiver(read.into.nbytes) for read in reads]
            with device.lock:
                held = self._hold(inputs)  # type: ignore[arg-type]
                natives, groups = self._bound(held)
                encoder = device.native.create_command_encoder()
                for i, staging in written.items():
                    encoder.copy_buffer_to_buffer(staging, 0, natives[self.program.inputs[i]], 0, data[i].nbytes)
                self._encode(encoder, natives, groups)
                for staging, read in zip(received, reads, strict=True):
                    source = natives[self.program.outputs[read.output]]
                    encoder.copy_buffer_to_buffer(source, read.offset, staging, 0, read.into.nbytes)
                device.submit(encoder)
            for staging, read in zip(received, reads, strict=True):
                device.memory.receive(staging, read.into)
            for staging in written.values():
                device.memory.unstage(staging)

    def gpu_seconds(self, inputs: Sequence[Buffer | Texture], repeat: int) -> float | None:
        """The median of `repeat` runs on the device's own clock, copies included; None without timestamps."""
        device = self.device
        if not device.profile.timestamps:
            return None
        ticks = device.upload(bytes(2 * 8))
        queries = device.timestamp_queries()
        spans = []
        for _ in range(repeat):
            with device.guard("time a program"), device.lock:
                natives, groups = self._bound(self._hold(inputs))
                encoder = device.native.create_command_encoder()
                # an empty pass before and one after: passes alone carry timestamps, and copies stand outside of them
                encoder.begin_compute_pass(
                    timestamp_writes={"query_set": queries, "beginning_of_pass_write_index": 0}
                ).end()
                self._encode(encoder, natives, groups)
                encoder.begin_compute_pass(timestamp_writes={"query_set": queries, "end_of_pass_write_index": 1}).end()
                encoder.resolve_query_set(queries, 0, 2, ticks.native, 0)
                device.submit(encoder)
            start, end = device.download(ticks, 0, 16).view(np.uint64)
            spans.append(float(end - start) * device.provider.nanoseconds_per_tick(device.native) * 1e-9)
        return median(spans)

    def memory(self) -> dict[str, int]:
        """Bytes of the program's inputs, outputs, constants, parameters, scratch buffers and scratch textures."""
        program = self.program
        constants = {slot for slot, _ in program.constants}
        scratch = [s for s, _ in self._made if s not in program.outputs]
        return {
            "inputs": sum(self._bytes(s) for s in program.inputs),
            "outputs": sum(self._bytes(s) for s in program.outputs if s not in program.inputs),
            "constants": sum(self._bytes(s) for s in constants),
            "parameters": self._parameters.nbytes,
            "scratch": sum(self._bytes(s) for s in scratch if isinstance(program.slots[s], BufferSlot)),
            "textures": sum(self._bytes(s) for s in scratch if not isinstance(program.slots[s], BufferSlot)),
        }

    def _bytes(self, slot: int) -> int:
        found = self.program.slots[slot]
        return found.nbytes if isinstance(found, BufferSlot) else found.width * found.height * 16

    def _upload_parameters(self) -> tuple[list[tuple[int, int]], Buffer]:
        """One uniform buffer for all dispatches: (offset, size) of each one's parameters in it; equal ones share."""
        known: dict[bytes, tuple[int, int]] = {}
        content = bytearray()
        for dispatch in self._dispatches:
            if dispatch.parameters not in known:
                size = max(-(-len(dispatch.parameters) // 16) * 16, 16)
                known[dispatch.parameters] = len(content), size
                content += dispatch.parameters.ljust(-(-size // ALIGNMENT) * ALIGNMENT, b"\0")
        return [known[d.parameters] for d in self._dispatches], self.device.upload(bytes(content))

    def _hold(self, inputs: Sequence[Buffer | Texture]) -> list[Buffer | Texture | None]:
        """A buffer or texture for every slot; scratch goes back to its pool when the list does, after the submit."""
        program, device = self.program, self.device
        if len(inputs) != len(program.inputs):
            raise WgattnError(f"the program takes {len(program.inputs)} inputs, {len(inputs)} are given")
        held: list[Buffer | Texture | None] = [None] * len(program.slots)
        for slot, wanted, given in zip(program.inputs, self._wanted, inputs, strict=True):
            if given.device is not device:
                given.alive()  # the device was asked itself: only another one can be gone
            if isinstance(given, Buffer):
                # vector loads bind whole vectors: up to 256 bytes of the buffer's own memory past its end
                fits = isinstance(wanted, int) and -(-given.nbytes // 256) * 256 >= wanted
            else:
                fits = given.key == wanted
            if not fits:
                raise WgattnError(f"input slot {slot} takes {program.slots[slot]}, {given} is given")
            held[slot] = given
        for slot, constant in self._constants:
            held[slot] = constant
        for slot, made in self._made:
            held[slot] = device.empty(made) if isinstance(made, int) else device.texture(*made)
        return held

    def _bound(self, held: Sequence[Buffer | Texture | None]) -> tuple[list[Any], list[Any]]:
        """The native objects by slot, and a bind group for each dispatch: kept while the same buffers come back."""
        natives = [h.native for h in held if h is not None]
        key = tuple(map(id, natives))
        found = self._groups.pop(key, None)
        if found is None:
            found = natives, [self._group(i, natives) for i in range(len(self._dispatches))]
            if len(self._groups) >= KEPT_BINDINGS:
                del self._groups[next(iter(self._groups))]
        self._groups[key] = found  # last, as the one used last
        return found

    def _group(self, index: int, natives: list[Any]) -> Any:
        entries = []
        for binding, resource in enumerate(self._dispatches[index].resources):
            if isinstance(resource, Range):
                part = {"buffer": natives[resource.slot], "offset": resource.offset, "size": resource.nbytes}
            else:
                part = natives[resource][1]
            entries.append({"binding": binding, "resource": part})
        offset, size = self._places[index]
        part = {"buffer": self._parameters.native, "offset": offset, "size": size}
        entries.append({"binding": len(entries), "resource": part})
        return self.device.native.create_bind_group(layout=self._layouts[index], entries=entries)

    def _encode(self, encoder: Any, natives: list[Any], groups: list[Any]) -> None:
        """All commands in order; dispatches that follow each other share a pass."""
        compute: Any = None
        index = 0
        for command in self.program.commands:
            if isinstance(command, Dispatch):
                if compute is None:
                    compute = encoder.begin_compute_pass()
                compute.set_pipeline(self._pipelines[index])
                compute.set_bind_group(0, groups[index])
                compute.dispatch_workgroups(*command.workgroups)
                index += 1
                continue
            if compute is not None:
                compute.end()
                compute = None
            if isinstance(command, CopyBuffer):
                source = command.source
                if source.nbytes:
                    encoder.copy_buffer_to_buffer(
                        natives[source.slot], source.offset, natives[command.destination], command.offset, source.nbytes
                    )
            else:
                _copy_to_texture(encoder, command, natives)
        if compute is not None:
            compute.end()


def _least(slot: Slot) -> int | TextureKey:
    """What an input must have to fill this slot: so many bytes, or a texture's key."""
    return slot.nbytes if isinstance(slot, BufferSlot) else (slot.width, slot.height, slot.format)


def _copy_to_texture(encoder: Any, copy: CopyToTexture, natives: list[Any]) -> None:
    encoder.copy_buffer_to_texture(
        {
            "buffer": natives[copy.source.slot],
            "offset": copy.source.offset,
            "bytes_per_row": copy.bytes_per_row,
            "rows_per_image": copy.height,
        },
        {"texture": natives[copy.destination][0], "origin": (copy.x, copy.y, 0)},
        (copy.width, copy.height, 1),
    )
