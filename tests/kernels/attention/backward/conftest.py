"""Which backward families a device can be asked for."""

import pytest

from wgattn import _runtime
from wgattn._kernels.attention.backward import lanes


@pytest.fixture(autouse=True)
def _a_device_that_serves(request: pytest.FixtureRequest) -> None:
    """The family for CPU adapters is tested on one; that it refuses a GPU needs no device (test_lanes.py)."""
    if request.node.get_closest_marker("device") is None:
        return
    parameters = getattr(request.node, "callspec", None)
    family = None if parameters is None else parameters.params.get("family")
    of_lanes = family is lanes or request.module.__name__.endswith("test_lanes")
    if of_lanes and not _runtime.current_profile().is_cpu:
        pytest.skip(f"{lanes.name} is for CPU adapters")
