"""What is particular to the families of CPU adapters: strides, folded textures, loop turns, NaN, other subgroups."""

import os
import subprocess
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.kernels.attention.run_attention import reference, weak
from tests.kernels.attention.test_families import compare, inputs, options_of, refused_here
from tests.kernels.run_plan import run_plan
from tests.kernels.test_texture import operand
from tests.tolerance import check
from wgattn import _runtime
from wgattn._dtypes import bfloat16, bool_, float16, float32
from wgattn._errors import UnsupportedError
from wgattn._kernels.attention import decode_lanes, flash_rows
from wgattn._kernels.attention.choose import choose
from wgattn._kernels.attention.problem import AttentionProblem, Bound, Call, describe
from wgattn._kernels.kernel import CopyToTexture, Launch, Operand, Texture, natural_strides
from wgattn._kernels.rotation import Rope
from wgattn._runtime.profile import DeviceProfile

LANES = (flash_rows, decode_lanes)
FAMILY = pytest.mark.parametrize("family", LANES, ids=[family.name for family in LANES])
CPU = DeviceProfile(kind="cpu", subgroups=True, subgroup_size=8)


def queries(family: ModuleType, T: int) -> int:
    return T if family is flash_rows else 1


def problem(T: int = 64, S: int = 64, H: int = 64, Hv: int = 64, N: int = 4, K: int = 2) -> AttentionProblem:
    shapes = {"query": (1, 1, T, N, H), "key": (1, 1, S, K, H), "value": (1, 1, S, K, Hv), "out": (1, 1, T, N, Hv)}
    return describe(Call(), {n: Operand(float32, shape, natural_strides(shape)) for n, shape in shapes.items()})


@FAMILY
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16])
@pytest.mark.parametrize("where", ["heads_first", "fused", "sliced"])
@pytest.mark.device
def test_layouts(family: ModuleType, dtype: np.dtype, where: str, poisoned: None) -> None:
    """BNTH, one projection cut along its heads, rows at odd places: copied or gathered, the values are the same."""
    if refused_here(family):
        return
    T, S, N, K, H = queries(family, 21), 21, 4, 2, 128
    arrays = inputs(B=2, T=T, S=S, N=N, K=K, H=H, dtype=dtype)
    bases, views = [], []
    for array in arrays:
        B, L, heads, _ = array.shape
        if where == "heads_first":
            base = np.empty((1, B, heads, L, H), dtype)
            view = base.swapaxes(2, 3)
        elif where == "fused":
            base = np.full((1, B, L, heads + 3, H), np.nan, dtype)
            view = base[:, :, :, 1 : 1 + heads]
        else:
            base = np.full((1, B, L, heads, H + 3), np.nan, dtype)
            view = base[..., 1 : 1 + H]
        view[0] = array
        bases.append(base)
        views.append(view)
    call = Call(clauses=((Bound("upper", "diagonal", S - T),),))
    names = ("query", "key", "value")
    operands = {name: operand(view, base) for name, view, base in zip(names, views, bases, strict=True)}
    shape = (1, 2, T, N, H)
    operands["out"] = Operand(dtype, shape, natural_strides(shape))
    profile = _runtime.current_profile()
    plan = family.plan(describe(call, operands), call, operands, profile)
    copies = [step for step in plan.steps if isinstance(step, CopyToTexture)]
    assert bool(copies) == (where != "sliced")
    out = run_plan(plan, dict(zip(names, bases, strict=True)), {"out": 2 * T * N * H * dtype.itemsize})["out"]
    right, _ = reference(*arrays, is_causal=True, query_offset=np.full(2, S - T, np.int32))
    check(out.view(dtype).reshape(2, T, N, H), right, S=S)


@FAMILY
@pytest.mark.parametrize(("K", "H", "dtype"), [(4, 16, float32), (1, 16, float32), (2, 32, float16)])
@pytest.mark.device
def test_more_keys_than_a_block_of_columns(family: ModuleType, K: int, H: int, dtype: np.dtype, poisoned: None) -> None:
    """Keys past 8,192 tokens lie in the next columns of the texture."""
    arrays = inputs(B=2, T=queries(family, 3), S=9001, N=4, K=K, H=H, dtype=dtype)
    compare(family, arrays, window=(9001, 8995))


@FAMILY
@pytest.mark.parametrize("option", ["full", "causal", "key_lengths", "mask_none", "segments", "sinks", "rope"])
@pytest.mark.device
def test_few_loop_turns(family: ModuleType, option: str, poisoned: None) -> None:
    """A device that ends loops early gets ranges of keys, merged."""
    profile = weak(_runtime.current_profile(), loop_turns=1024 + 40)
    T = queries(family, 40)
    arrays = inputs(B=2, T=T, S=413, H=16)
    compare(family, arrays, profile=profile, **options_of(2, T, 413, 4)[option])


