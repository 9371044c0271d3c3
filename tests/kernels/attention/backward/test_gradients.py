"""Every backward family against the float64 gradient, option by option, at sizes that cross its tile edges."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.cases import EDGES, HEAD_DIMS
from tests.kernels.attention.backward.run_gradient import plan_of, reference_gradient, run
from tests.kernels.attention.run_attention import reference, slow, weak
from tests.kernels.attention.test_families import OPTIONS, inputs, options_of
from tests.tolerance import check
from wgattn import _reference, _runtime
from wgattn._dtypes import bfloat16, float16, float32
from wgattn._kernels.attention.backward import launches, matrix, plain, tiled
from wgattn._kernels.attention.backward.choose import FAMILIES
from wgattn._kernels.attention.problem import Bound
from wgattn._kernels.kernel import Launch
from wgattn._kernels.rotation import Rope
from wgattn._reference import tolerance

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("poisoned")]
# Of every dtype; what multiplies float16 alone has tests of its own (test_matrix.py).
OF_EVERY_DTYPE = tuple(family for family in FAMILIES if family is not matrix)
FAMILY = pytest.mark.parametrize("family", OF_EVERY_DTYPE, ids=[family.name for family in OF_EVERY_DTYPE])


def drawn(dtype: np.dtype = float32, **sizes: Any) -> tuple[np.ndarray, ...]:
    """grad_out, query, key, value."""
    query, key, value = inputs(dtype=dtype, **sizes)
    shape = (*query.shape[:3], value.shape[3])
    grad_out = np.random.default_rng(11).standard_normal(shape, dtype=np.float32).astype(dtype)
    return grad_out, query, key, value


def compare(family: ModuleType, arrays: tuple[np.ndarray, ...], **options: Any) -> None:
    made = run(family, *arrays, **options)
    right = reference_gradient(*arrays, **options)
    assert {"query", "key", "value"} <= made.keys()
    # A call is as exact as the rows it reads, a result as its dtype: of a bias beside other rows the coarser counts.
    call_dtype = arrays[1].dtype
    for name, gradient in made.items():
        wanted = np.asarray(getattr(right, name)).reshape(gradient.shape)
        if np.linalg.norm(wanted) < 1e-12 * wanted.size:
            wanted = wanted * 0  # 0 but for the rounding of float64: only the absolute bound says anything
        # An absolute bound is for unit-normal data: a gradient that sums over many rows is larger.
        size = max(1.0, float(np.abs(wanted).max(initial=0.0)))
        dtype = max((call_dtype, gradient.dtype), key=lambda each: tolerance(each).norm)
        if name == "scale":
            # One number, the product of q and its unscaled gradient: its terms cancel, so their size is the measure.
            unscaled = np.linalg.norm(right.query / options["scale"])
            terms = float(np.linalg.norm(arrays[1].astype(np.float64)) * unscaled)
            assert abs(float(gradient[0]) - float(wanted[0])) <= tolerance(dtype, gradient=True).norm * terms
            continue
        try:
            check(gradient, wanted, dtype, arrays[2].shape[1], gradient=True, magnitude=size)
        except AssertionError as error:
            raise AssertionError(f"grad_{name}: {error}") from error


@FAMILY
@pytest.mark.parametrize("option", OPTIONS)
def test_option(family: ModuleType, option: str) -> None:
    """Each option alone, two batch entries, ragged last tiles."""
    compare(family, drawn(B=2), **options_of(2, 19, 37, 4)[option])


@FAMILY
@pytest.mark.parametrize("option", ["key_lengths", "mask_none", "bias_infinite", "window_past", "query_lengths"])
def test_rows_without_keys_that_are_zero(family: ModuleType, option: str) -> None:
    """Their residual is -inf and nothing flows through them: as if nothing had been asked of them."""
    arrays, options = drawn(B=2), options_of(2, 19, 37, 4)[option]
    made = run(family, *arrays, **options, empty="zero")
    _, residual = reference(*arrays[1:], **options, empty="zero")
    grad_out = np.where(np.isneginf(residual)[..., None], np.float32(0), arrays[0])
    right = reference_gradient(grad_out, *arrays[1:], **options)
    for name, gradient in made.items():
        check(
            gradient, np.asarray(getattr(right, name)).reshape(gradient.shape), float32, 37, gradient=True, magnitude=4
        )


@FAMILY
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("H", [32, 33])
def test_half_precision(family: ModuleType, dtype: np.dtype, H: int) -> None:
    """16-bit rows, vectorised and not, with a 16-bit bias whose gradient has an odd number of elements."""
    bias = np.random.default_rng(2).standard_normal((1, 1, 19, 37)).astype(dtype)
    compare(family, drawn(H=H, dtype=dtype), is_causal=True, bias=bias)


@FAMILY
@pytest.mark.parametrize(("T", "S"), [(1, 1), (9, 8), (33, 64), (65, 130)])
@pytest.mark.parametrize(("N", "K"), [(1, 1), (6, 2), (8, 1)])
def test_sizes(family: ModuleType, T: int, S: int, N: int, K: int) -> None:
    compare(family, drawn(T=T, S=S, N=N, K=K, H=16), is_causal=True)


@FAMILY
@pytest.mark.parametrize(("H", "Hv"), [(1, 1), (5, 3), (40, 64), (128, 20), (256, 256), (8, 200)])
def test_head_dims(family: ModuleType, H: int, Hv: int) -> None:
    compare(family, drawn(T=9, S=21, H=H, Hv=Hv))


@FAMILY
def test_rope_of_padded_half_rows(family: ModuleType) -> None:
    compare(family, drawn(T=9, S=21, H=38, dtype=float16), rope=Rope(), softcap=2.0, is_causal=True)


@pytest.mark.parametrize("shape", [(2, 4, 19, 37), (2, 1, 1, 37), (1, 4, 1, 1), (1, 1, 19, 1), (1, 1, 1, 1), (37,)])
def test_bias_is_summed_over_broadcast_axes(shape: tuple[int, ...]) -> None:
    bias = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    # Without sinks the gradients of a row add up to 0; strong ones leave a sum that is no small rest of its terms.
    compare(plain, drawn(B=2, H=16), bias=bias, window=(9, 4), sinks=np.linspace(2, 4, 4).astype(np.float32))


@FAMILY
def test_every_option_together(family: ModuleType) -> None:
    """Eight bindings: a bias and a mask beside rope, sinks, lengths, offsets, a softcap and a scale."""
    every = options_of(2, 19, 37, 4)
    names = ("bias", "mask", "key_lengths", "query_lengths", "offset", "softcap", "sinks", "scale", "rope")
    compare(family, drawn(B=2), **{name: value for option in names for name, value in every[option].items()})


@FAMILY
@pytest.mark.parametrize("rope", [None, Rope()], ids=["", "rope"])
def test_nothing_past_the_lengths_is_read(family: ModuleType, rope: Rope | None) -> None:
    """NaN past the lengths, in every operand, reaches no gradient; the gradients there are 0."""
    arrays = drawn(B=2, T=40, S=70)
    queries, keys = np.array([33, 0], np.int32), np.array([50, 7], np.int32)
    for array, lengths in zip(arrays, (queries, queries, keys, keys), strict=True):
        for b, length in enumerate(lengths):
            array[b, length:] = np.nan
    made = run(family, *arrays, query_lengths=queries, key_value_lengths=keys, is_causal=True, rope=rope)
    right = reference_gradient(*arrays, query_lengths=queries, key_value_lengths=keys, is_causal=True, rope=rope)
    for name in ("query", "key", "value"):
        check(made[name], getattr(right, name), S=70, gradient=True, magnitude=4.0)
    assert not made["query"][0, 33:].any()
    assert not made["key"][0, 50:].any()
    assert not made["value"][0, 50:].any()


@FAMILY
@pytest.mark.parametrize(
    "option", ["full", "causal", "mask_none", "key_lengths", "bias", "sinks", "segments", "rope", "scale"]
)
def test_split_by_binding_limit(family: ModuleType, option: str) -> None:
    """Operands larger than a binding: ranges of keys and of rows, whose sums are added up in turn."""
    profile = weak(_runtime.current_profile(), binding_bytes=48 * 1024)
    compare(family, drawn(B=2, T=70, S=300, H=64), profile=profile, **options_of(2, 70, 300, 4)[option])


@pytest.mark.parametrize("family", [tiled, plain], ids=["tiled", "plain"])
@pytest.mark.parametrize("option", ["causal", "sinks_empty", "query_lengths", "bias", "scale", "rope"])
def test_long_calls_are_cut(family: ModuleType, option: str) -> None:
    """What would hold a GPU for long is several dispatches, whose sums over rows and query heads are added up."""
    profile = weak(replace(_runtime.current_profile(), kind="discrete"))
    sizes: dict[str, Any] = {"B": 2, "T": 70, "S": 41, "N": 6, "K": 2, "H": 16}
    arrays, options = drawn(**sizes), options_of(2, 70, 41, 6)[option]
    slowness = max(getattr(family, "SLOWNESS", launches.SLOWNESS), launches.SCORED_SLOWLY * (option == "bias"))
    for boxes in (3, 20):
        work = 2 * 6 * 70 * 41 * 32
        compare(family, arrays, profile=slow(profile, slowness * work // boxes), **options)


@pytest.mark.parametrize("family", [tiled, plain], ids=["tiled", "plain"])
def test_a_row_and_head_a_dispatch(family: ModuleType) -> None:
    profile = slow(weak(replace(_runtime.current_profile(), kind="discrete")), 1)
    bias = np.random.default_rng(3).standard_normal((1, 4, 1, 21)).astype(np.float32)
    made = plan_of(family, *drawn(T=5, S=21, H=16), bias=bias, profile=profile)
    swept = [step.variant.name for step in made.plan.steps if isinstance(step, Launch)]
    assert sum(name.startswith(f"{family.name}_key_value") for name in swept) == 5 * 4
    compare(family, drawn(T=5, S=21, H=16), bias=bias, profile=profile)


@FAMILY
@pytest.mark.parametrize("option", ["causal", "bias"])
def test_few_loop_turns(family: ModuleType, option: str) -> None:
    """A device that ends loops early gets short ranges of keys and rows."""
    profile = weak(_runtime.current_profile(), loop_turns=5000)
    compare(family, drawn(T=150, S=140, H=64), profile=profile, **options_of(1, 150, 140, 4)[option])


@FAMILY
def test_many_workgroups(family: ModuleType) -> None:
    """A grid that must be folded, on a device of WebGPU's least limits."""
    profile = weak(_runtime.current_profile(), workgroups_per_dimension=7, workgroup_bytes=16384, invocations=256)
    compare(family, drawn(B=3, T=20, S=20, H=64), profile=profile, bias=np.zeros((3, 1, 20, 20), np.float32))


