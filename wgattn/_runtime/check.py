"""Whether a Program can be run within a device's limits; mistakes here would be riddles or wrong bytes later."""

from .profile import Limits
from .program import BufferSlot, CopyBuffer, CopyToTexture, Dispatch, Program, Range, TextureSlot


def check_program(program: Program, limits: Limits) -> None:
    """Raise ValueError for the first command that no device with these limits may be given."""
    for slot in program.slots:
        _check_slot(slot, limits)
    written = set(program.inputs)
    for slot, content in program.constants:
        size = _buffer(program, slot, "a constant").nbytes
        if len(content) != size:
            raise ValueError(f"the constant of slot {slot} has {len(content)} bytes, the slot {size}")
    for number, command in enumerate(program.commands):
        where = f"command {number} ({_name(command)})"
        match command:
            case Dispatch():
                written |= _check_dispatch(program, command, limits, where)
            case CopyBuffer(source, destination, offset):
                _check_range(program, source, 4, where)
                _check_range(program, Range(destination, offset, source.nbytes), 4, where)
                written.add(destination)
            case CopyToTexture():
                _check_texture_copy(program, command, where)
                written.add(command.destination)
    for slot, _ in program.constants:
        if slot in written or slot in program.outputs:
            raise ValueError(f"the constant of slot {slot} is written or handed out: other programs read it too")
    for slot in program.outputs:
        empty = isinstance(found := program.slots[slot], BufferSlot) and found.nbytes == 0
        if slot not in written and not empty:
            raise ValueError(f"output slot {slot} is written by no command: stale memory would be handed out")


def _check_slot(slot: BufferSlot | TextureSlot, limits: Limits) -> None:
    if isinstance(slot, BufferSlot):
        if slot.nbytes < 0 or slot.nbytes % 4:
            raise ValueError(f"a buffer slot of {slot.nbytes} bytes: it has to be a multiple of 4")
    elif not (0 < slot.width <= limits.texture_2d and 0 < slot.height <= limits.texture_2d):
        raise ValueError(
            f"a texture slot of {slot.width} x {slot.height} texels: the limit is {limits.texture_2d} a side"
        )


def _check_dispatch(program: Program, dispatch: Dispatch, limits: Limits, where: str) -> set[int]:
    """Check one dispatch; the slots that it may write."""
    wanted = dispatch.shader.resources
    if len(wanted) != len(dispatch.resources):
        raise ValueError(f"{where} binds {len(dispatch.resources)} resources, its shader takes {len(wanted)}")
    if max(dispatch.workgroups) > limits.workgroups_per_dimension:
        raise ValueError(f"{where} has a side over {limits.workgroups_per_dimension}: {dispatch.workgroups}")
    buffers = sum(w in ("read", "write") for w in wanted)
    if buffers > limits.storage_buffers:
        raise ValueError(f"{where} binds {buffers} storage buffers: the limit is {limits.storage_buffers}")
    if len(wanted) - buffers > limits.storage_textures:
        raise ValueError(f"{where} binds {len(wanted) - buffers} textures: the limit is {limits.storage_textures}")
    written: set[int] = set()
    for binding, (want, given) in enumerate(zip(wanted, dispatch.resources, strict=True)):
        here = f"{where}, binding {binding}"
        if isinstance(given, Range):
            if want not in ("read", "write"):
                raise ValueError(f"{here} takes a texture ({want}), a buffer is given")
            _check_range(program, given, limits.offset_alignment, here)
            if not 0 < given.nbytes <= limits.binding_bytes:
                raise ValueError(f"{here} binds {given.nbytes} bytes: from 4 to {limits.binding_bytes} can be bound")
            slot = given.slot
        else:
            slot = given
            texture = program.slots[slot]
            if not isinstance(texture, TextureSlot) or want.split(" ")[-1] != texture.format:
                raise ValueError(f"{here} takes {want}, slot {slot} is {texture}")
        if want.startswith("write"):
            written.add(slot)
    return written


def _check_texture_copy(program: Program, copy: CopyToTexture, where: str) -> None:
    texture = program.slots[copy.destination]
    if not isinstance(texture, TextureSlot):
        raise ValueError(f"{where} copies to slot {copy.destination}, which is no texture")
    if copy.x + copy.width > texture.width or copy.y + copy.height > texture.height:
        raise ValueError(f"{where} copies past the edge of a {texture.width} x {texture.height} texture")
    if copy.bytes_per_row % 256 or copy.bytes_per_row < copy.width * 16:
        raise ValueError(
            f"{where} has {copy.bytes_per_row} bytes a row: a multiple of 256 and at least {copy.width * 16}"
        )
    _check_range(program, copy.source, 16, where)
    needed = copy.bytes_per_row * (copy.height - 1) + copy.width * 16
    if copy.source.nbytes < needed:
        raise ValueError(f"{where} reads {needed} bytes of a range of {copy.source.nbytes}")


def _check_range(program: Program, given: Range, alignment: int, where: str) -> None:
    size = _buffer(program, given.slot, where).nbytes
    if given.offset % alignment or given.nbytes % 4:
        raise ValueError(
            f"{where} has offset {given.offset}, length {given.nbytes}: multiples of {alignment} and 4 are needed"
        )
    if given.offset < 0 or given.nbytes < 0 or given.offset + given.nbytes > size:
        raise ValueError(f"{where} reaches byte {given.offset + given.nbytes} of slot {given.slot}, which has {size}")


def _buffer(program: Program, slot: int, where: str) -> BufferSlot:
    found = program.slots[slot]
    if not isinstance(found, BufferSlot):
        raise ValueError(f"{where} takes slot {slot} as a buffer: it is {found}")
    return found


def _name(command: Dispatch | CopyBuffer | CopyToTexture) -> str:
    return command.label or command.shader.name if isinstance(command, Dispatch) else type(command).__name__
