"""The choice of a family: who serves what, the reasons, the names, and the limits that a variant keeps. No device."""

import re
import struct
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.kernels.attention.problems import CALLS, CPU, DISCRETE, MINIMUM, PROFILES, grid, problem_of
from wgattn import nn
from wgattn._dtypes import float16, float32
from wgattn._errors import UnsupportedError
from wgattn._kernels.attention import decode, decode_subgroups, flash_matrix, flash_tiled
from wgattn._kernels.attention.backward.choose import FAMILIES as BACKWARD
from wgattn._kernels.attention.backward.problem import GradientProblem
from wgattn._kernels.attention.choose import FAMILIES, IMPLEMENTATIONS, choose
from wgattn._kernels.attention.families import pick
from wgattn._kernels.attention.launches import splits_for
from wgattn._kernels.attention.problem import HEAD_DIMS, Bound, Call, describe
from wgattn._kernels.compose import compose
from wgattn._kernels.kernel import Launch, Operand, Variant, natural_strides
from wgattn._kernels.matrices import CONFIGURATION, EIGHT_COLUMNS
from wgattn._runtime.profile import DeviceProfile, Limits

GRID = dict(grid())
UNITS = replace(DISCRETE, matrix=(CONFIGURATION, EIGHT_COLUMNS), subgroup_most=32)
FULL = Call()


def variants(problem_name: str) -> list[tuple[DeviceProfile, Variant]]:
    """Every variant that any profile has for a problem, whole and partial."""
    problem = GRID[problem_name]
    return [
        (profile, family.variant(problem, profile, partial))
        for profile in PROFILES.values()
        for family in FAMILIES
        if family.supports(problem, profile)
        for partial in (False, True)
    ]


@pytest.mark.parametrize(
    ("T", "profile", "family"),
    [
        (1, DISCRETE, "decode_subgroups"),
        (1, MINIMUM, "decode"),
        (2, DISCRETE, "flash_tiled"),
        (300, DISCRETE, "flash_tiled"),
        (300, MINIMUM, "flash_tiled"),
    ],
    ids=["one-discrete", "one-minimum", "few-discrete", "many-discrete", "many-minimum"],
)
def test_family_of_a_gpu(T: int, profile: DeviceProfile, family: str) -> None:
    variant = choose(problem_of(FULL, T=T), profile)
    assert variant.family == family
    assert variant.reason


def test_cpu_adapter_passes_over_decode() -> None:
    """Its workgroup memory is slow there, even where no family of CPU adapters serves; by name it still runs."""
    problem, bare = problem_of(FULL, T=1), replace(CPU, subgroups=False, subgroup_size=None)
    assert choose(problem, CPU).family == "decode_lanes"
    variant = choose(problem, bare)
    assert variant.family == "flash_tiled"
    assert "CPU adapter" in dict(variant.passed)["decode"]
    assert choose(problem, bare, "decode").family == "decode"


def test_passed_over_families_have_reasons() -> None:
    variant = choose(problem_of(FULL, H=300, Hv=300), DISCRETE)
    assert variant.family == "plain"
    assert [name for name, _ in variant.passed] == [family.name for family in FAMILIES[:-1]]
    assert "256" in dict(variant.passed)["flash_tiled"]


def test_named_family_that_cannot_serve() -> None:
    with pytest.raises(UnsupportedError, match=r"'decode' cannot serve this call: .*T = 1.*implementation=None"):
        choose(problem_of(FULL, T=5), DISCRETE, "decode")
    with pytest.raises(UnsupportedError, match="no attention family 'flash_tilde'; the families are"):
        choose(problem_of(FULL), DISCRETE, "flash_tilde")


def test_the_call_says_which_families_there_are() -> None:
    (said,) = re.findall(r"implementation: None, or (.*?)\.", nn.dot_product_attention.__doc__ or "", re.DOTALL)
    assert set(re.findall(r"\w+", said.partition(":")[2])) - {"or"} == set(IMPLEMENTATIONS)


@pytest.mark.parametrize("name", GRID)
def test_variants_keep_the_limits(name: str) -> None:
    for profile, variant in variants(name):
        size = dict(variant.constants).get("WORKGROUP", profile.subgroup_size)
        assert variant.workgroup_bytes <= profile.limits.workgroup_bytes, variant.name
        assert size <= profile.limits.invocations, variant.name
        buffers = sum(binding.access in ("read", "write") for binding in variant.bindings)
        assert buffers <= Limits().storage_buffers, variant.name


