"""vmap over anything, one call in all; and the transforms that wrap a call or repeat it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import wgattn
from tests.faces.jax.compare import OURS, agree, normal
from tests.tolerance import check
from wgattn import masks
from wgattn.jax import _transforms
from wgattn.jax._batching import Batching, Entries, split_point

Q, K, V = normal(0, 3, 2, 16, 4, 16), normal(1, 3, 2, 20, 2, 16), normal(2, 3, 2, 20, 2, 16)
WEIGHT = normal(3, 2, 16, 4, 16)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that a JAX function was made to call."""
    found = []

    def kept(program: Any, *arrays: Any) -> Any:
        found.append(program)
        return run(program, *arrays)

    run = _transforms.run_in_jax
    monkeypatch.setattr(_transforms, "run_in_jax", kept)
    _transforms.attention.cache_clear()  # what was traced before is traced again
    return found


@pytest.mark.device
@pytest.mark.parametrize("axes", [(0, None, None), (None, 0, None), (0, 0, 0), (None, None, 0), (1, 0, 2), (-1, 0, 0)])
def test_vmap_over_any_axes(axes: tuple[int | None, ...]) -> None:
    """https://github.com/jax-ml/jax/issues/19978"""
    given = [x[0] if axis is None else jnp.moveaxis(x, 0, axis) for x, axis in zip((Q, K, V), axes, strict=True)]
    agree(lambda attention: jax.vmap(attention, axes), *given)

    def gradient(attention: Any) -> Any:
        one = jax.grad(lambda *x: (attention(*x, is_causal=True) * WEIGHT).sum(), (0, 1, 2))
        return jax.jit(jax.vmap(one, axes))

    agree(gradient, *given, gradient=True)


@pytest.mark.device
def test_nested_vmap_and_gradients_through_it() -> None:
    inner, outer = (0, None, None), (None, 0, 0)
    agree(lambda attention: jax.jit(jax.vmap(jax.vmap(attention, inner), outer, 1)), Q, K, V)
    agree(lambda attention: jax.vmap(jax.vmap(attention)), Q, K, V)  # without a B of its own

    def loss(attention: Any) -> Any:
        return jax.grad(lambda *x: (jax.vmap(jax.vmap(attention, inner), outer)(*x) * WEIGHT).sum(), (0, 1, 2))

    agree(loss, Q, K, V, gradient=True)


@pytest.mark.device
@pytest.mark.parametrize("name", ["bias", "mask", "query_seq_lengths", "key_value_seq_lengths", "scale", "lengths"])
def test_vmap_over_options(name: str) -> None:
    q, k, v = Q[0], K[0], V[0]
    lengths = jnp.array([[3, 20], [0, 30], [7, 1]], np.int32)
    values = {
        "bias": normal(5, 3, 1, 4, 1, 20),
        "mask": normal(6, 3, 2, 1, 16, 20) > -0.5,
        "scale": jnp.array([0.1, 0.3, 1.0]),
    }
    option = values.get(name, lengths)

    def call(attention: Any, q: Any, x: Any) -> Any:
        named = {"query_seq_lengths": x, "key_value_seq_lengths": x[::-1]} if name == "lengths" else {name: x}
        return attention(q, k, v, **named)

    agree(lambda attention: jax.vmap(lambda x: call(attention, q, x)), option)
    floats = name in ("bias", "scale")
    agree(
        lambda attention: jax.vmap(
            jax.grad(lambda q, x: (call(attention, q, x) * WEIGHT).sum(), (0, 1) if floats else 0)
        ),
        Q,
        option,
        gradient=True,
    )


