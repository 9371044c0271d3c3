"""What a new device has to prove before anything is computed on it, and the subgroup size that it really has."""

from typing import TYPE_CHECKING

import numpy as np

from .._errors import UnsupportedError
from .encode import BoundProgram
from .memory import Buffer
from .program import BufferSlot, Dispatch, Program, Range, Shader
from .source import runtime_wgsl

if TYPE_CHECKING:
    from .device import Device

WORKGROUPS, THREADS = 3, 64


def check_barriers(device: "Device") -> None:
    """Raise UnsupportedError unless barriers, workgroup memory and parameters work."""
    seed = 1000
    shader = Shader("self_test", runtime_wgsl("self_test"), ("write",))
    found = _words(device, shader, WORKGROUPS * 3, np.uint32(seed).tobytes(), WORKGROUPS).reshape(WORKGROUPS, 3)
    seen = seed + np.arange(WORKGROUPS)
    expected = np.stack([seen, THREADS * seen + THREADS * (THREADS - 1) // 2, 0 * seen], axis=1)
    if not np.array_equal(found, expected):
        raise UnsupportedError(
            f"{device.profile.name} ({device.profile.driver}) fails wgattn's self-test of workgroup barriers: it gave "
            f"{found.tolist()}, not {expected.tolist()}. Update the driver, or name another adapter in WGATTN_ADAPTER"
        )


def probe_subgroups(device: "Device") -> int:
    """The subgroup size that a shader sees. Raises UnsupportedError where shuffles give wrong values."""
    names = ("enable_subgroups", "probe_subgroups") if device.provider.name == "dawn" else ("probe_subgroups",)
    shader = Shader("probe_subgroups", runtime_wgsl(*names), ("write",), frozenset({"subgroup"}))
    size, lane, crossed, broadcast = _words(device, shader, THREADS * 4, b"", 1).reshape(THREADS, 4).T
    wrong = (lane >= size) | (crossed != lane ^ 1) | (broadcast != 2)
    if wrong.any() or size.min() != size.max() or size[0] < 4:
        raise UnsupportedError(
            f"{device.profile.name} ({device.profile.driver}) fails wgattn's self-test of subgroup shuffles (sizes "
            f"{size.min()} to {size.max()}). Update the driver, or set WGATTN_LIMITS=minimum to do without subgroups"
        )
    return int(size[0])


def _words(device: "Device", shader: Shader, count: int, parameters: bytes, workgroups: int) -> np.ndarray:
    dispatch = Dispatch(shader, (Range(0, 0, count * 4),), parameters, (workgroups, 1, 1))
    (out,) = BoundProgram(Program((BufferSlot(count * 4),), (), (0,), (dispatch,)), device).run(())
    assert isinstance(out, Buffer)
    return device.download(out).view(np.uint32)