@FAMILY
@pytest.mark.device
def test_wide_textures_are_cut(family: ModuleType, poisoned: None) -> None:
    """Where rows pass the width of a texture, batch entries and heads are worked on in turn."""
    profile = weak(_runtime.current_profile(), texture_2d=20)
    compare(family, inputs(B=3, T=queries(family, 9), S=33, N=8, K=4, H=32), profile=profile, is_causal=True)


@pytest.mark.parametrize("dtype", [bool_, float32, bfloat16], ids=str)
@pytest.mark.device
def test_what_a_mask_and_a_bias_are_broadcast_along(dtype: np.dtype, poisoned: None) -> None:
    """Rows of them lie in textures, once for what they are broadcast along; copied, gathered, or cut where wide.
    Windows start within a texel, and what lies before them is not read."""
    T, N = 70, 4
    query, key, value = inputs(B=2, T=T, S=301, H=16)
    key[:, :5] = value[:, :5] = np.nan
    profile = _runtime.current_profile()
    options: dict[str, Any] = {"window": (4, 200), "query_offset": np.array([9, 90], np.int32)}
    for sizes in ((2, 1, T), (1, N, 1), (2, N, T)):
        for S, limits in ((301, profile), (256, profile), (301, weak(profile, texture_2d=80))):
            dense = inputs(B=sizes[0], T=sizes[1] * sizes[2], N=1, H=S)[0].reshape(*sizes, S)
            dense = dense > -0.5 if dtype == bool_ else dense.astype(dtype)
            given = {"mask" if dtype == bool_ else "bias": dense, "profile": limits}
            compare(flash_rows, (query, key[:, :S], value[:, :S]), **options, **given)


@pytest.mark.device
def test_a_bias_of_one_of_two_batch_axes(poisoned: None) -> None:
    """Along the other it is broadcast."""
    B0, B1, T, S, N = 2, 3, 9, 64, 4
    query, key, value = inputs(B=B0 * B1, T=T, S=S, N=N, K=2, H=16)
    bias = np.random.default_rng(1).standard_normal((B1, N, T, S), np.float32)
    shapes = {"query": (B0, B1, T, N, 16), "key": (B0, B1, S, 2, 16), "value": (B0, B1, S, 2, 16)}
    shapes["out"] = shapes["query"]
    operands = {name: Operand(float32, shape, natural_strides(shape)) for name, shape in shapes.items()}
    operands["bias"] = Operand(float32, (B0, B1, N, T, S), (0, *natural_strides(bias.shape)))
    given = {"query": query, "key": key, "value": value, "bias": bias}
    profile = _runtime.current_profile()
    if refused_here(flash_rows):
        return
    plan = flash_rows.plan(describe(Call(), operands), Call(), operands, profile)
    out = run_plan(plan, given, {"out": query.nbytes})["out"].view(np.float32).reshape(query.shape)
    right, _ = reference(query, key, value, bias=np.concatenate([bias, bias]))
    check(out, right, S=S)


def test_heads_of_a_bias_are_copied_at_once() -> None:
    """Batch entries and heads that lie one behind the other, in one copy."""
    shapes = dict.fromkeys(("query", "key", "value", "out"), (1, 3, 64, 4, 64))
    operands = {name: Operand(float32, shape, natural_strides(shape)) for name, shape in shapes.items()}
    shape = (1, 3, 4, 64, 64)
    operands["bias"] = Operand(float32, shape, natural_strides(shape))
    plan = flash_rows.plan(describe(Call(), operands), Call(), operands, weak(CPU, texture_2d=16384))
    assert [step.destination for step in plan.steps if isinstance(step, CopyToTexture)].count("bias_texels") == 1


@pytest.mark.device
def test_a_mask_whose_keys_do_not_lie_side_by_side_stays_in_its_buffer(poisoned: None) -> None:
    arrays = inputs(B=2, T=20, S=37, H=16)
    mask = np.arange(2 * 4 * 20).reshape(2, 4, 20, 1) % 3 > 0
    compare(flash_rows, arrays, mask=mask, bias=inputs(B=1, T=4 * 20, N=1, H=37)[0].reshape(1, 4, 20, 37))


def test_where_a_mask_is_read_from() -> None:
    """From a texture where the device binds one more; the reason says so, and what keeps it in a buffer."""
    given = replace(problem(), bias=float32, mask=True, dense_rows=("bias", "mask"))
    reason = flash_rows.variant(given, CPU).reason
    assert reason.endswith("bias from a texture; mask from a buffer, slowly: the device binds no more textures")
    many = weak(CPU, storage_textures=5)
    assert flash_rows.variant(given, many).reason.endswith("; bias from a texture; mask from a texture")
    apart = flash_rows.variant(replace(given, dense_rows=("bias",)), many)
    assert apart.reason.endswith("mask from a buffer, slowly: its keys do not lie side by side")