@FAMILY
@pytest.mark.parametrize("wanted", [("query",), ("key",), ("value", "sinks"), ("bias",), ("scale",)])
def test_only_what_is_wanted(family: ModuleType, wanted: tuple[str, ...]) -> None:
    options = options_of(1, 9, 12, 4)["bias"] | options_of(1, 9, 12, 4)["sinks"] | {"scale": 0.2}
    arrays = drawn(T=9, S=12)
    made = run(family, *arrays, wanted=wanted, **options)
    assert made.keys() == set(wanted)
    for name in wanted:
        right = np.asarray(getattr(reference_gradient(*arrays, **options), name)).reshape(made[name].shape)
        check(made[name], right, gradient=True, magnitude=max(1.0, float(np.abs(right).max())))


@FAMILY
def test_the_same_bits_every_run(family: ModuleType) -> None:
    options = options_of(2, 40, 50, 4)["bias"] | options_of(2, 40, 50, 4)["sinks"] | {"scale": 0.2}
    first, second = (run(family, *drawn(B=2, T=40, S=50), **options) for _ in range(2))
    for name, gradient in first.items():
        assert gradient.tobytes() == second[name].tobytes(), name


@FAMILY
@pytest.mark.parametrize("loop_turns", [65535, 1100])
def test_far_residuals(family: ModuleType, loop_turns: int) -> None:
    """Rows whose whole bias is far from 0 keep their precision, with sinks that are near it or far too."""
    profile = weak(_runtime.current_profile(), loop_turns=loop_turns)
    sinks = np.array([0, 2.0**14, 1, -5], np.float32)
    draw = np.random.default_rng(4)
    bias = draw.standard_normal((1, 4, 19, 37)).astype(np.float32)
    bias[:, 1] += 2.0**14
    bias[:, 2, ::2] = -(2.0**20)
    # No scores: float32 would round them to whole steps of such a bias.
    grad_out, query, key, value = drawn()
    arrays, options = (grad_out, query * 0, key, value), {"bias": np.round(bias), "sinks": sinks}
    made = run(family, *arrays, profile=profile, **options)
    right = reference_gradient(*arrays, **options)
    for name in ("key", "value", "bias", "sinks"):
        check(made[name], getattr(right, name), gradient=True, magnitude=8.0)


