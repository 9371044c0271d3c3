"""Equal names mean equal WGSL: whatever changes in a problem or a device, the name changes, or the shader does not."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.attention.problems import MATRICES, PROFILES, grid
from wgattn._dtypes import bfloat16, float16, float32
from wgattn._kernels.attention import merge
from wgattn._kernels.attention.choose import FAMILIES
from wgattn._kernels.attention.problem import AttentionProblem, KeyRange
from wgattn._kernels.compose import compose
from wgattn._kernels.kernel import Variant
from wgattn._runtime.profile import DeviceProfile, Limits

FLOATS = (float32, float16, bfloat16)
DIMS = (16, 64, 128, 256, 304)
BOTH = (False, True)
LOWER, UPPER = ("lower", "diagonal", False), ("upper", "diagonal", False)
RANGES = [
    KeyRange(clauses, lengths)
    for lengths in BOTH
    for clauses in (
        ((),),
        ((UPPER,),),
        ((LOWER, UPPER),),
        ((("upper", "diagonal", True),),),
        ((("lower", "chunk", False), ("upper", "chunk", False)),),
        ((UPPER,), (("upper", "constant", True),)),
        ((("upper", "constant", True),), (("lower", "diagonal", True), UPPER)),
    )
]
OPERANDS = ("query", "key", "value", "out")
VALUES: dict[str, Any] = {
    "query_dtype": FLOATS,
    "key_dtype": FLOATS,
    "value_dtype": FLOATS,
    "out_dtype": FLOATS,
    "head_dim": DIMS,
    "value_dim": DIMS,
    "exact_dims": BOTH,
    "group": (1, 2, 3, 8, 12),
    "queries": ("one", "few", "short", "many"),
    "small": (True, False),
    "keys": RANGES,
    "bias": (None, *FLOATS),
    "mask": BOTH,
    "query_lengths": BOTH,
    "query_offset": BOTH,
    "sinks": BOTH,
    "softcap": BOTH,
    "run_time_scale": BOTH,
    "segments": BOTH,
    "rope": (None, "half4", "half", "interleaved"),
    "residual": (None, *FLOATS),
    "vectors": ((), OPERANDS, *(tuple(n for n in OPERANDS if n != left) for left in OPERANDS)),
    "empty_rows": (None, "mean", "zero"),
    "paged": BOTH,
    "ring": BOTH,
    "scales": BOTH,
    "dense_rows": ((), ("bias",), ("mask",), ("bias", "mask")),
    "aligned": (0, 4, 8, 16),
}
DEVICES = [
    *PROFILES.values(),
    *(replace(PROFILES["cpu"], subgroup_size=size) for size in (4, 16)),
    *(
        replace(PROFILES["discrete"], limits=Limits(workgroup_bytes=size, invocations=most))
        for size, most in ((16384, 128), (32768, 256), (65536, 1024))
    ),
    MATRICES,
    replace(PROFILES["discrete"], tuned=(("decode_keys", 1), ("flash_tiled_h64", 3))),
]


def variants(problem: AttentionProblem, profile: DeviceProfile) -> Iterator[Variant]:
    for family in FAMILIES:
        if family.supports(problem, profile):
            yield from (family.variant(problem, profile, partial) for partial in BOTH)
    yield merge.variant(problem)
    yield merge.variant(problem, 4)


def check(known: dict[str, Variant], variant: Variant) -> bool:
    """Whether the name was known, for a variant that differs; fails where the shader differs too."""
    other = known.setdefault(variant.name, variant)
    if other == variant:
        return False
    for part in ("bindings", "parameters", "features", "template"):
        assert getattr(other, part) == getattr(variant, part), variant.name
    assert compose(other) == compose(variant), variant.name
    return True


def test_every_field_of_a_problem_is_drawn() -> None:
    assert set(VALUES) == {field.name for field in fields(AttentionProblem)}


@pytest.mark.parametrize("field", VALUES)
def test_a_field_that_changes_the_shader_is_in_the_name(field: str) -> None:
    """Each field alone: problems that differ in nothing else."""
    known: dict[str, Variant] = {}
    profiles = [PROFILES["discrete"], PROFILES["cpu"]]
    for _, problem in list(grid())[::13]:
        for value in VALUES[field]:
            for profile in profiles:
                for variant in variants(replace(problem, **{field: value}), profile):
                    check(known, variant)
    assert len(known) > 20


def test_equal_names_of_drawn_problems_and_devices() -> None:
    """Any fields at once, on devices of every kind."""
    draw = np.random.default_rng(0)
    known: dict[str, Variant] = {}
    shared = 0
    for _ in range(1000):
        # few values a draw are far from the plain ones, so that names meet
        problem = next(iter(grid()))[1]
        for field in draw.choice(list(VALUES), size=draw.integers(0, 6), replace=False):
            values = VALUES[field]
            problem = replace(problem, **{field: values[draw.integers(len(values))]})
        profile = DEVICES[draw.integers(len(DEVICES))]
        shared += sum(check(known, variant) for variant in variants(problem, profile))
    assert shared > 100
