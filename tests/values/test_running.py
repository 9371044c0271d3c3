"""Values: forced in one submit, kept, donated, shared and lost as the contract says."""

import threading
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import wgattn as wa
from wgattn import _run, _runtime
from wgattn._record import LONGEST_CHAIN, Stored

pytestmark = pytest.mark.device

X = np.arange(6, dtype=np.float32).reshape(2, 3)
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.uint32, np.bool_]


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_casts_and_joins_of_every_dtype(dtype: Any):
    given = (np.arange(15).reshape(5, 3) % 2 if dtype == np.bool_ else np.arange(15).reshape(5, 3)).astype(dtype)
    x = wa.asarray(given)
    np.testing.assert_array_equal(x, given)
    np.testing.assert_array_equal(x[1:, ::-1].T, given[1:, ::-1].T)
    np.testing.assert_array_equal(x[1:, ::-1].T.astype(np.float32), given[1:, ::-1].T.astype(np.float32))
    np.testing.assert_array_equal(wa.concatenate([x, x[1:3]]), np.concatenate([given, given[1:3]]))
    np.testing.assert_array_equal(wa.repeat(x, 2, axis=1)[-1, 1:4], np.repeat(given, 2, axis=1)[-1, 1:4])
    np.testing.assert_array_equal(wa.broadcast_to(x[0], (2, 3)), np.broadcast_to(given[0], (2, 3)))


def test_arithmetic():
    x = wa.asarray(X)
    np.testing.assert_allclose((x.T * 2 - 1 / (x.T + 1)).sum(0), (X.T * 2 - 1 / (X.T + 1)).sum(0), rtol=1e-6)
    np.testing.assert_allclose(wa.exp(-x).mean(), np.exp(-X).mean(), rtol=1e-6)
    np.testing.assert_array_equal(wa.where((x > 1) & ~(x == 4), x, -1), np.where((X > 1) & ~(X == 4), X, -1))
    assert float(x[1, 2]) == 5.0
    assert int(wa.asarray(np.int32(3)) + 1) == 4
    assert bool((x >= 0)[0, 0]) is True


def test_scalars_that_are_not_finite():
    x = wa.asarray(X)
    assert np.isinf(np.asarray(x + float("inf"))).all()
    assert np.isnan(np.asarray(x * float("nan"))).all()
    assert np.signbit(np.asarray(x * -0.0)).all()


def test_forcing_drops_what_was_needed_for_it():
    x = wa.asarray(X) + 1
    watched = weakref.ref(x._step)
    y = x * 2
    del x
    assert watched() is not None
    y.block_until_ready()
    assert watched() is None
    assert y.is_ready()
    assert y.device
    np.testing.assert_array_equal(y, (X + 1) * 2)


def test_equal_eager_graphs_are_compiled_once(monkeypatch: pytest.MonkeyPatch):
    made = []
    kept = _run._kept

    def counted(cache: Any, key: Any, make: Any) -> Any:
        return kept(cache, key, lambda: made.append(key) or make())

    monkeypatch.setattr(_run, "_kept", counted)
    for seed in range(3):
        np.asarray(wa.asarray(np.full((7, 11), seed, np.float32)) * 3.5 + 0.125)
    assert len(made) == 2, "one rewriting and one program"


def test_a_long_chain_is_computed_on_the_way():
    x = wa.asarray(X)
    for _ in range(2 * LONGEST_CHAIN):
        x = x + 1
    assert x._step.depth < LONGEST_CHAIN
    np.testing.assert_array_equal(x, X + 2 * LONGEST_CHAIN)


def test_a_loop_whose_state_is_held_computes_and_compiles_each_step_once():
    x = wa.asarray(X)
    before = len(_run._compiled)
    for step in range(5):
        x = x * 0.5 + 1.25
        np.asarray(x[0] * 2)
        assert isinstance(x._step.values[0], Stored), step
    assert len(_run._compiled) - before <= 2, "from the host's layout and from the device's"


def test_an_attention_result_that_somebody_holds_is_kept():
    q = wa.asarray(np.random.default_rng(0).standard_normal((1, 8, 2, 16), np.float32))
    out, residual = wa.nn.dot_product_attention(q, q, q, return_residual=True)
    (out * 2).block_until_ready()
    assert isinstance(out._step.values[0], Stored)
    assert isinstance(residual._step.values[0], Stored)


