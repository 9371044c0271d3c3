"""What array kernels plan, without a device: names and WGSL, bindings, refusals."""

from dataclasses import replace

import numpy as np
import pytest

from wgattn._dtypes import (
    float16,
    float32,
)
from wgattn._errors import UnsupportedError
from wgattn._kernels.array import copy, fill, reduce, rope
from wgattn._kernels.compose import compose
from wgattn._kernels.kernel import Copy, Launch, Operand
from wgattn._kernels.rotation import Rope
from wgattn._runtime.profile import DeviceProfile, Limits

from .grid import every_plan, natural

PROFILE = DeviceProfile()


def test_equal_names_mean_equal_wgsl_and_parameters():
    known: dict[str, tuple] = {}
    for plan in every_plan(PROFILE):
        for step in plan.steps:
            if isinstance(step, Launch):
                found = compose(step.variant), step.variant.bindings, step.variant.parameters
                assert known.setdefault(step.variant.name, found) == found
    assert len(known) > 100


def test_only_what_is_touched_is_bound_from_an_aligned_offset():
    source = Operand(float16, (10, 3), (1000, -2), 5007)
    result = Operand(float32, (10, 3), (3, 1), 999)
    (step,) = copy.plan(source, result, PROFILE).steps
    first, end = (5007 - 4) * 2, (5007 + 9000 + 1) * 2
    assert step.resources["source"].offset == first // 256 * 256
    assert step.resources["source"].offset + step.resources["source"].nbytes == -(-end // 4) * 4
    assert step.resources["result"].offset == 999 * 4 // 256 * 256


def test_contiguous_bytes_are_copied_without_a_shader():
    plan = copy.plan(natural(float16, 3, 4), Operand(float16, (3, 4), (4, 1), 10), PROFILE)
    assert [type(step) for step in plan.steps] == [Copy]
    odd = copy.plan(natural(float16, 3, 4), Operand(float16, (3, 4), (4, 1), 11), PROFILE)
    assert [type(step) for step in odd.steps] == [Launch]


def test_axes_are_merged_so_that_few_variants_serve_many_shapes():
    names = {
        copy.plan(natural(float32, *shape), natural(float16, *shape), PROFILE).steps[0].variant.name
        for shape in [(7,), (2, 3), (2, 3, 5, 7), (1, 1, 9, 1, 1, 1, 1, 3)]
    }
    assert names == {"copy-f32-f16-o0i1"}


def test_a_dtype_without_a_kernel_is_refused():
    with pytest.raises(UnsupportedError, match=r"array kernels; they take float32, float16"):
        copy.plan(natural(np.dtype(np.complex64), 4), natural(float32, 4), PROFILE)


def test_what_cannot_be_bound_is_refused_with_its_size():
    tiny = replace(PROFILE, limits=Limits(binding_bytes=128))
    with pytest.raises(UnsupportedError, match=r"516 bytes is needed; the limit of .* is 128"):
        rope.plan(natural(float32, 1, 1, 129), None, None, natural(float32, 1, 1, 129), Rope(rotary_dim=128), tiny)


def test_a_result_that_lies_over_itself_is_refused():
    with pytest.raises(ValueError, match="lie over itself"):
        copy.plan(natural(float32, 3, 4), Operand(float32, (3, 4), (2, 1)), PROFILE)
    with pytest.raises(ValueError, match="lie over itself"):
        fill.plan(0, Operand(float32, (3,), (0,)), PROFILE)


def test_a_high_rank_is_refused():
    x = natural(float32, *[1] * 9)
    with pytest.raises(UnsupportedError, match="rank 9"):
        copy.plan(x, natural(float16, *[1] * 9), PROFILE)


def test_huge_arrays_are_cut_and_their_addresses_stay_32_bit():
    big = replace(PROFILE, limits=Limits(binding_bytes=1 << 31, buffer_bytes=1 << 34))
    shape = (5, 1 << 30)
    plan = copy.plan(natural(float16, *shape), natural(float32, *shape), big)
    assert len(plan.steps) > 5
    for step in plan.steps:
        assert max(step.workgroups) <= 65535
        assert all(part.nbytes <= 1 << 31 for part in step.resources.values())


def test_scratch_of_a_long_sum_is_small_and_bound_whole():
    plan = reduce.plan(natural(float32, 1 << 20), (0,), natural(float32), 1, PROFILE)
    assert [scratch.nbytes for scratch in plan.scratch.values()] == [4 * 4096, 4 * 64]
    assert len(plan.steps) == 3
