"""What the tests of kernels on matrix units share."""

from dataclasses import replace

import pytest

from wgattn import _runtime
from wgattn._kernels import matrices
from wgattn._runtime.profile import DeviceProfile


@pytest.fixture
def here(poisoned: None) -> DeviceProfile:
    """This device's profile as a GPU's, with its matrix units; where it has none it says so, and they are emulated."""
    profile = replace(_runtime.current_profile(), kind="discrete")
    support = matrices.supports_matrices(profile)
    if support:
        return profile
    assert "matri" in support.reason or "lanes" in support.reason
    return replace(profile, matrix=(matrices.EMULATED,))
