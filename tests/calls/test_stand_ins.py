"""A sample of the contract on stand-ins for other adapters: other subgroup sizes, and WebGPU's default limits.

The stand-ins are chosen before a process makes its device, so each runs this suite's own tests in a process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wgattn import _runtime

pytestmark = pytest.mark.device

ROOT = Path(__file__).parents[2]


def passes(selection: list[str], **environment: str) -> None:
    """Fail unless the selected tests pass under `environment`, at least one of them."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *selection]
    own = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}  # it is no worker, and plugins ask
    done = subprocess.run(command, cwd=ROOT, env={**own, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.parametrize("width", [128, 256, 512])
def test_other_vector_widths_of_lavapipe(width: int) -> None:
    """Subgroups of 4, 8 and 16 lanes: Arm's and Intel's sizes, and what else a CPU adapter may have.

    https://github.com/ggml-org/llama.cpp/pull/23040
    """
    if not _runtime.current_profile().name.startswith("llvmpipe"):
        pytest.skip("LP_NATIVE_VECTOR_WIDTH is lavapipe's own")
    sample = ["tests/calls/test_contract.py", "-k", "test_sample and (t33s or t1s) and not bf16"]
    passes(sample, LP_NATIVE_VECTOR_WIDTH=str(width))


@pytest.mark.parametrize("family", ["flash_tiled", "decode", "plain"])
def test_gpu_families_within_the_default_limits(family: str) -> None:
    """8 storage buffers, 16 KiB of workgroup memory, 256 invocations, no f16, no subgroups."""
    words = (
        "causal or bias or mask or rope or segments or key_lengths or half_precision or head_dims or many_workgroups"
    )
    passes(
        ["tests/kernels/attention/test_families.py", "-k", f"({words}) and {family} and not lanes and not subgroups"],
        WGATTN_LIMITS="minimum",
    )


def test_the_contract_within_the_default_limits() -> None:
    """Whole calls on such a device: what is chosen there has no subgroups.

    https://github.com/Visionary-Laboratory/visionary/issues/1: float16 without shader-f16
    """
    passes(["tests/calls/test_contract.py", "-k", "test_sample and (t17s or t1s)"], WGATTN_LIMITS="minimum")