@pytest.mark.device
def test_vmap_over_what_jax_nn_does_not_have() -> None:
    sinks, offsets, ids = normal(7, 3, 4), jnp.array([0, 2, 4]), jnp.array(np.arange(36).reshape(3, 12) // 9, np.int32)
    rope = wgattn.nn.Rope()

    def with_sinks(q: Any, s: Any) -> Any:
        return OURS(q, K[0], V[0], sinks=s, return_residual=True)

    def with_offset(q: Any, at: Any) -> Any:
        return OURS(q, K[0], V[0], mask=masks.prefix(at) | masks.causal(), query_offset=at, rope=rope)

    def with_segments(q: Any, at: Any) -> Any:
        return OURS(q[:, :12], K[0][:, :12], V[0][:, :12], mask=masks.segments(at, at))

    for function, option in ((with_sinks, sinks), (with_offset, offsets), (with_segments, ids)):
        found = jax.tree.leaves(jax.vmap(function)(Q, option))
        right = [jax.tree.leaves(function(q, x)) for q, x in zip(Q, option, strict=True)]
        for mine, others in zip(found, zip(*right, strict=True), strict=True):
            check(np.asarray(mine), np.stack(others))
    gradients = jax.vmap(jax.grad(lambda q, s: (with_sinks(q, s)[0] * WEIGHT).sum(), (0, 1)))(Q, sinks)
    one = jax.grad(lambda q, s: (with_sinks(q, s)[0] * WEIGHT).sum(), (0, 1))
    for mine, others in zip(gradients, zip(*map(one, Q, sinks), strict=True), strict=True):
        check(np.asarray(mine), np.stack(others), gradient=True, magnitude=8.0)


Axes = tuple[int | None, ...]
ALONE: Axes = (None, None, None, None, 0)


def looped(function: Any, axes: Axes) -> Any:
    """What vmap over `axes` gives, entry after entry."""

    def each(*arrays: Any) -> Any:
        given = [[x if axis is None else x[i] for x, axis in zip(arrays, axes, strict=True)] for i in range(3)]
        return jax.tree.map(lambda *found: jnp.stack(found), *(function(*one) for one in given))

    return each


@pytest.mark.device
@pytest.mark.parametrize(
    "nested",
    [
        (ALONE,),
        ((0, None, None, None, 0),),
        ((None, 0, 0, 0, 0),),
        (ALONE, (0, None, None, None, None)),
        (ALONE, ALONE),
    ],
    ids=["alone", "with query", "with key and bias", "outside query", "twice"],
)
def test_vmap_over_sinks_is_one_dispatch(nested: tuple[Axes, ...], ran: list[Any]) -> None:
    """Forward and backward; alone, and beside others that are mapped too or are not."""

    def out(q: Any, k: Any, v: Any, bias: Any, sinks: Any) -> Any:
        return OURS(q, k, v, bias, sinks=sinks, is_causal=True)

    def gradients(*arrays: Any) -> Any:
        return jax.grad(lambda *x: (out(*x) * WEIGHT).sum(), range(5))(*arrays)

    depth = [sum(axes[place] == 0 for axes in nested) for place in range(5)]
    arrays = [x if n else x[0] for x, n in zip((Q, K, V, normal(8, 3, 2, 4, 1, 20)), depth, strict=False)]
    arrays.append(normal(9, *(3,) * depth[4], 4))
    for function, calls in ((out, 1), (gradients, 2)):
        mapped, right = function, function
        for axes in reversed(nested):
            mapped, right = jax.vmap(mapped, axes), looped(right, axes)
        found = jax.jit(mapped)(*arrays)
        assert [len(program.compiled().schedule.chosen) for program in ran[-calls:]] == [1] * calls
        pairs = zip(jax.tree.leaves(found), jax.tree.leaves(right(*arrays)), strict=True)
        for mine, others in pairs:
            check(np.asarray(mine), np.asarray(others), gradient=function is gradients, magnitude=8.0)


@pytest.mark.device
def test_unmapped_keys_are_one_dispatch_and_are_not_copied(ran: list[Any]) -> None:
    function = jax.jit(jax.vmap(OURS, (0, None, None)))
    function(Q, K[0], V[0])
    program = ran[-1].compiled().schedule
    assert len(program.variants) == 1
    assert program.memory.inputs == Q.nbytes + K[0].nbytes + V[0].nbytes
    # what a launch adds of its own (K and V as textures, on some devices) is as for one example
    function = jax.jit(OURS)
    function(Q[0], K[0], V[0])
    alone = ran[-1].compiled().schedule
    assert program.memory.scratch <= alone.memory.scratch * 3
    assert len(program.program.commands) == len(alone.program.commands)


def test_the_split_of_mapped_axes_copies_the_least() -> None:
    q, k = Entries((3, 5, 1), (16, 4, 8)), Entries((3, 1, 1), (64, 4, 8))
    assert split_point((3, 5, 1), {"query": q, "key": k}) == 1  # the axis that key lacks stays apart
    assert split_point((3, 5, 2), {"query": Entries((3, 5, 2), ()), "key": Entries((3, 5, 2), ())}) == 2
    assert Batching.none(2).mapped_again(4, (True, False)).mapped == ((True,), (False,))


@pytest.mark.device
def test_an_empty_mapped_axis() -> None:
    out = jax.vmap(OURS, (0, None, None))(Q[:0], K[0], V[0])
    assert out.shape == (0, 2, 16, 4, 16)


@pytest.mark.device
def test_checkpoint_scan_and_while() -> None:
    k, v = K[0], V[0]

    def checkpointed(attention: Any) -> Any:
        return jax.jit(jax.grad(jax.checkpoint(lambda q: (attention(q, k, v) * WEIGHT).sum())))

    def scanned(attention: Any) -> Any:
        def total(q: Any) -> Any:
            last, outs = jax.lax.scan(lambda x, _: (x + attention(x, k, v),) * 2, q, None, length=3)
            return (last * WEIGHT).sum() + outs.mean()

        return jax.jit(jax.grad(total))

    def looped(attention: Any) -> Any:
        def turn(state: Any) -> Any:
            return state[0] + 1, attention(state[1], k, v)

        return jax.jit(lambda q: jax.lax.while_loop(lambda state: state[0] < 4, turn, (0, q))[1])

    agree(checkpointed, Q[0], gradient=True)
    agree(scanned, Q[0], gradient=True)
    agree(looped, Q[0])


@pytest.mark.device
def test_what_is_not_differentiated_is_not_computed(ran: list[Any]) -> None:
    bias = normal(4, 2, 4, 16, 20)
    jax.grad(lambda q: OURS(q, K[0], V[0], bias).sum())(Q[0])
    assert [aval.shape for aval in ran[-1].results] == [Q[0].shape]
    jax.grad(lambda bias: OURS(Q[0], K[0], V[0], bias).sum())(bias)
    assert [aval.shape for aval in ran[-1].results] == [bias.shape]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"key": K[0][:, :, :, :8]}, "the same H"),
        ({"mask": jnp.ones((2, 3, 16, 20), bool)}, "mask"),
        ({"bias": jnp.ones((2, 4, 16, 20), np.int32)}, "bias must be float"),
        ({"softcap": -1.0}, "softcap"),
        ({"implementation": "cuda"}, "implementation"),
        ({"residual_dtype": np.float32}, "return_residual"),
        ({"query": Q[0].astype(np.float16)}, "one dtype"),
    ],
)
def test_errors_are_raised_while_tracing(change: dict[str, Any], error: str) -> None:
    given = {"query": Q[0], "key": K[0], "value": V[0]} | change
    arrays = {name: x for name, x in given.items() if isinstance(x, jax.Array)}
    static = {name: x for name, x in given.items() if not isinstance(x, jax.Array)}
    with pytest.raises((ValueError, TypeError), match=error):
        jax.jit(lambda arrays: OURS(**arrays, **static)).trace(arrays)


