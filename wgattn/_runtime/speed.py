"""How fast a new GPU multiplies, roughly: on a weak one a dispatch has to be shorter."""

from typing import TYPE_CHECKING

import numpy as np

from .._errors import DeviceLostError, WgattnError
from .encode import BoundProgram
from .program import BufferSlot, Dispatch, Program, Range, Shader
from .source import runtime_wgsl

if TYPE_CHECKING:
    from .device import Device

THREADS, TURNS = 1 << 16, 64  # a millisecond of a weak GPU


def products(threads: int, turns: int, fused: bool) -> tuple[Program, float]:
    """A program that multiplies and adds in registers, and its operations: in each turn 16 times four numbers."""
    shader = Shader("multiply_add", runtime_wgsl("multiply_add"), ("write",))
    parameters = np.array([turns, fused], np.uint32).tobytes()
    dispatch = Dispatch(shader, (Range(0, 0, threads * 4),), parameters, (threads // 128, 1, 1))
    return Program((BufferSlot(threads * 4),), (), (0,), (dispatch,)), 2.0 * 4 * 16 * turns * threads


def multiply_adds(device: "Device") -> float:
    """Operations a second, at the clocks that an idle GPU happens to have; 0 where they cannot be measured."""
    program, operations = products(THREADS, TURNS, True)
    try:
        seconds = BoundProgram(program, device).gpu_seconds((), 3)
    except DeviceLostError:
        raise
    except WgattnError:
        return 0.0
    return operations / seconds if seconds else 0.0
