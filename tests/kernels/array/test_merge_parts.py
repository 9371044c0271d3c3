"""The merge kernel against the reference's merge, over dtypes, layouts, parts that are empty, and small bindings."""

from dataclasses import replace

import numpy as np
import pytest

from wgattn import _reference
from wgattn._dtypes import bfloat16, float16, float32, short_name
from wgattn._kernels.array import merge_parts
from wgattn._kernels.kernel import Operand, natural_strides

from ..run_plan import run_plan
from .views import operand, profile

pytestmark = pytest.mark.device

ATOL = {float32: 2e-6, float16: 1e-3, bfloat16: 1e-2}


def padded(shape, dtype):
    """Rows at whole words, as attention's results lie."""
    pitch = shape[-1] + (shape[-1] % 2 if dtype.itemsize == 2 else 0)
    return Operand(dtype, shape, natural_strides((*shape[:-1], pitch))), pitch


def merged(outputs, residuals, sinks=None, bases=(None, None), limits=None):
    """out and residual of the kernel."""
    _, *lead, Hv = outputs.shape
    given, place = profile(), tuple(lead)
    if limits:
        given = replace(given, limits=replace(given.limits, binding_bytes=limits))
    out, pitch = padded((*place, Hv), outputs.dtype)
    residual = Operand(float32, place, natural_strides(place))
    bases = [x if base is None else base for x, base in zip((outputs, residuals), bases, strict=True)]
    plan = merge_parts.plan(
        operand(outputs, bases[0]),
        operand(residuals, bases[1]),
        None if sinks is None else operand(sinks),
        out,
        residual,
        given,
    )
    sources = {"outputs": bases[0], "residuals": bases[1]} | ({} if sinks is None else {"sinks": sinks})
    rows = int(np.prod(place))
    found = run_plan(plan, sources, {"out": rows * pitch * outputs.dtype.itemsize, "residual": rows * 4})
    flat = found["out"].view(outputs.dtype).reshape(*place, pitch)[..., :Hv]
    return flat.astype(np.float64), found["residual"].view(np.float32).reshape(place), len(plan.steps)


def check(outputs, residuals, sinks=None, **options):
    wanted = _reference.merge(list(outputs), list(residuals), sinks)
    out, residual, steps = merged(outputs, residuals, sinks, **options)
    np.testing.assert_allclose(out, wanted.out, atol=ATOL[outputs.dtype], rtol=0)
    np.testing.assert_allclose(residual, wanted.residual, atol=1e-5, rtol=1e-6)
    return steps


def parts(P=3, lead=(2, 5, 3), Hv=8, dtype=float32, seed=0):
    """Normal parts, a third of their rows without keys: -inf or attention's, beside NaN."""
    r = np.random.default_rng(seed)
    outputs = r.standard_normal((P, *lead, Hv)).astype(dtype)
    residuals = (4 * r.standard_normal((P, *lead))).astype(np.float32)
    kind = r.integers(0, 6, residuals.shape)
    residuals[kind == 0], residuals[kind == 1] = -np.inf, _reference.EMPTY_RESIDUAL
    outputs[kind < 2] = np.nan
    return outputs, residuals


@pytest.mark.parametrize("Hv", [1, 2, 3, 5, 8, 64, 66])
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=short_name)
def test_parts_are_merged(dtype, Hv):
    assert check(*parts(Hv=Hv, dtype=dtype)) == 1
    check(*parts(Hv=Hv, dtype=dtype), sinks=np.array([0.5, -30, -np.inf], np.float32))


def test_one_part_is_itself():
    outputs, residuals = parts(1)
    residuals[:], outputs[:] = 2.5, 7.0
    out, residual, _ = merged(outputs, residuals)
    assert (out == 7).all()
    assert (residual == 2.5).all()


@pytest.mark.parametrize("sinks", [None, np.array([1.5, -2.0], np.float32)])
def test_no_part_keeps_a_key(sinks):
    outputs, residuals = np.full((2, 3, 2, 4), np.nan, np.float32), np.full((2, 3, 2), -np.inf, np.float32)
    residuals[1] = _reference.EMPTY_RESIDUAL
    out, residual, _ = merged(outputs, residuals, sinks)
    assert not out.any()
    assert (np.isneginf(residual) if sinks is None else residual == sinks).all()


def test_residuals_of_any_size():
    outputs, _ = parts(4, (5, 1))
    outputs = np.where(np.isnan(outputs), 1, outputs).astype(np.float32)
    lowest = float(np.finfo(np.float32).min)
    residuals = np.array([[3e38, 1e5, -1e5, lowest, 0], [lowest, 1e5 + 1, -1e5, lowest, -700], [1] * 5, [-50] * 5])
    residuals = residuals[..., None].astype(np.float32)
    residuals[2:, 3] = -np.inf
    check(outputs, residuals)


def test_views_are_read_where_they_lie():
    outputs, residuals = parts(4, (3, 5, 2), 12, float16)
    wide = np.full((5, 4, 2, 3, 17), np.nan, float16)
    seen = wide.transpose(1, 3, 0, 2, 4)[..., 3:15]
    seen[...] = outputs
    turned = np.full((5, 3, 2, 4), np.nan, np.float32)
    rows = turned.transpose(3, 1, 0, 2)[::-1]
    rows[...] = residuals
    check(seen, rows, bases=(wide, turned))


def test_sinks_of_each_entry():
    outputs, residuals = parts(2, (2, 4, 3))
    sinks = np.random.default_rng(1).standard_normal((2, 1, 3)).astype(np.float32)
    check(outputs, residuals, sinks)


@pytest.mark.parametrize("limit", [2048, 768])
@pytest.mark.parametrize("Hv", [16, 7])
def test_parts_that_cannot_be_bound_together(limit, Hv):
    outputs, residuals = parts(5, (2, 9, 3), Hv, float16)
    assert check(outputs, residuals, sinks=np.ones(3, np.float32), limits=limit) > 1


@pytest.mark.parametrize("seed", range(3))
def test_a_nan_stays_in_its_row(seed):
    outputs, residuals = parts(seed=seed)
    residuals[0, 0, 0, 0] = np.nan
    out, residual, _ = merged(outputs, residuals)
    assert np.isnan(out[0, 0, 0]).all()
    assert np.isnan(residual[0, 0, 0])
    assert not np.isnan(out[0, 1:]).any()
