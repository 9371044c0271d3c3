"""How far a result may be from the float64 reference, and the comparison that every test of values uses."""

import numpy as np

from wgattn._reference import RESIDUAL_TOLERANCE, tolerance


def check(
    out: np.ndarray,
    reference: np.ndarray,
    dtype: np.dtype | type | None = None,
    S: int = 1,
    *,
    gradient: bool = False,
    magnitude: float = 1.0,
) -> None:
    """Fail unless `out` is within the contract's tolerance of the float64 reference.

    NaN and infinities must stand at the same places in both. `magnitude` scales the absolute bound for data that is
    not unit-normal: it is the size of the values (of V), as 1 is that of unit-normal ones.
    """
    out = np.asarray(out)
    row = tolerance(out.dtype if dtype is None else dtype, S, gradient)
    given, right = _finite(out, reference)
    off = np.abs(given - right)
    if not off.size:
        return
    worst = np.unravel_index(off.argmax(), off.shape)
    where = f"worst at {tuple(int(i) for i in worst)}: {given[worst]!r} for {right[worst]!r}"
    assert off[worst] <= row.most * magnitude, f"max error {off[worst]:.3g} is above {row.most * magnitude:g}; {where}"
    size = np.linalg.norm(right)
    ratio = np.linalg.norm(given - right) / size if size else 0.0  # zeros have the absolute bound alone
    assert ratio <= row.norm, f"relative error {ratio:.3g} is above {row.norm:g}; {where}"


def check_residual(residual: np.ndarray, reference: np.ndarray) -> None:
    """Fail unless a float32 residual is within 1e-5 of the reference, or one step of float32 where that is more."""
    assert np.asarray(residual).dtype == np.float32, f"the residual is {np.asarray(residual).dtype}, not float32"
    given, right = _finite(residual, reference)
    off = np.abs(given - right)
    with np.errstate(over="ignore"):  # the step above the largest float32
        bound = np.maximum(RESIDUAL_TOLERANCE, _step(right.astype(np.float32)))
    if (off > bound).any():
        worst = np.unravel_index((off / bound).argmax(), off.shape)
        raise AssertionError(f"residual at {tuple(int(i) for i in worst)} is {given[worst]!r} for {right[worst]!r}")


def _step(value: np.ndarray) -> np.ndarray:
    """The distance to the float32 next nearer to 0: `np.spacing` overflows at the largest."""
    return np.abs(value - np.nextafter(value, np.float32(0)))


def _finite(out: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as float64 with what is not finite set to 0, having failed where it differs."""
    given, right = np.asarray(out).astype(np.float64), np.asarray(reference).astype(np.float64)
    assert given.shape == right.shape, f"shape {given.shape}, not {right.shape}"
    for name, found in (("NaN", np.isnan), ("inf", np.isposinf), ("-inf", np.isneginf)):
        differs = found(given) != found(right)
        if differs.any():
            at = tuple(int(i) for i in np.argwhere(differs)[0])
            count = int(differs.sum())
            raise AssertionError(f"{name} on one side only, {count} times; first at {at}: {given[at]} for {right[at]}")
    plain = np.isfinite(right)
    return np.where(plain, given, 0.0), np.where(plain, right, 0.0)
