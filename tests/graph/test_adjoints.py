"""The adjoint of every operation against jax.vjp of the same function, without a device: graphs are run in NumPy."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import wgattn as wa
from tests.graph.evaluate import evaluate
from tests.tolerance import check
from wgattn._array import apply, elementwise
from wgattn._dtypes import bfloat16, float16
from wgattn._graph.operations import Pad
from wgattn._graph.rewrite import fuse
from wgattn._reference import rotation

Function = Callable[..., Any]
r = np.random.default_rng(0)
X, Y, ROW, COLUMN = (r.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (3, 4), (4,), (3, 1)))
WIDE = r.standard_normal((2, 5, 3, 8)).astype(np.float32)

# Each is called with wgattn or jax.numpy as m.
FUNCTIONS: dict[str, tuple[Function, tuple[np.ndarray, ...]]] = {
    "reshape": (lambda m, x: x.reshape(2, 6), (X,)),
    "transpose": (lambda m, x: x.transpose(2, 0, 3, 1), (WIDE,)),
    "slice": (lambda m, x: x[1:, 1:3], (X,)),
    "slice_one": (lambda m, x: x[2, None, -1:], (X,)),
    "slice_steps": (lambda m, x: x[:, 1::2, ::3, ::3], (WIDE,)),
    "slice_back": (lambda m, x: x[::-1, 3::-1, ::-2, 6:1:-3], (WIDE,)),
    "broadcast": (lambda m, x: m.broadcast_to(x, (2, 3, 5)), (COLUMN,)),
    "repeat": (lambda m, x: m.repeat(x, 3, -2), (X,)),
    "add": (lambda m, x, y: x + y, (X, ROW)),
    "add_twice": (lambda m, x: x + x + x, (X,)),
    "subtract": (lambda m, x, y: x - y, (COLUMN, ROW)),
    "multiply": (lambda m, x, y: x * y, (X, COLUMN)),
    "square": (lambda m, x: x * x, (X,)),
    "divide": (lambda m, x, y: x / (y * y + 1), (ROW, COLUMN)),
    "by_numbers": (lambda m, x: 2 / (1 + (3 - x * 0.5) * (x / 4 + 5)), (X,)),
    "negative": (lambda m, x: -x, (X,)),
    "exp": (lambda m, x: m.exp(x), (X,)),
    "where": (lambda m, x, y: m.where(x > y, x, y * 2), (X, ROW)),
    "where_numbers": (lambda m, x: m.where(x > 0, x, 0.5), (X,)),
    "sum": (lambda m, x: x.sum((0, 2)), (WIDE,)),
    "sum_all": (lambda m, x: x.sum(), (X,)),
    "mean": (lambda m, x: x.mean(-1, keepdims=True) * x, (X,)),
    "concatenate": (lambda m, x, y: m.concatenate([x, y[:2], x * 2]), (X, Y)),
    "cast": (lambda m, x: x.astype(np.float16).astype(np.float32) * 2, (X,)),
    "stopped": (lambda m, x, y: x * (y > 0).astype(np.float32) + y.astype(np.int32).astype(np.float32), (X, Y)),
    "unused": (lambda m, x, y: x * 2, (X, Y)),
    "tree_of_results": (lambda m, x, y: {"both": (x * y, x), "again": x * y, "number": y.sum()}, (X, Y)),
    "softmax": (lambda m, x: m.exp(x) / m.exp(x).sum(-1, keepdims=True), (X,)),
}


def cotangents_of(out: Any) -> Any:
    """Normal arrays like those of a tree."""
    rng = np.random.default_rng(3)
    return jax.tree.map(lambda x: np.asarray(rng.standard_normal(x.shape)).astype(x.dtype), out)


def compare(fn: Function, primals: tuple[np.ndarray, ...], fused: bool = False) -> None:
    """fn's result, and the cotangents that vjp gives for it, against jax's."""
    out, pull = jax.vjp(lambda *given: fn(jnp, *given), *map(jnp.asarray, primals))
    cotangents = cotangents_of(out)
    right = jax.tree.leaves((out, pull(jax.tree.map(jnp.asarray, cotangents))))

    def both(primals: Any, cotangents: Any) -> Any:
        out, pull = wa.vjp(lambda *given: fn(wa, *given), *primals)
        return out, pull(cotangents)

    traced = wa.jit(both).lower(primals, cotangents)._traced
    inputs = [*jax.tree.leaves((primals, cotangents)), *(s.values[n] for s, n in traced.captured)]
    computed = evaluate(fuse(traced.graph) if fused else traced.graph, inputs)
    made = [computed[x] if kind == "computed" else inputs[x] for kind, x in traced.sources]
    for given, wanted in zip(made, right, strict=True):
        assert given.dtype == wanted.dtype
        check(given, np.asarray(wanted), gradient=True, magnitude=max(1.0, float(np.abs(wanted).max(initial=0))))


@pytest.mark.parametrize("fused", [False, True], ids=["recorded", "fused"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_against_jax(name, fused):
    compare(*FUNCTIONS[name], fused=fused)


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize(
    "name", ["slice_steps", "add_twice", "mean", "square", "by_numbers", "softmax", "where", "repeat"]
)
def test_half_precision(name, dtype):
    """Cotangents have their operand's dtype, sums of them too."""
    fn, primals = FUNCTIONS[name]
    compare(fn, tuple(x.astype(dtype) for x in primals))


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_equal_operands_share_the_cotangent(name):
    x, y = np.array([1, 2, 3, np.nan], np.float32), np.array([[1], [3]], np.float32)
    compare(lambda m, *given: elementwise(name, *given) if m is wa else getattr(m, name)(*given), (x, y))


