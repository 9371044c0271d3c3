"""A lost device: its Arrays raise for good, host values and fresh calls go on."""

import numpy as np
import pytest

import wgattn as wa
from wgattn import _runtime

pytestmark = pytest.mark.device

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_arrays_of_a_lost_device_stay_dead_and_fresh_calls_work():
    double = wa.jit(lambda x: x * 2)
    there, later = wa.device_put(X), wa.asarray(X) + 1
    recorded = there + 1
    np.testing.assert_array_equal(double(there), X * 2)
    _runtime.device().lose()
    for use in (
        lambda: np.asarray(there),
        lambda: np.asarray(recorded),
        lambda: double(there),
        lambda: there.block_until_ready(),
        lambda: there.is_ready(),
    ):
        for _ in range(2):
            with pytest.raises(wa.DeviceLostError, match="Make them again from their NumPy values"):
                use()
    np.testing.assert_array_equal(later, X + 1)
    np.testing.assert_array_equal(double(X), X * 2)
    np.testing.assert_array_equal(double(wa.device_put(X)), X * 2)
    with pytest.raises(wa.DeviceLostError):
        np.asarray(there)