@pytest.mark.device
def test_a_family_by_name_and_jax_names() -> None:
    for name in (None, "xla", "cudnn", "plain"):
        agree(lambda attention: lambda *x: attention(*x), Q[0], K[0], V[0])
        check(np.asarray(OURS(Q[0], K[0], V[0], implementation=name)), np.asarray(OURS(Q[0], K[0], V[0])))


@pytest.mark.device
def test_empty_axes_call_nothing(ran: list[Any]) -> None:
    q, k, v = Q[0], K[0][:, :0], V[0][:, :0]
    out, residual = OURS(q, k, v, return_residual=True, residual_dtype=np.float32)
    assert not np.asarray(out).any()
    assert np.isneginf(residual).all()
    sinks = normal(1, 4)
    _, residual = OURS(q, k, v, sinks=sinks, return_residual=True)
    assert (np.asarray(residual) == np.asarray(sinks)).all()
    assert OURS(q[:, :0], K[0], V[0]).shape == (2, 0, 4, 16)
    assert not ran


@pytest.mark.device
def test_arrays_of_wgattn_and_numpy_are_taken() -> None:
    given = Q[0], K[0], V[0]
    right = np.asarray(OURS(*given))
    check(np.asarray(OURS(*(wgattn.asarray(x) for x in given))), right)
    check(np.asarray(OURS(*(np.asarray(x) for x in given))), right)
