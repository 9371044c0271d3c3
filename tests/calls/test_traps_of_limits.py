"""Calls above a device's limits, planned without a device: cut to what can be bound, or refused; nothing ever wraps."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import wgattn
from wgattn import UnsupportedError, nn
from wgattn._kernels.attention.launches import MOST_WORK, most_work
from wgattn._run import fused
from wgattn._runtime.profile import DeviceProfile, Limits
from wgattn._runtime.program import BufferSlot, CopyBuffer, Dispatch, Program, Range
from wgattn._schedule import compile

MINIMUM = DeviceProfile()
LARGE = DeviceProfile(
    "large", kind="discrete", limits=Limits(buffer_bytes=1 << 40, binding_bytes=(1 << 31) - 4, workgroup_bytes=49152)
)
CPU = DeviceProfile("cpu", kind="cpu", subgroups=True, subgroup_size=8, limits=Limits(buffer_bytes=1 << 32))


@dataclass(frozen=True, slots=True)
class Shape:
    """What `lower` needs of an argument."""

    shape: tuple[int, ...]
    dtype: np.dtype


def planned(attend: Callable[..., Any], shapes: list[tuple[int, ...]], dtype: Any, profile: DeviceProfile) -> Program:
    lowered = wgattn.jit(attend).lower(*(Shape(shape, np.dtype(dtype)) for shape in shapes))
    return compile(fused(lowered._traced.graph_for(lowered._layouts)), profile).program


def check_limits(program: Program, profile: DeviceProfile) -> None:
    """Every range lies in its buffer and can be bound, and every grid can be dispatched."""
    limits = profile.limits
    assert any(isinstance(command, Dispatch) for command in program.commands)
    for command in program.commands:
        resources = command.resources if isinstance(command, Dispatch) else ()
        ranges = [command.source] if isinstance(command, CopyBuffer) else [r for r in resources if isinstance(r, Range)]
        for one in ranges:
            slot = program.slots[one.slot]
            assert isinstance(slot, BufferSlot)
            assert 0 <= one.offset <= one.offset + one.nbytes <= slot.nbytes
        if isinstance(command, Dispatch):
            assert all(one.nbytes <= limits.binding_bytes for one in ranges), command.label
            assert max(command.workgroups) <= limits.workgroups_per_dimension
            assert len(ranges) <= limits.storage_buffers


def of_fused_projection(x: Any) -> Any:
    return nn.dot_product_attention(x[:, :, :56], x[:, :, 56:112], x[:, :, 112:], is_causal=True)


def biased(query: Any, key: Any, bias: Any) -> Any:
    return nn.dot_product_attention(query, key, key, bias)


def plain(query: Any, key: Any) -> Any:
    return nn.dot_product_attention(query, key, key)


def gradients(query: Any, key: Any) -> Any:
    out, backward = wgattn.vjp(plain, query, key)
    return backward(out)


CALLS = {
    # https://github.com/alexzhang13/flashattention2-custom-mask/issues/2: 3.8e9 elements of bias
    "g4": (biased, [(8, 4096, 28, 64), (8, 4096, 28, 64), (8, 28, 4096, 4096)], np.float16, (MINIMUM, LARGE, CPU)),
    # https://github.com/thu-ml/SageAttention/issues/386: 2.1e9 elements in one strided view
    "g5": (of_fused_projection, [(1, 99_866, 168, 128)], np.float16, (LARGE, CPU)),
    # https://github.com/Dao-AILab/flash-attention/pull/1500
    "g7": (plain, [(15_000, 64, 8, 64), (15_000, 64, 8, 64)], np.float16, (MINIMUM, LARGE)),
    # https://github.com/gpuweb/gpuweb/pull/1163 and https://github.com/gfx-rs/wgpu/issues/8105: keys of 2.4 GB
    "g9": (plain, [(1, 8, 1, 64), (1, 9_500_000, 1, 64)], np.float32, (MINIMUM, LARGE, CPU)),
    "k5": (plain, [(64, 1, 64, 128), (64, 40_000, 8, 128)], np.float16, (MINIMUM, LARGE, CPU)),
    # https://github.com/ggml-org/llama.cpp/pull/19965
    "g1": (plain, [(4, 700_000, 2, 16), (4, 3, 2, 16)], np.float32, (MINIMUM, LARGE, CPU)),
}


@pytest.mark.parametrize(
    ("trap", "profile"),
    [(trap, profile) for trap, (*_, profiles) in CALLS.items() for profile in profiles],
    ids=lambda given: given if isinstance(given, str) else given.name,
)
def test_large_calls_stay_within_the_limits(trap: str, profile: DeviceProfile):
    attend, shapes, dtype, _ = CALLS[trap]
    check_limits(planned(attend, shapes, dtype, profile), profile)


@pytest.mark.parametrize("profile", [LARGE, MINIMUM], ids=lambda given: given.name)
def test_a_long_call_is_several_dispatches(profile: DeviceProfile):
    """https://github.com/ALaggyDev/CoordsFinder/issues/14 and https://github.com/playcanvas/splat-transform/issues/293:
    T = S = 64 K in one dispatch holds a slow GPU until its driver gives it up"""
    sizes = [(1, 65_536, 16, 64), (1, 65_536, 16, 64)]
    most = MOST_WORK[profile.kind]
    assert most is not None
    commands = [c for c in planned(plain, sizes, np.float16, profile).commands if isinstance(c, Dispatch)]
    found = [one for one in commands if not one.shader.name.startswith("merge")]
    assert len(found) >= 2**32 * 16 * 128 / most
    (tile_q,) = {re.findall(r"-q(\d+)k", one.shader.name)[0] for one in found}
    # Each row once, or once for each part of the keys, where the rows of one dispatch do not fill the device.
    parts, rest = divmod(sum(math.prod(one.workgroups) for one in found) * int(tile_q), 16 * 65_536)
    assert rest == 0
    assert (parts > 1) == (len(found) < len(commands))
    short = planned(plain, [(4, 4096, 16, 64)] * 2, np.float16, LARGE).commands
    assert len([c for c in short if isinstance(c, Dispatch)]) == 1


def test_dispatches_of_a_weak_device_are_shorter():
    """A GPU that multiplies a hundredth as fast as a large one, clocks being low when it was measured; and one that is
    larger than its kind is sure to be, whose dispatches are longer: each end of one leaves it idle"""
    assert most_work(LARGE) == MOST_WORK["discrete"] < (most_work(replace(LARGE, multiply_adds=3e13)) or 0) < 0.3 * 3e13
    assert most_work(replace(CPU, multiply_adds=1e11)) is None
    weak, shapes = replace(LARGE, multiply_adds=1e11), [(1, 65_536, 16, 64)] * 2
    most = most_work(weak)
    assert most is not None
    assert 0.3 < most * 2 / (weak.multiply_adds / 4) < 1.3, "seconds of a kernel with a quarter of its rate"
    found = [c for c in planned(plain, shapes, np.float16, weak).commands if isinstance(c, Dispatch)]
    assert len(found) >= 2**32 * 16 * 128 / most


@pytest.mark.parametrize("profile", [LARGE, MINIMUM], ids=lambda given: given.name)
def test_a_long_gradient_is_several_dispatches(profile: DeviceProfile):
    """The same of a backward pass, which takes four products and more where a forward dispatch takes two"""
    found = dispatches_of_backward([(1, 65_536, 16, 64), (1, 65_536, 16, 64)], profile)
    most = MOST_WORK[profile.kind]
    assert most is not None
    assert min(found.values()) >= 4 * 2**32 * 16 * 128 / most
    assert set(dispatches_of_backward([(1, 4096, 16, 64)] * 2, LARGE).values()) == {1}


def dispatches_of_backward(shapes: list[tuple[int, ...]], profile: DeviceProfile) -> dict[str, int]:
    """How many dispatches the two sweeps are."""
    commands = planned(gradients, shapes, np.float16, profile).commands
    labels = [one.shader.name for one in commands if isinstance(one, Dispatch)]
    return {by: sum(f"backward_tiled_{by}-" in label for label in labels) for by in ("query", "key_value")}


def test_a_row_that_cannot_be_bound_is_refused():
    shapes = [(1, 2, 1_200_000, 64), (1, 2, 1_200_000, 64)]
    tiny = DeviceProfile("tiny", limits=Limits(binding_bytes=128))
    with pytest.raises(UnsupportedError, match="binds at once"):
        planned(plain, [(1, 2, 1, 64), (1, 2, 1, 64)], np.float32, tiny)
    check_limits(planned(plain, shapes, np.float32, MINIMUM), MINIMUM)  # heads are cut
