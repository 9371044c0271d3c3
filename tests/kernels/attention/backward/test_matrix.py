"""The backward family on matrix units: on them where the device has them, emulated in plain WGSL on every device."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.attention.backward.run_gradient import plan_of, reference_gradient, run
from tests.kernels.attention.backward.test_gradients import compare, drawn
from tests.kernels.attention.problems import DISCRETE, MATRICES
from tests.kernels.attention.run_attention import weak
from tests.kernels.attention.test_families import OPTIONS, options_of
from tests.tolerance import check
from wgattn._dtypes import bfloat16, float16, float32
from wgattn._kernels.attention.backward import launches, matrix
from wgattn._kernels.attention.backward.choose import choose_backward
from wgattn._kernels.attention.backward.matrix import Tile
from wgattn._kernels.attention.backward.problem import GradientProblem
from wgattn._kernels.attention.problem import Bound
from wgattn._kernels.compose import compose
from wgattn._kernels.kernel import Launch
from wgattn._kernels.rotation import Rope
from wgattn._runtime.profile import DeviceProfile

SMALL = Tile(2, 1, 16)  # few products: what is emulated compiles slowly
SERVED = [option for option in OPTIONS if "rope" not in option]
# Emulated matrices compile slowly: these always, the others in the whole grid.
OFTEN = {"causal", "window", "bias", "segments", "key_lengths", "query_lengths", "sinks_empty", "softcap_bias", "scale"}


@pytest.fixture(autouse=True)
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("device") is not None:
        tiles = (getattr(request, "param", SMALL),)
        monkeypatch.setattr(matrix, "TILES", {"query": tiles, "key_value": tiles})
        monkeypatch.setattr(matrix, "QUERY_TILES", (Tile(1, 1, 16, tiles[0].steps),))


def half(**sizes: int) -> tuple[np.ndarray, ...]:
    return drawn(**({"B": 2, "T": 35, "S": 70, "H": 16, "dtype": float16} | sizes))


@pytest.mark.device
@pytest.mark.parametrize("option", [option for option in SERVED if option in OFTEN])
def test_option(option: str, here: DeviceProfile) -> None:
    """An option alone, with ragged last tiles on both sides."""
    compare(matrix, half(), profile=here, **options_of(2, 35, 70, 4)[option])


@pytest.mark.grid
@pytest.mark.device
@pytest.mark.parametrize("option", [option for option in SERVED if option not in OFTEN])
def test_other_option(option: str, here: DeviceProfile) -> None:
    compare(matrix, half(), profile=here, **options_of(2, 35, 70, 4)[option])


@pytest.mark.device
@pytest.mark.parametrize(
    ("small", "option"),
    [
        (Tile(1, 2, 16, steps=2), "causal"),
        (Tile(1, 1, 32), "segments"),
        (Tile(3, 1, 16, steps=2), "window"),
    ],
    indirect=["small"],
    ids=str,
)
def test_tiles(option: str, here: DeviceProfile) -> None:
    """Two blocks of rows a subgroup, two blocks of rows a step, several steps staged together."""
    compare(matrix, half(T=70), profile=here, **options_of(2, 70, 70, 4)[option])


@pytest.mark.device
@pytest.mark.parametrize(("heads", "H"), [(0, 16), (2, 16), (2, 24)])
def test_kept_scores(heads: int, H: int, here: DeviceProfile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query's gradient from gradients by scores, two heads kept at a time; from a sweep where none is.

    Padded rows are copied 16 bytes at a time too, and written so.
    """
    monkeypatch.setattr(matrix, "MOST_KEPT", 2 * heads * 3 * 5 * 512)
    monkeypatch.setattr(launches, "KEPT_WORKGROUPS", 1)
    made = plan_of(matrix, *half(H=H), profile=here, is_causal=True).plan
    names = [step.variant.name for step in made.steps if isinstance(step, Launch)]
    assert sum("from_scores" in name for name in names) == (2 if heads else 0)
    assert all("-h32p-" in name for name in names if "backward_matrix" in name) == (H == 24)
    compare(matrix, half(H=H), profile=here, is_causal=True)


@pytest.mark.device
@pytest.mark.parametrize(("H", "Hv"), [(20, 17), (16, 32), (7, 8), (8, 24)])
def test_head_dims(H: int, Hv: int, here: DeviceProfile) -> None:
    """Padded rows, rows that start inside a word, and Hv that differs."""
    compare(matrix, half(B=1, H=H, Hv=Hv), profile=here, is_causal=True)


