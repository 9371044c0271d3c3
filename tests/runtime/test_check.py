"""Programs that a device must not be given are refused before anything is made."""

from dataclasses import replace

import numpy as np
import pytest

from tests.runtime.programs import affine, join, row_sums, scale_add
from wgattn._runtime import BufferSlot, CopyBuffer, Limits, Program, Range, Shader, TextureSlot
from wgattn._runtime.check import check_program

WELL = affine(100)
ROWS = row_sums(16, 4)
RUN = scale_add(0, 1, 100, 1, 0)


@pytest.mark.parametrize("program", [WELL, ROWS, join(3, 4)])
def test_good_programs_pass(program):
    check_program(program, Limits())


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (replace(WELL, slots=(BufferSlot(402), BufferSlot(400))), "multiple of 4"),
        (replace(WELL, slots=(BufferSlot(396), BufferSlot(400))), "reaches byte 400 of slot 0"),
        (replace(WELL, outputs=(0, 1), inputs=(), commands=()), "output slot 0 is written by no command"),
        (replace(WELL, commands=(replace(RUN, workgroups=(65536, 1, 1)),)), "a side over 65535"),
        (replace(WELL, commands=(replace(RUN, resources=RUN.resources[:1]),)), "binds 1 resources"),
        (replace(WELL, commands=(replace(RUN, resources=(Range(0, 4, 4), RUN.resources[1])),)), "multiples of 256"),
        (replace(WELL, commands=(replace(RUN, resources=(Range(0, 0, 0), RUN.resources[1])),)), "binds 0 bytes"),
        (replace(WELL, commands=(replace(RUN, resources=(0, RUN.resources[1])),)), "binding 0 takes read"),
        (replace(WELL, constants=((0, bytes(8)),)), "the constant of slot 0 has 8 bytes"),
        (replace(WELL, constants=((1, bytes(400)),)), "constant of slot 1 is written or handed out"),
        (replace(WELL, outputs=(0,), inputs=(), constants=((0, bytes(400)),)), "constant of slot 0 is written or hand"),
        (replace(WELL, commands=(CopyBuffer(Range(0, 0, 400), 1, 4),)), "reaches byte 404 of slot 1"),
        (replace(WELL, commands=(CopyBuffer(Range(0, 2, 4), 1, 0),)), "multiples of 4"),
        (replace(ROWS, slots=(ROWS.slots[0], TextureSlot(8193, 4, "rgba32float"), ROWS.slots[2])), "limit is 8192"),
        (replace(ROWS, slots=(ROWS.slots[0], TextureSlot(16, 4, "rgba32uint"), ROWS.slots[2])), "takes read rgba32f"),
        (replace(ROWS, slots=(ROWS.slots[0], TextureSlot(15, 4, "rgba32float"), ROWS.slots[2])), "past the edge"),
        (replace(ROWS, commands=(replace(ROWS.commands[0], bytes_per_row=128),)), "multiple of 256"),
        (replace(ROWS, commands=(replace(ROWS.commands[0], source=Range(0, 0, 512)),)), "reads 1024 bytes"),
        (replace(ROWS, commands=(replace(ROWS.commands[0], destination=0),)), "which is no texture"),
    ],
)
def test_bad_programs_are_refused(program, message):
    with pytest.raises(ValueError, match=message):
        check_program(program, Limits())


def test_limits_are_the_device_s():
    """https://github.com/softwiredtech/stable-diffusion-webgpu/issues/1: an error, never zeros"""
    many = Shader("many", "", ("read",) * 8 + ("write",))
    run = replace(RUN, shader=many, resources=(Range(0, 0, 4),) * 9)
    with pytest.raises(ValueError, match="9 storage buffers: the limit is 8"):
        check_program(Program((BufferSlot(4),), (), (0,), (run,)), Limits())
    with pytest.raises(ValueError, match="binds 400 bytes"):
        check_program(WELL, Limits(binding_bytes=396))
    textures = Shader("many", "", ("read rgba32float",) * 5)
    run = replace(RUN, shader=textures, resources=(0,) * 5)
    with pytest.raises(ValueError, match="5 textures: the limit is 4"):
        check_program(Program((TextureSlot(4, 4, "rgba32float"),), (0,), (), (run,)), Limits())


def test_a_written_slot_may_be_handed_out():
    commands = scale_add(0, 1, 100, 1, 0), scale_add(1, 2, 100, 1, 0)
    check_program(Program((BufferSlot(400),) * 3, (0,), (1, 2), commands), Limits())
    assert np.frombuffer(commands[0].parameters, np.float32).tolist() == [1, 0]
