"""NumPy views as operands, so that NumPy's own indexing says what a kernel must do."""

import numpy as np

from wgattn import _runtime
from wgattn._kernels.kernel import Operand, Plan
from wgattn._runtime.profile import DeviceProfile

from ..run_plan import run_plan


def operand(view: np.ndarray, base: np.ndarray | None = None) -> Operand:
    """How `view` lies in `base`, a contiguous array that is its whole buffer (the view itself unless given)."""
    base = view if base is None else base
    first = view.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    strides = tuple(stride // view.itemsize for stride in view.strides)
    return Operand(view.dtype, view.shape, strides, first // view.itemsize if view.size else 0)


def filled(plan: Plan, sources: dict[str, np.ndarray], result: np.ndarray) -> np.ndarray:
    """What `result`, a contiguous buffer, holds after the plan; it starts out as it is given."""
    if not plan.steps:
        return result
    return run_plan(plan, sources, {"result": result})["result"].view(result.dtype).reshape(result.shape)


def profile() -> DeviceProfile:
    return _runtime.current_profile()


def same(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Bit for bit, but that any NaN equals any other."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    words = {1: np.uint8, 2: np.uint16, 4: np.uint32}[wanted.dtype.itemsize]
    equal = found.view(words) == wanted.view(words)
    if wanted.dtype.kind in "fV":
        equal |= np.isnan(found.astype(np.float32)) & np.isnan(wanted.astype(np.float32))
    return bool(equal.all())