def test_equal_names_mean_equal_shaders() -> None:
    texts: dict[str, str] = {}
    for name in GRID:
        for _, variant in variants(name):
            text = compose(variant)
            assert texts.setdefault(variant.name, text) == text, variant.name
    assert len(texts) > len(GRID)


@pytest.mark.parametrize("name", GRID)
def test_choice_is_pure(name: str) -> None:
    for profile in PROFILES.values():
        assert choose(GRID[name], profile) == choose(replace(GRID[name]), replace(profile))


@pytest.mark.parametrize("value_dim", HEAD_DIMS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("family", [decode, flash_tiled], ids=["decode", "flash_tiled"])
def test_least_device_is_served(family: ModuleType, head_dim: int, value_dim: int) -> None:
    """16 KiB of workgroup memory and 256 invocations are enough for any head dims up to 256."""
    for G in (1, 4, 9):
        problem = problem_of(FULL, T=1, G=G, H=head_dim, Hv=value_dim)
        assert family.supports(problem, MINIMUM), family.supports(problem, MINIMUM).reason
        assert family.variant(problem, MINIMUM).workgroup_bytes <= 16384


def test_larger_tiles_where_there_is_room() -> None:
    problem = problem_of(FULL, H=128, Hv=128)
    least, most = (flash_tiled.tile_of(problem, profile) for profile in (MINIMUM, DISCRETE))
    assert least is not None
    assert most is not None
    assert least.dims < most.dims


@pytest.mark.parametrize(("head_dim", "most"), [(64, 3136), (128, 2112)])
def test_smaller_tiles_where_rows_are_few(head_dim: int, most: int) -> None:
    """So that a large GPU has a workgroup for each of its multiprocessors; what was tuned for one says nothing of the
    other."""
    few, many = (problem_of(FULL, T=T, H=head_dim, Hv=head_dim, query=float16, cache=float16) for T in (most, most + 1))
    assert (few.small, many.small) == (True, False)
    tiles = [flash_matrix.tile_of(problem, UNITS) for problem in (few, many)]
    assert [tile and tile.rows for tile in tiles] == [64, 128]
    tuned = replace(UNITS, tuned=((f"flash_matrix_h{head_dim}_small", 3),))
    assert flash_matrix.tile_of(few, tuned) == flash_matrix.TILES[3]
    assert flash_matrix.tile_of(many, tuned) == tiles[1]


@pytest.mark.parametrize(
    ("T", "S", "dtype", "small"),
    [
        (256, 1023, float16, True),
        (256, 1024, float16, False),
        (64, 4096, float16, True),
        (65, 65, float16, True),
        (2112, 2112, float16, True),
        (2113, 2113, float16, False),
        (1024, 1024, float32, True),
        (1025, 1025, float32, False),
    ],
)
def test_many_keys_are_split_for_large_tiles(T: int, S: int, dtype: np.dtype[Any], small: bool) -> None:
    """Large tiles read keys less often, and parts of the keys fill the device as well as small tiles do; up to 64 rows
    they would be half empty."""
    shapes = {name: (1, 1, S if name in ("key", "value") else T, 8, 128) for name in ("query", "key", "value", "out")}
    operands = {name: Operand(dtype, shape, natural_strides(shape)) for name, shape in shapes.items()}
    assert describe(FULL, operands).small == small


def test_rows_are_reduced_by_shuffles_where_subgroups_are_wide_enough() -> None:
    problem = problem_of(FULL, H=128, Hv=128)
    wide, narrow = (flash_tiled.variant(problem, replace(DISCRETE, subgroup_least=lanes)) for lanes in (32, 16))
    assert wide.features == {"subgroup"}
    assert narrow.features == set()
    assert wide.name != narrow.name
    assert wide.workgroup_bytes < narrow.workgroup_bytes


def test_tuned_tile() -> None:
    device = replace(DISCRETE, tuned=(("flash_tiled_h64", 2),))
    assert flash_tiled.tile_of(problem_of(FULL), device) == flash_tiled.TILES[2]


@pytest.mark.parametrize(("T", "G"), [(1, 4), (8, 4), (300, 1)])
@pytest.mark.parametrize("profile", [*PROFILES.values(), UNITS], ids=[*PROFILES, "matrix units"])
def test_candidates_are_taken_and_told(profile: DeviceProfile, T: int, G: int) -> None:
    """Each is one more variant or plan that keeps the limits; what is no candidate changes nothing."""
    problem = problem_of(FULL, T=T, G=G, query=float16, cache=float16)
    sweep = replace(problem, queries="many", residual=None, empty_rows=None)
    backward = GradientProblem(problem, sweep, ("query", "key", "value"), float16, True)
    for families, given in ((FAMILIES, problem), (BACKWARD, backward)):
        for family in families:
            if not family.supports(given, profile):
                continue
            rule = pick(families, given, profile, family.name)
            found = family.candidates(given, profile)
            assert len(set(found)) == len(found)
            for constant in found:
                device = replace(profile, tuned=(constant,))
                variant = pick(families, given, device, family.name)
                assert variant.reason == f"{rule.reason}; tuned on this device: {constant[0]} {constant[1]}"
                assert variant.workgroup_bytes <= profile.limits.workgroup_bytes
                assert dict(variant.constants).get("WORKGROUP", 1) <= profile.limits.invocations
            for key in dict(found):
                assert pick(families, given, replace(profile, tuned=((key, 99),)), family.name) == rule


def test_splits_fill_a_device_and_no_more() -> None:
    assert splits_for(8, 32768, 256, DISCRETE) == 128
    assert splits_for(8, 1000, 256, DISCRETE) == 3
    assert splits_for(8, 100, 256, DISCRETE) == 1
    assert splits_for(70_000, 32768, 256, DISCRETE) == 1
    assert splits_for(1, 32768, 256, CPU) == 1
    assert splits_for(8, 32768, 256, replace(DISCRETE, tuned=(("workgroups", 64),))) == 8
    assert splits_for(8, 32768, 256, DISCRETE, size=4) == 32
    assert splits_for(48, 32768, 256, DISCRETE, size=1.5, halves=True) == 8  # of 14


@pytest.mark.parametrize(
    ("T", "S", "N", "K", "H", "causal", "parts"),
    [
        (512, 512, 16, 16, 64, False, 2),
        (512, 512, 16, 16, 64, True, 4),
        (128, 128, 32, 8, 128, True, 2),
        (512, 512, 32, 8, 128, True, 2),
        (256, 4096, 32, 8, 128, True, 2),
        (4, 4096, 32, 8, 128, True, 64),
        (4096, 4096, 16, 16, 64, True, 1),
    ],
)
def test_blocks_of_rows_are_split_until_they_fill_a_device(
    T: int, S: int, N: int, K: int, H: int, causal: bool, parts: int
) -> None:
    """Parts that were the fastest on a GPU of 132 multiprocessors, or within 3 % of those."""
    shapes = {"query": (1, 1, T, N, H), "key": (1, 1, S, K, H), "value": (1, 1, S, K, H), "out": (1, 1, T, N, H)}
    operands = {name: Operand(float32, shape, natural_strides(shape)) for name, shape in shapes.items()}
    call = replace(FULL, clauses=((Bound("upper", "diagonal", S - T),),)) if causal else FULL
    plan = flash_tiled.plan(describe(call, operands), call, operands, DISCRETE)
    (launch,) = (step for step in plan.steps if isinstance(step, Launch) and step.variant.family == "flash_tiled")
    at = [name for name, _ in launch.variant.parameters.fields].index("parts")
    assert struct.unpack_from("<I", launch.parameters, 4 * at) == (parts,)


def test_each_box_of_a_call_fills_the_device() -> None:
    """Boxes run one after another: keys of 2 GiB are bound in halves, each worked on by as many workgroups."""
    B, S, N, K, H = 16, 32768, 32, 8, 128
    shapes = {"query": (1, B, 1, N, H), "key": (1, B, S, K, H), "value": (1, B, S, K, H), "out": (1, B, 1, N, H)}
    operands = {name: Operand(float32, shape, natural_strides(shape)) for name, shape in shapes.items()}
    plan = decode_subgroups.plan(describe(FULL, operands), FULL, operands, DISCRETE)
    launches = [step for step in plan.steps if isinstance(step, Launch) and step.variant.family == "decode_subgroups"]
    assert [launch.workgroups for launch in launches] == [(1024, 1, 1)] * 2


def test_calls_differ_in_name() -> None:
    """Each call of the grid is a problem of its own, so no two may share a variant's name."""
    names = {choose(problem_of(call, beside), DISCRETE).name for call, beside in CALLS.values()}
    assert len(names) == len(CALLS)