def rotated(x: Any, positions: Any, rope: wa.nn.Rope) -> Any:
    cos, sin = rotation(positions, x.shape[-1], rope.base, rope.rotary_dim, rope.scaling)
    cos, sin = (jnp.asarray(t, jnp.float32)[..., None, :] for t in (cos, sin))
    D = cos.shape[-1]
    pairs = (slice(0, D), slice(D, 2 * D)) if rope.style == "half" else (slice(0, 2 * D, 2), slice(1, 2 * D, 2))
    a, b = (x[..., pair] for pair in pairs)
    return x.at[..., pairs[0]].set(a * cos - b * sin).at[..., pairs[1]].set(b * cos + a * sin)


@pytest.mark.parametrize("positions", [None, np.array([3, 1, 4, 1, 5], np.int32)], ids=["arange", "given"])
@pytest.mark.parametrize("rope", [wa.nn.Rope(), wa.nn.Rope(500.0, 4, "interleaved")], ids=["half", "interleaved"])
def test_rope(rope, positions):
    options = {"base": rope.base, "rotary_dim": rope.rotary_dim, "style": rope.style}
    at = np.arange(5) if positions is None else positions
    compare(lambda m, x: wa.nn.rope(x, positions, **options) if m is wa else rotated(x, at, rope), (WIDE,))


def merge(m: Any, outputs: Any, residuals: Any, sinks: Any = None) -> Any:
    """Merged parts and the residual."""
    if m is wa:
        return wa.nn.merge_attention(outputs, residuals, sinks, return_residual=True)
    total = jax.nn.logsumexp(residuals, axis=0)
    total = total if sinks is None else jnp.logaddexp(total, sinks)
    return (jnp.exp(residuals - total)[..., None] * outputs).sum(0), total


@pytest.mark.parametrize("sinks", [(), (ROW[:3],)], ids=["plain", "sinks"])
@pytest.mark.parametrize("only", [0, 1, None], ids=["out", "residual", "both"])
@pytest.mark.parametrize("fused", [False, True], ids=["recorded", "fused"])
def test_merge(sinks, only, fused):
    parts = r.standard_normal((3, 2, 5, 3, 8)).astype(np.float32), r.standard_normal((3, 2, 5, 3)).astype(np.float32)

    def results(m: Any, *given: Any) -> Any:
        pair = merge(m, *given)
        return pair if only is None else pair[only]

    compare(results, (*parts, *sinks), fused=fused)