def test_keys_are_filled_once_for_several_boxes_of_rows() -> None:
    """A bias of many rows is worked on in turn, a part at a time in its texture; keys and values stay in theirs."""
    T, S = 8192, 4096
    shapes = {"query": (1, 1, T, 1, 64), "key": (1, 1, S, 1, 64), "value": (1, 1, S, 1, 64), "out": (1, 1, T, 1, 64)}
    operands = {name: Operand(float32, shape, natural_strides(shape)) for name, shape in shapes.items()}
    operands["bias"] = Operand(float32, (1, 1, 1, T, S), natural_strides((1, 1, 1, T, S)))
    profile = weak(CPU, texture_2d=16384)
    plan = flash_rows.plan(describe(Call(), operands), Call(), operands, profile)
    filled = [step.destination for step in plan.steps if isinstance(step, CopyToTexture)]
    assert filled.count("bias_texels") == filled.count("query_texels") == 4
    assert filled.count("key_texels") == filled.count("value_texels") == 1
    made = plan.scratch["bias_texels"]
    assert isinstance(made, Texture)
    assert made.width * made.height * 16 == 32 << 20


def test_one_row_for_all_queries_is_rotated_for_each_box_of_rows() -> None:
    """A query that is broadcast along T is the same in all boxes; turned to its positions it is not."""
    T, S, natural = 8192, 4096, natural_strides
    shapes = {"query": (1, 1, T, 1, 64), "key": (1, 1, S, 1, 64), "value": (1, 1, S, 1, 64), "out": (1, 1, T, 1, 64)}
    operands = {name: Operand(float32, shape, natural(shape)) for name, shape in shapes.items()}
    operands["query"] = replace(operands["query"], strides=(64, 64, 0, 64, 1))
    operands["bias"] = Operand(float32, (1, 1, 1, T, S), natural((1, 1, 1, T, S)))
    for rope, filled in ((None, 1), (Rope(), 4)):
        call = Call(rope=rope)
        plan = flash_rows.plan(describe(call, operands), call, operands, weak(CPU, texture_2d=16384))
        gathered = [
            step for step in plan.steps if isinstance(step, Launch) and "query_texels" in step.resources.values()
        ]
        written = [step for step in gathered if step.variant.family != "flash_rows"]
        copies = [step for step in plan.steps if isinstance(step, CopyToTexture) and step.destination == "query_texels"]
        assert len(written) + len(copies) == filled


@FAMILY
@pytest.mark.parametrize(("N", "K"), [(7, 1), (12, 1), (20, 2)])
@pytest.mark.device
def test_groups(family: ModuleType, N: int, K: int, poisoned: None) -> None:
    """Groups that no subgroup and no share of eight divides."""
    compare(family, inputs(B=2, T=queries(family, 11), S=40, N=N, K=K, H=16), is_causal=True)


@FAMILY
@pytest.mark.device
def test_nan_past_the_length(family: ModuleType, poisoned: None) -> None:
    """An unwritten cache tail reaches no row that keeps a key."""
    query, key, value = inputs(B=3, T=queries(family, 10), S=37)
    lengths = np.array([37, 9, 16], np.int32)
    for b, length in enumerate(lengths):
        key[b, length:], value[b, length:] = np.nan, np.inf
    compare(family, (query, key, value), key_value_lengths=lengths)


@FAMILY
@pytest.mark.device
def test_nan_stays_in_its_row(family: ModuleType, poisoned: None) -> None:
    """NaN in a query, in a key that a mask hides, in a kept value: nobody else sees it."""
    query, key, value = inputs(B=2, T=queries(family, 10), S=37)
    query[0, 0, 1] = np.nan
    key[1, 5] = np.nan
    value[0, 3, 0, 2] = np.nan
    mask = np.ones((2, 1, 1, 37), bool)
    mask[:, :, :, 5] = False
    compare(family, (query, key, value), mask=mask)


@FAMILY
@pytest.mark.device
def test_nan_in_v_counts_in_the_mean(family: ModuleType, poisoned: None) -> None:
    """A row that keeps no key is the mean of V over all keys, those past the length too."""
    query, key, value = inputs(B=2, T=queries(family, 10), S=37)
    value[0, 36, 1, 3] = np.nan
    compare(family, (query, key, value), key_value_lengths=np.zeros(2, np.int32))