@FAMILY
def test_two_batch_axes_and_shared_keys(family: ModuleType) -> None:
    """One dispatch over two batch axes, whose keys and values are one entry's: a gradient for each."""
    arrays = drawn(B=6)
    bias = np.random.default_rng(5).standard_normal((6, 1, 19, 37)).astype(np.float32)
    options = {"bias": bias, "is_causal": True, "query_offset": np.arange(6, dtype=np.int32)}
    compare(family, arrays, batch=(2, 3), **options)
    grad_out, query, key, value = arrays
    made = run(family, grad_out, query, key[:1], value[:1], batch=(2, 3), **options)
    right = reference_gradient(grad_out, query, *(np.broadcast_to(x[:1], x.shape) for x in (key, value)), **options)
    for name, gradient in made.items():
        check(gradient, getattr(right, name), gradient=True, magnitude=4.0)


@FAMILY
def test_boxes_of_two_batch_axes(family: ModuleType) -> None:
    """Batch entries, heads, rows and keys in launches of their own, with every gradient that sums over them."""
    profile = weak(_runtime.current_profile(), binding_bytes=12 * 1024)
    draw = np.random.default_rng(6)
    options = {
        "bias": draw.standard_normal((1, 4, 1, 37)).astype(np.float32),
        "sinks": draw.standard_normal(4).astype(np.float32),
        "query_lengths": np.array([19, 18, 0, 7, 30, 1], np.int32),
        "scale": 0.3,
    }
    compare(family, drawn(B=6), batch=(2, 3), profile=profile, is_causal=True, **options)