def test_jit_gives_what_the_function_gives():
    def fn(tree: Any, scale: Any) -> Any:
        x = tree["x"]
        return {"sum": (x * scale).sum(0), "views": (x.T, x[0]), "same": x, "three": 3}

    x = wa.asarray(X)
    result = wa.jit(fn)({"x": X}, 2.5)
    np.testing.assert_array_equal(result["sum"], (X * 2.5).sum(0))
    np.testing.assert_array_equal(result["views"][0], X.T)
    np.testing.assert_array_equal(result["views"][1], X[0])
    np.testing.assert_array_equal(result["same"], X)
    assert int(result["three"]) == 3
    again = wa.jit(fn)({"x": x}, 2)
    np.testing.assert_array_equal(again["sum"], (X * 2).sum(0))


def test_results_of_one_jit_are_arguments_of_another():
    f, g = wa.jit(lambda x: (x.T, x[:, 1:])), wa.jit(lambda a, b: a[1:].T + b)
    np.testing.assert_array_equal(g(*f(X)), X[:, 1:] * 2)


def test_what_is_captured_is_computed_once_and_lives():
    outside = wa.asarray(X) * 3
    f = wa.jit(lambda x: x + outside)
    np.testing.assert_array_equal(f(X), X * 4)
    assert isinstance(outside._step.values[0], Stored)
    del outside
    np.testing.assert_array_equal(f(X), X * 4)


def test_numpy_arguments_may_change_after_the_call():
    given = X.copy()
    result = wa.jit(lambda x: (x + 1, x))(given)
    given[:] = -1
    np.testing.assert_array_equal(result[0], X + 1)
    np.testing.assert_array_equal(result[1], X)


def test_donation():
    f = wa.jit(lambda x, y: x * 2 + y, donate_argnums=0)
    x, y = wa.device_put(X), wa.device_put(X)
    np.testing.assert_array_equal(f(x, y), X * 3)
    for use in (lambda: np.asarray(x), lambda: x + 1, lambda: f(x, y), lambda: x.block_until_ready()):
        with pytest.raises(RuntimeError, match="this Array was donated to <lambda>"):
            use()
    assert repr(x) == "Array(f32[2,3], donated)"
    np.testing.assert_array_equal(y, X)
    with pytest.raises(TypeError, match=r"argument x of <lambda> is to be donated.*wgattn.device_put\(x\)"):
        f(X, y)


def test_donation_by_name():
    """Of an argument by position or by keyword, of one that only has a name, and of one that a number names too."""
    f = wa.jit(lambda x, y, *, z: (x + y + z, z * 2), donate_argnames=("y", "z"), donate_argnums=1)
    for keyword in (False, True):
        x, y, z = (wa.device_put(X) for _ in range(3))
        out = f(x, y=y, z=z) if keyword else f(x, y, z=z)
        np.testing.assert_array_equal(out[0], X * 3)
        np.testing.assert_array_equal(x, X)
        assert all("donated" in repr(gone) for gone in (y, z))


def test_donating_what_is_still_needed_copies():
    f = wa.jit(lambda x: x * 0, donate_argnums=0)
    x = wa.device_put(X)
    later = x + 1
    f(x).block_until_ready()
    np.testing.assert_array_equal(later, X + 1)

    x = wa.device_put(X)
    captured = wa.jit(lambda y: y + x)
    np.testing.assert_array_equal(captured(X), 2 * X)
    f(x).block_until_ready()
    np.testing.assert_array_equal(captured(X), 2 * X)

    x = wa.device_put(X)
    twice = wa.jit(lambda a, b: (a * 0, b + 1), donate_argnums=0)
    np.testing.assert_array_equal(twice(x, x)[1], X + 1)

    x = wa.device_put(X)
    same = wa.jit(lambda a: (a, a * 0), donate_argnums=0)(x)[0]
    np.testing.assert_array_equal(same, X)


def test_lower_and_compile():
    compiled = wa.jit(lambda x, y: x + y).lower(X, X).compile()
    assert "@compute" in compiled.as_text()
    assert compiled.cost_analysis() == {"flops": 6, "bytes": 72}
    assert set(compiled.memory_analysis()) == {"inputs", "outputs", "constants", "scratch"}
    np.testing.assert_array_equal(compiled(X, X), X + X)
    with pytest.raises(TypeError, match="was compiled for other arguments"):
        compiled(X, 1.0)


