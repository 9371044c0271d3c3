"""What is particular to the backward family of CPU adapters: edges of blocks, textures, loop turns, other subgroups."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.attention.backward.run_gradient import plan_of, reference_gradient, run
from tests.kernels.attention.backward.test_gradients import compare, drawn
from tests.kernels.attention.run_attention import weak
from tests.kernels.attention.test_families import options_of
from tests.tolerance import check
from wgattn import _runtime
from wgattn._dtypes import bfloat16, float16
from wgattn._kernels.attention.backward import lanes
from wgattn._kernels.kernel import CopyToTexture, Launch
from wgattn._runtime.profile import DeviceProfile

CPU = DeviceProfile(kind="cpu", subgroups=True, subgroup_size=8)


def sweep_of(H: int, Hv: int) -> tuple[int, int]:
    return lanes.turn_of(plan_of(lanes, *drawn(T=2, S=2, H=H, Hv=Hv), profile=CPU).problem.sweep)


@pytest.mark.parametrize(
    ("H", "Hv", "turn"),
    [(16, 16, (4, 2)), (64, 64, (2, 2)), (64, 128, (1, 2)), (128, 128, (1, 2)), (256, 256, (1, 1))],
)
def test_what_a_turn_holds(H: int, Hv: int, turn: tuple[int, int]) -> None:
    """Fewer rows where they are long, so that the shader does not take long to compile."""
    assert sweep_of(H, Hv) == turn


def test_a_gpu_is_refused() -> None:
    problem = plan_of(lanes, *drawn(T=2, S=2, H=64), profile=CPU).problem
    refusal = lanes.supports(problem, replace(CPU, kind="discrete"))
    assert not refusal
    assert "CPU adapters" in refusal.reason


def test_textures_are_filled_once() -> None:
    """Both sweeps read the same four, which the queue copies where rows need no padding."""
    plan = plan_of(lanes, *drawn(H=64), profile=CPU).plan
    assert len([step for step in plan.steps if isinstance(step, CopyToTexture)]) == 4
    padded = plan_of(lanes, *drawn(H=40), profile=CPU).plan
    names = [step.variant.family for step in padded.steps if isinstance(step, Launch)]
    assert names.count("texture") == 4


@pytest.mark.device
@pytest.mark.parametrize("textures", [36, 5])
def test_a_mask_and_a_bias_from_textures_and_buffers(textures: int, poisoned: None) -> None:
    """As many as the device binds lie in textures, once for what they are broadcast along; windows start in a texel."""
    T, S, N = 37, 43, 4
    draw = np.random.default_rng(5)
    profile = weak(_runtime.current_profile(), storage_textures=textures, texture_2d=64)
    arrays = drawn(B=2, T=T, S=S, N=N, K=2, H=16)
    bias = draw.standard_normal((1, N, 1, S), np.float32)
    mask = draw.random((2, 1, T, S)) < 0.8
    compare(lanes, arrays, bias=bias, mask=mask, window=(9, 20), profile=profile)
    apart = draw.random((2, 1, T, 1)) < 0.8
    compare(lanes, arrays, bias=bias.astype(bfloat16), mask=apart, is_causal=True, profile=profile)


@pytest.mark.device
@pytest.mark.parametrize("size", [31, 32, 33, 63, 65])
def test_edges_of_blocks(size: int, poisoned: None) -> None:
    """One own row, or one streamed row, more or fewer than whole blocks of lanes and turns."""
    compare(lanes, drawn(T=size, S=size, N=2, K=1, H=16), is_causal=True)
    compare(lanes, drawn(T=3, S=size, N=3, K=3, H=16), key_value_lengths=np.array([size - 1], np.int32))


@pytest.mark.device
@pytest.mark.parametrize(("N", "K"), [(7, 1), (12, 1), (20, 2)])
def test_groups(N: int, K: int, poisoned: None) -> None:
    """Groups that no subgroup divides, whose heads are shared out where a box holds a part of one."""
    compare(lanes, drawn(B=2, T=11, S=40, N=N, K=K, H=16), is_causal=True)
    profile = weak(_runtime.current_profile(), binding_bytes=4096)
    compare(lanes, drawn(B=2, T=11, S=40, N=N, K=K, H=16), is_causal=True, profile=profile)


@pytest.mark.device
@pytest.mark.parametrize("dims", [(16, 48), (80, 96), (160, 16)])
@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_dims_that_lanes_cannot_share_out(dims: tuple[int, int], dtype: np.dtype, poisoned: None) -> None:
    """Rows of two, six, ten, … texels, read by one, two or four lanes each."""
    compare(lanes, drawn(dtype, B=2, T=20, S=21, H=dims[0], Hv=dims[1]), is_causal=True)


@pytest.mark.device
def test_mixed_dtypes(poisoned: None) -> None:
    """Each operand is unpacked by its own dtype; rotated rows are textures of float32."""
    grad_out, query, key, value = drawn(T=10, S=50, H=40)
    mixed = grad_out.astype(float16), query, key.astype(float16), value.astype(bfloat16)
    for options in ({}, options_of(1, 10, 50, 4)["rope"]):
        made = run(lanes, *mixed, **options)
        right = reference_gradient(*mixed, **options)
        for name in ("query", "key", "value"):
            check(made[name], getattr(right, name), bfloat16, 50, gradient=True, magnitude=4.0)


@pytest.mark.device
def test_more_rows_than_a_block_of_columns(poisoned: None) -> None:
    """Tokens past 8,192 lie in the next columns of the texture, of the streamed and of the own rows."""
    compare(lanes, drawn(T=3, S=8300, N=2, K=1, H=16), window=(8300, 8290))
    compare(lanes, drawn(T=8300, S=3, N=2, K=1, H=16, dtype=float16))


@pytest.mark.device
@pytest.mark.parametrize("option", ["causal", "segments", "rope"])
def test_wide_textures_are_cut(option: str, poisoned: None) -> None:
    """Where rows pass the width of a texture, batch entries and heads are worked on in turn."""
    profile = weak(_runtime.current_profile(), texture_2d=20)
    compare(lanes, drawn(B=3, T=9, S=33, N=8, K=4, H=32), profile=profile, **options_of(3, 9, 33, 8)[option])


@pytest.mark.device
@pytest.mark.parametrize("option", ["segments", "mask_none"])
def test_short_loops(option: str, poisoned: None) -> None:
    """A device that ends loops early gets ranges of keys and of rows, whose sums are added up in turn."""
    profile = weak(_runtime.current_profile(), loop_turns=1024 + 20)
    compare(lanes, drawn(B=2, T=70, S=90, H=16), profile=profile, **options_of(2, 70, 90, 4)[option])


@pytest.mark.device
@pytest.mark.parametrize("width", [128, 512])
def test_other_subgroups(width: int) -> None:
    """Subgroups of 4 and 16 lanes, which the driver makes when it is told so before it starts."""
    program = (
        "from tests.kernels.attention.backward.test_lanes import *\n"
        "from wgattn import _runtime\n"
        f"assert _runtime.current_profile().subgroup_size == {width // 32}\n"
        "for option in ('causal', 'segments', 'mask_none'):\n"
        "    compare(lanes, drawn(B=2, H=16), **options_of(2, 19, 37, 4)[option])\n"
        "compare(lanes, drawn(float16, T=33, S=35, H=80), is_causal=True)\n"
    )
    environment = {**os.environ, "LP_NATIVE_VECTOR_WIDTH": str(width)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_subgroup_that_no_shader_is_made_for() -> None:
    support = lanes.supports(plan_of(lanes, *drawn(T=2, S=2), profile=CPU).problem, replace(CPU, subgroup_size=32))
    assert not support
    assert "4, 8 or 16 lanes" in support.reason