@FAMILY
@pytest.mark.parametrize("far", [None, 0.0, 2.0**14], ids=["", "bias", "far_bias"])
def test_sinks_of_each_batch_entry(family: ModuleType, far: float | None) -> None:
    """(B, N): a gradient for each head of each entry, over two batch axes whole and in boxes."""
    sinks = np.linspace(-2, 3, 24, dtype=np.float32).reshape(6, 4)
    options: dict[str, Any] = {"sinks": sinks, "query_lengths": np.array([19, 18, 0, 7, 30, 1], np.int32)}
    if far is not None:
        options["bias"] = np.full((1, 4, 19, 37), far, np.float32)
        sinks[:, 1:] += far
    arrays = drawn(B=6)
    if far:
        arrays = (arrays[0], arrays[1] * 0, *arrays[2:])  # no scores: float32 would round them to steps of the bias
    compare(family, arrays, batch=(2, 3), **options)
    compare(family, arrays, batch=(2, 3), profile=weak(_runtime.current_profile(), binding_bytes=12 * 1024), **options)


@FAMILY
def test_a_prefix_or_a_window(family: ModuleType) -> None:
    """Two clauses, one with a run-time bound; where the prefix is 0, rows before the window's first key keep none."""
    prefix = np.array([0, 11], np.int32)
    window = (Bound("lower", "diagonal", -8), Bound("upper", "diagonal", -3))
    mask = _reference.prefix(37, prefix) | _reference.local(np.arange(19), 37, 8, -3)
    compare(family, drawn(B=2), clauses=((Bound("upper", "constant", -1, "n"),), window), bound0=prefix, mask=mask)


@FAMILY
def test_chunks(family: ModuleType) -> None:
    clauses = ((Bound("lower", "chunk", 8), Bound("upper", "chunk", 8), Bound("upper", "diagonal", 0)),)
    rows = np.arange(40)
    mask = _reference.chunked(rows, 37, 8) & _reference.causal(rows, 37)
    compare(family, drawn(T=40), clauses=clauses, mask=mask)


def drawn_call(seed: int) -> tuple[tuple[np.ndarray, ...], dict[str, Any]]:
    """Sizes at tile edges, a dtype, and two options that may stand beside each other."""
    draw = np.random.default_rng(seed)
    B, T, S, K, G, H, Hv = (
        int(draw.choice(sizes))
        for sizes in ((1, 2, 3), EDGES[:17], EDGES[:17], (1, 2), (1, 2, 3, 8), HEAD_DIMS, (*HEAD_DIMS, 64, 64))
    )
    options = options_of(B, T, S, K * G)
    first, second = (str(name) for name in draw.choice(OPTIONS, 2, replace=False))
    if "low" in first + second or ("rope" in first and "rope" in second):
        second = first
    chosen = options[second] | options[first]
    if ("rope" in chosen and (chosen["rope"].rotary_dim or 2) > H - H % 2) or (H % 2 and "rope" in chosen):
        del chosen["rope"]
    dtype = (float32, float16, bfloat16)[seed % 3]
    return drawn(dtype, B=B, T=T, S=S, N=K * G, K=K, H=H, Hv=Hv, seed=seed), chosen


@pytest.mark.grid
@pytest.mark.parametrize("seed", range(240))
@FAMILY
def test_drawn_calls(family: ModuleType, seed: int) -> None:
    arrays, options = drawn_call(seed)
    compare(family, arrays, **options)