@pytest.mark.device
@pytest.mark.parametrize(("N", "K"), [(3, 3), (6, 2), (5, 1)])
def test_groups(N: int, K: int, here: DeviceProfile) -> None:
    """Heads of a group add up in the gradients of their key/value head; or a share of them at a time."""
    compare(matrix, half(N=N, K=K, S=35), profile=here, is_causal=True)
    compare(matrix, half(N=N, K=K, S=35), profile=weak(here, binding_bytes=16 * 1024), is_causal=True)


@pytest.mark.device
@pytest.mark.parametrize("size", [2.0**-14, 2.0**-7, 2.0**9])
def test_grad_out_of_any_size(size: float, here: DeviceProfile) -> None:
    """Gradients by scores that float16 would flush or that pass what it holds keep their precision."""
    grad_out, *others = half()
    arrays = (grad_out.astype(np.float32) * size).astype(float16), *others
    made, right = run(matrix, *arrays, profile=here, is_causal=True), reference_gradient(*arrays, is_causal=True)
    for name in ("query", "key", "value"):
        wanted = np.asarray(getattr(right, name))
        # The results are float16 too, which below 2^-14 has a step of 2^-24.
        error = np.linalg.norm(made[name] - wanted) - 2.0**-25 * wanted.size**0.5
        assert error <= 2e-3 * np.linalg.norm(wanted), name


@pytest.mark.device
def test_rows_of_any_size(here: DeviceProfile) -> None:
    """Rows of grad_out and of V whose sizes are thousands of times apart."""
    grad_out, query, key, value = half(B=1, T=90, S=90)
    rise = np.array([2.0**-7, 1, 2.0**6, 2.0**-3, 2.0**6, 2.0**3], np.float32).repeat(15)[None, :, None, None]
    arrays = (grad_out * rise).astype(float16), query, key, (value * rise).astype(float16)
    made, right = run(matrix, *arrays, profile=here), reference_gradient(*arrays)
    for name in ("query", "key", "value"):
        wanted = np.asarray(getattr(right, name))
        check(made[name], wanted, float16, 90, gradient=True, magnitude=float(np.abs(wanted).max()))


@pytest.mark.device
def test_large_scores(here: DeviceProfile) -> None:
    """Logits past what float16 holds: weights of 0 and 1."""
    grad_out, query, key, value = half(B=1)
    compare(matrix, (grad_out, query * 40, key, value), profile=here, scale=5.0)


@pytest.mark.device
@pytest.mark.parametrize("H", [16, 24])
def test_nothing_past_the_lengths_is_read(H: int, here: DeviceProfile) -> None:
    """NaN past the lengths, in every operand, reaches no gradient, not by way of padding either; the gradients there
    are 0."""
    arrays = half(T=40, H=H)
    queries, keys = np.array([33, 0], np.int32), np.array([50, 7], np.int32)
    for array, lengths in zip(arrays, (queries, queries, keys, keys), strict=True):
        for b, length in enumerate(lengths):
            array[b, length:] = np.nan
    made = run(matrix, *arrays, profile=here, query_lengths=queries, key_value_lengths=keys)
    clean = tuple(np.nan_to_num(array, nan=0.0) for array in arrays)
    right = reference_gradient(*clean, query_lengths=queries, key_value_lengths=keys)
    for name, lengths in (("query", queries), ("key", keys), ("value", keys)):
        check(made[name], getattr(right, name), float16, 70, gradient=True, magnitude=4.0)
        for b, length in enumerate(lengths):
            assert name == "value" or not made[name][b, length:].any()


@pytest.mark.device
def test_boxes(here: DeviceProfile) -> None:
    """Heads, rows and keys in launches of their own add up to the same gradients."""
    options = {"bias": np.random.default_rng(6).standard_normal((1, 4, 1, 70)).astype(np.float32), "is_causal": True}
    compare(matrix, half(), profile=weak(here, binding_bytes=8 * 1024), **options)
    compare(matrix, half(), profile=weak(here, loop_turns=8192 + 50), **options)


@pytest.mark.device
def test_two_clauses(here: DeviceProfile) -> None:
    """A prefix or a window; rows may keep a part of a tile by either."""
    clauses = ((Bound("upper", "constant", 10),), (Bound("lower", "diagonal", -8), Bound("upper", "diagonal", 3)))
    rows, keys = np.arange(35)[:, None], np.arange(70)[None]
    mask = (keys <= 10) | ((keys >= rows - 8) & (keys <= rows + 3))
    compare(matrix, half(), profile=here, clauses=clauses, mask=mask[None, None])


@pytest.mark.device
def test_the_same_bits_every_run(here: DeviceProfile) -> None:
    first, second = (run(matrix, *half(), profile=here, is_causal=True) for _ in range(2))
    for name, gradient in first.items():
        assert gradient.tobytes() == second[name].tobytes(), name