def test_many_threads_at_once():
    f = wa.jit(lambda x, n: (x * n).sum())
    found: dict[int, float] = {}

    def work(n: int) -> None:
        x = wa.asarray(X) + n
        found[n] = float(f(x, float(n))) + float(wa.asarray(X).sum())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: float(((X + n) * n).sum() + X.sum()) for n in range(8)}


def test_a_hook_sees_each_attention_launch(monkeypatch: pytest.MonkeyPatch):
    seen = []
    monkeypatch.setattr(_run, "_hooks", [lambda *given: seen.append(given)])
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal(s, np.float32).astype(np.float16) for s in ((1, 8, 4, 16), (1, 2, 8, 16)))

    def attend(q: Any, k: Any) -> Any:
        k = k.swapaxes(1, 2)
        return wa.nn.dot_product_attention(wa.nn.rope(q), wa.nn.rope(k), k) * 2

    plain = wa.jit(attend)(q, k)
    assert not seen
    checked = wa.jit(attend, validate=True)(q, k)
    np.testing.assert_array_equal(plain, checked)
    ((attention, operands, results, variant),) = seen
    assert attention.call.rope is not None
    np.testing.assert_array_equal(operands["query"], q)
    np.testing.assert_array_equal(operands["key"], k.swapaxes(1, 2))
    np.testing.assert_array_equal(results["out"] * np.float16(2), plain)
    assert variant
    monkeypatch.setenv("WGATTN_VALIDATE", "1")
    attend(wa.asarray(q), wa.asarray(k)).block_until_ready()
    assert len(seen) == 2


def test_settings_of_validation(monkeypatch: pytest.MonkeyPatch):
    for given in ("1", "true", "Yes"):
        monkeypatch.setenv("WGATTN_VALIDATE", given)
        assert _run.validating()
    for given in ("0", "False", "no", ""):
        monkeypatch.setenv("WGATTN_VALIDATE", given)
        assert not _run.validating()
    monkeypatch.setenv("WGATTN_VALIDATE", "sometimes")
    with pytest.raises(wa.UnsupportedError, match="WGATTN_VALIDATE is 'sometimes': it is 1, true or yes, or 0"):
        (wa.asarray(X) + 1).block_until_ready()


def test_validation_passes_and_fails_by_the_reference(monkeypatch: pytest.MonkeyPatch):
    q = np.random.default_rng(0).standard_normal((1, 8, 2, 16), np.float32)
    attend = wa.jit(lambda q: wa.nn.dot_product_attention(q, q, q, is_causal=True), validate=True)
    attend(q).block_until_ready()
    hooks = list(_run._hooks)

    def wrong(attention: Any, operands: Any, results: Any, variant: str) -> None:
        for hook in hooks:
            hook(attention, operands, {name: x + 1 for name, x in results.items()}, variant)

    monkeypatch.setattr(_run, "_hooks", [wrong])
    with pytest.raises(wa.ValidationError):
        attend(q)


def test_a_value_is_one_submit(monkeypatch: pytest.MonkeyPatch):
    """Two calls and what is around them, recorded apart and asked for at the end."""
    x = wa.device_put(np.random.default_rng(0).standard_normal((2, 9, 2, 16), np.float32))

    def recorded() -> wa.Array:
        first = wa.nn.dot_product_attention(x, x, x, is_causal=True)
        second = wa.nn.dot_product_attention(wa.nn.rope(first), x, x)
        return (second * 2 + first).sum(axis=0)

    recorded().block_until_ready()  # the first time, the tables of angles are uploaded besides
    wanted = recorded()
    made, submits = _runtime.device(), []
    submit = made.submit
    monkeypatch.setattr(made, "submit", lambda encoder: submits.append(1) or submit(encoder))
    wanted.block_until_ready()
    assert len(submits) == 1


def test_the_text_of_what_was_compiled_names_each_shader_once():
    compiled = wa.jit(lambda x: wa.sum(x * 2.0, axis=0)).lower(np.ones((3, 5), np.float32)).compile()
    text = compiled.as_text()
    names = list(compiled._program.schedule.shaders)
    assert names
    assert all(text.count(f"// {name}\n") + text.count(f"// {name}  // ") == 1 for name in names)
    assert text.startswith(f"// {names[0]}")