@FAMILY
@pytest.mark.device
def test_mixed_dtypes(family: ModuleType, poisoned: None) -> None:
    """Each operand is unpacked by its own dtype; rotated ones are textures of float32."""
    query, key, value = inputs(T=queries(family, 10), S=50, H=40)
    mixed = query, key.astype(np.float16), value.astype(bfloat16)
    options = options_of(1, query.shape[1], 50, 4)
    compare(family, mixed)
    compare(family, mixed, **options["rope"])


@FAMILY
@pytest.mark.device
def test_splits_of_a_long_cache(family: ModuleType, poisoned: None) -> None:
    """Enough keys for few rows that they are worked on in parts, a ragged last one and empty ones among them."""
    arrays = inputs(B=1, T=queries(family, 2), S=3001, N=4, K=1, H=32)
    compare(family, arrays)
    compare(family, arrays, key_value_lengths=np.array([700], np.int32))
    compare(family, arrays, key_value_lengths=np.array([0], np.int32))


@pytest.mark.device
@pytest.mark.parametrize("width", [128, 512])
def test_other_subgroups(width: int) -> None:
    """Subgroups of 4 and 16 lanes, which the driver makes when it is told so before it starts."""
    if refused_here(flash_rows):
        return
    program = (
        "from tests.kernels.attention.test_cpu_families import *\n"
        "from tests.kernels.attention import test_cpu_caches as cached\n"
        "from wgattn import _runtime\n"
        f"assert _runtime.current_profile().subgroup_size == {width // 32}\n"
        "for family in LANES:\n"
        "    T = queries(family, 19)\n"
        "    compare(family, inputs(B=2, T=T, H=16), **options_of(2, T, 37, 4)['segments'])\n"
        "    for dtype in ('f32', 'i4'):\n"
        "        cached.compare(family, cached.cache_of(dtype, [24, 0, 5], 24, page_size=8))\n"
    )
    environment = {**os.environ, "LP_NATIVE_VECTOR_WIDTH": str(width)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_choice() -> None:
    """CPU adapters with subgroups take these two; GPUs do not, and a call that names one is told why."""
    assert choose(problem(), CPU).family == "flash_rows"
    assert choose(problem(T=1), CPU).family == "decode_lanes"
    gpu = replace(CPU, kind="discrete")
    for family in LANES:
        assert choose(problem(T=1), gpu).family != family.name
        with pytest.raises(UnsupportedError, match="CPU adapters"):
            choose(problem(T=1), gpu, family.name)
        with pytest.raises(UnsupportedError, match="subgroups of 4, 8 or 16"):
            choose(problem(T=1), replace(CPU, subgroup_size=None), family.name)
        with pytest.raises(UnsupportedError, match="head dims up to 256"):
            choose(problem(T=1, H=272), CPU, family.name)
    with pytest.raises(UnsupportedError, match="T = 1"):
        choose(problem(T=2), CPU, "decode_lanes")


@pytest.mark.parametrize(
    ("T", "H", "rows"), [(1, 64, 1), (16, 64, 1), (256, 64, 2), (512, 64, 3), (512, 128, 2), (512, 256, 1)]
)
def test_rows_a_lane(T: int, H: int, rows: int) -> None:
    """Fewer where there are few, and where the shader would take long to compile."""
    assert flash_rows.rows_a_lane(problem(T=T, H=H, Hv=H, N=2), 8) == rows


@pytest.mark.parametrize(("group", "heads"), [(1, 1), (4, 4), (8, 8), (9, 5), (12, 6), (20, 7)])
def test_heads_at_once(group: int, heads: int) -> None:
    assert decode_lanes.heads_at_once(group) == heads


@pytest.mark.parametrize(("heads", "sharing", "count"), [(4, 8, 1), (8, 8, 1), (5, 4, 2), (3, 1, 4), (1, 8, 1)])
def test_each_lane_owns_the_logits_of_some_heads(heads: int, sharing: int, count: int) -> None:
    """What an exchange that halves leaves where: each head in the lane, and at the place, that is said of it."""
    owned = decode_lanes.owned(heads, sharing)
    held = {lane: [(head, lane) for head in range(owned.padded)] for lane in range(sharing)}
    for step in owned.scatter:
        half = len(held[0]) // 2
        held = {lane: of[half:] if lane & step else of[:half] for lane, of in held.items()}
    assert owned.count == count
    assert all(held[lane][place][0] == head for head, (place, lane) in enumerate(owned.places))
    for lane, of in held.items():
        first = sum(half for step, half in zip(owned.scatter, owned.halves, strict=True) if lane & step)
        assert [head for head, _ in of] == list(range(first, first + count))
    assert sorted((*owned.scatter, *owned.plain)) == [1 << i for i in range(sharing.bit_length() - 1)]