def test_kept_scores_of_few_heads() -> None:
    """Where a launch would have few workgroups, and others had to follow, there are two sweeps."""
    for heads, T, kept in ((16, 4096, True), (4, 1024, True), (1, 16384, True), (2, 16384, False)):
        arrays = tuple(np.broadcast_to(np.zeros((), float16), (1, T, heads, 64)) for _ in range(4))
        saved = arrays[0], np.zeros((1, T, heads), np.float32)
        steps = plan_of(matrix, *arrays, profile=MATRICES, is_causal=True, saved=saved).plan.steps
        names = [step.variant.name for step in steps if isinstance(step, Launch)]
        assert any("from_scores" in name for name in names) == kept, (heads, T)


def problem_of(arrays: tuple[np.ndarray, ...], **options: Any) -> GradientProblem:
    return plan_of(matrix, *arrays, profile=MATRICES, **options).problem


def with_dtype(problem: GradientProblem, dtype: np.dtype) -> GradientProblem:
    return replace(problem, sweep=replace(problem.sweep, query_dtype=dtype, key_dtype=dtype, value_dtype=dtype))


def test_the_choice() -> None:
    """Matrix units where they are, for what they multiply; tiles take the rest."""
    served = problem_of(half())
    assert choose_backward(served, MATRICES).family == "backward_matrix"
    assert choose_backward(served, DISCRETE).family == "backward_tiled"
    for dtype in (float32, bfloat16):
        assert choose_backward(with_dtype(served, dtype), MATRICES).family == "backward_tiled"


def test_reasons() -> None:
    """What is not served is told apart: the device, its matrices, the call."""
    served = problem_of(half())
    assert "no matrix units" in matrix.supports(served, DISCRETE).reason
    assert "not f32" in matrix.supports(with_dtype(served, float32), MATRICES).reason
    assert "not bf16" in matrix.supports(with_dtype(served, bfloat16), MATRICES).reason
    wide = replace(served, sweep=replace(served.sweep, head_dim=160))
    assert "head dims above 128" in matrix.supports(wide, MATRICES).reason
    turned = replace(served, forward=replace(served.forward, rope="half"))
    assert "rotated rows" in matrix.supports(turned, MATRICES).reason
    assert "none of its tiles fits 1,024 bytes" in matrix.supports(served, weak(MATRICES, workgroup_bytes=1024)).reason


@pytest.mark.parametrize(("H", "Hv"), [(16, 16), (64, 64), (128, 64), (128, 128)])
def test_tiles_fit(H: int, Hv: int) -> None:
    """Whatever is chosen fits workgroup memory and registers, a tuned tile too; there is one for WebGPU's least."""
    problem = problem_of(half(H=H, Hv=Hv))
    for profile in (MATRICES, weak(MATRICES, workgroup_bytes=32768, invocations=256)):
        assert matrix.supports(problem, profile)
        for name, place in matrix.candidates(problem, profile):
            by = "query" if "_query_" in name else "key_value"
            tile = matrix.tile_of(problem, replace(profile, tuned=((name, place),)), by)
            assert tile == matrix.TILES[by][place]
            assert tile.workgroup_bytes(problem.sweep, by) <= profile.limits.workgroup_bytes
            assert tile.registers(problem.sweep, by) <= matrix.MOST_REGISTERS
            assert tile.threads <= profile.limits.invocations
        for step in plan_of(matrix, *half(H=H, Hv=Hv), profile=profile, is_causal=True).plan.steps:
            assert not isinstance(step, Launch) or step.variant.workgroup_bytes <= profile.limits.workgroup_bytes


def test_equal_names_mean_equal_shaders() -> None:
    known: dict[str, str] = {}
    calls = [(half(), options) for name, options in options_of(2, 35, 70, 4).items() if name in SERVED]
    calls += [(half(H=H, Hv=Hv), {"is_causal": True}) for H, Hv in ((64, 64), (64, 40), (33, 64), (128, 128))]
    for arrays, options in calls:
        for step in plan_of(matrix, *arrays, profile=MATRICES, **options).plan.steps:
            if isinstance(step, Launch):
                source = compose(step.variant, "dawn")
                assert known.setdefault(step.variant.name, source) == source, step.variant.name
                assert len(step.variant.bindings) <= MATRICES.limits.storage_buffers
    assert len([name for name in known if name.startswith("backward_matrix")]) > 20


def test_rope_is_left_to_tiles() -> None:
    arrays = half()
    made = plan_of(matrix, *arrays, profile=MATRICES).problem
    assert matrix.supports(made, MATRICES)
    with pytest.raises(AssertionError, match="rotated rows"):
        plan_of(matrix, *arrays, profile=MATRICES, rope=Rope())