def attend(m: Any, query: Any, key: Any, value: Any, bias: Any = None, **options: Any) -> Any:
    return (wa if m is wa else jax).nn.dot_product_attention(query, key, value, bias, **options)


def grouped(m: Any, query: Any, key: Any, value: Any, bias: Any) -> Any:
    """Two calls that share keys, the second on the first one's result."""
    first = attend(m, query * 0.5, key, value, bias[:, None, None], is_causal=True)
    return attend(m, first + query, key, key * value, scale=0.7, local_window_size=(3, 1)).swapaxes(1, 2)


def heads_repeated(m: Any, query: Any, key: Any) -> Any:
    many = m.repeat(key, 2, axis=-2)
    return attend(m, query, many, many, key_value_seq_lengths=np.array([4, 6], np.int32)).mean((0, 1))


def unbatched(m: Any, query: Any, key: Any) -> Any:
    out, residual = attend(m, query[0], key[0], key[0] * 2, mask=np.tri(5, 7) > 0, return_residual=True)
    return out * residual[..., None]


QUERY, KEY = r.standard_normal((2, 5, 4, 8)).astype(np.float32), r.standard_normal((2, 7, 2, 8)).astype(np.float32)
ATTENDING: dict[str, tuple[Function, tuple[np.ndarray, ...]]] = {
    "grouped": (grouped, (QUERY, KEY, KEY[::-1], r.standard_normal((2, 7)).astype(np.float32))),
    "heads_repeated": (heads_repeated, (QUERY, KEY)),
}


@pytest.mark.parametrize("fused", [False, True], ids=["recorded", "fused"])
@pytest.mark.parametrize("name", ATTENDING)
def test_attention(name, fused):
    compare(*ATTENDING[name], fused=fused)


def test_the_residual_is_constant():
    """Its cotangent is ignored, as jax ignores it."""
    compare(unbatched, (QUERY, KEY))
    by_residual = wa.make_graph(
        wa.grad(lambda q: unbatched(wa, q, KEY).sum() * 0 + attend(wa, q, KEY, KEY, return_residual=True)[1].sum())
    )
    assert repr(by_residual(QUERY)).count("attention_gradient") == 1


def test_attention_is_differentiated_once():
    with pytest.raises(wa.UnsupportedError, match="attention is differentiated once"):
        wa.make_graph(wa.grad(lambda q: wa.grad(lambda q: attend(wa, q, KEY, KEY).sum())(q).sum()))(QUERY)


def test_only_what_is_wanted_is_computed():
    f = wa.grad(lambda v, q: (attend(wa, q, KEY, v) * q).sum())
    text = repr(wa.make_graph(f)(KEY, QUERY))
    assert text.count("attention ") == 1, "one forward launch, whose residual the backward pass reads"
    assert "residual=f32" in text
    assert "by value of" in text


def test_a_pad_is_cut():
    padded = Pad((1, 0), (0, 2))
    compare(lambda m, x: apply(padded, x) if m is wa else m.pad(x, ((1, 0), (0, 2))) * 1.0, (X,))


def test_what_is_known_of_constants_is_not_recorded():
    """The gradient of a mean begins with 1 / n, and a product with ones is no operation."""
    f = wa.jit(wa.grad(lambda x, y: (x * y).sum() + x.mean(), argnums=(0, 1)))
    text = f.lower(X, Y).as_text()
    assert "b = add 0.083333336[3,4 by 0,0] a" in text
    assert "multiply" not in text


def test_nested_gradients():
    def slope(m: Any) -> Function:
        return (wa if m is wa else jax).grad(lambda x: (m.exp(x) * x).sum())

    compare(lambda m, x: slope(m)(x) * x, (X,))
