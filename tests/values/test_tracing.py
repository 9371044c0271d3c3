"""jit traces once a signature, refuses what needs a value, and shows what it recorded; none of it needs a device."""

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest

import wgattn as wa
from wgattn import _run

ONES = np.ones((2, 3), np.float32)


def test_one_trace_for_a_signature():
    traces = []

    @wa.jit
    def double(x: Any, y: Any = None) -> Any:
        traces.append(x.shape)
        return x * 2 if y is None else x * y

    for _ in range(2):
        double.lower(ONES)
    assert len(traces) == 1
    double.lower(wa.asarray(ONES))
    double.lower(jax.numpy.asarray(ONES))
    assert len(traces) == 1, "NumPy, JAX and wgattn arrays of one aval share a trace"
    double.lower(ONES.astype(np.float16))
    double.lower(ONES[:1])
    double.lower(ONES, 2.0)
    double.lower(ONES, 3.0)
    double.lower(ONES, y=3.0)
    double.lower(ONES, 3)
    assert len(traces) == 6, "dtype, shape, a scalar, its name, an int: each once; a scalar's value never"


def test_static_arguments_are_values():
    traces = []

    @wa.jit(static_argnames=("axis", "how"))
    def reduced(x: Any, axis: int, how: str = "sum") -> Any:
        traces.append((axis, how))
        return x.sum(axis) if how == "sum" else x.mean(axis)

    for axis in (0, 1, 0):
        reduced.lower(ONES, axis)
    reduced.lower(ONES, 1, how="mean")
    reduced.lower(x=ONES, axis=0, how="sum")
    assert traces == [(0, "sum"), (1, "sum"), (1, "mean"), (0, "sum")]
    numbered = wa.jit(lambda x, n: x if n else x * 2, static_argnums=-1)
    assert "multiply" not in numbered.lower(ONES, True).as_text()
    assert "multiply" in numbered.lower(ONES, 0).as_text()
    with pytest.raises(TypeError, match="static argument n of <lambda> must be hashable; got list"):
        numbered.lower(ONES, [1])
    with pytest.raises(ValueError, match="static_argnums holds 5"):
        wa.jit(lambda x: x, static_argnums=5)
    with pytest.raises(ValueError, match="static_argnames holds 'typo'; the function's parameters are: x, axis, how"):
        wa.jit(reduced, static_argnames=("axis", "typo"))
    any_name = wa.jit(lambda x, **options: x if options["up"] else x * 2, static_argnames="up")
    assert "multiply" not in any_name.lower(ONES, up=True).as_text()


def test_equal_static_values_of_two_types_are_traced_apart():
    f = wa.jit(lambda x, n: x * n, static_argnums=1)
    assert "2.0" in f.lower(np.ones(2, np.int32), 2.0).as_text()
    assert "2.0" not in f.lower(np.ones(2, np.int32), 2).as_text()


def test_the_text_has_every_result():
    """Those that are an argument, or a value that nothing computes, in their places; what is computed twice, twice."""

    def several(x: Any, y: Any) -> Any:
        return y, x * y, 3.0, x * y

    recorded = repr(wa.make_graph(several)(ONES, ONES)).splitlines()
    assert recorded[-1] == "out b: f32[2,3]  c: f32[2,3]  value: f32[]  d: f32[2,3]"
    both = wa.jit(several).lower(ONES, ONES).as_text()
    assert "out b: f32[2,3]  c: f32[2,3]  value: f32[]  c: f32[2,3]" in both, "fused, it is computed once"
    assert repr(wa.make_graph(lambda x: x)(ONES)) == "a: f32[2,3]\nout a: f32[2,3]"


def test_the_length_of_what_is_captured_does_not_retrace():
    outside = wa.asarray(ONES) * 3
    f = wa.jit(lambda x: x + outside)
    text = f.lower(ONES).as_text()
    assert "multiply" not in text, "what was recorded before the trace comes in as a value"
    assert "a: f32[2,3]  b: f32[2,3]" in text


@dataclass
class Layer:
    weight: Any
    name: str = "layer"


jax.tree_util.register_dataclass(Layer, ["weight"], ["name"])


def test_any_pytree_goes_in_and_out():
    def fn(layer: Any, tree: Any) -> Any:
        return {"out": layer.weight + tree[0]["x"], "none": None, "same": layer}

    graph = wa.make_graph(fn)(Layer(ONES), ({"x": 1.0}, None))
    assert repr(graph).splitlines() == [
        "a: f32[2,3]  b: f32[]",
        "c = add a b",
        "out c: f32[2,3]  a: f32[2,3]",
    ]


def test_branches_name_the_argument_and_what_to_do():
    @wa.jit
    def branch(q: Any, *rest: Any) -> Any:
        if q["w"][0].sum() > 0:
            return q["w"][1]
        return rest[0]

    with pytest.raises(TypeError) as raised:
        branch.lower({"w": [ONES, ONES]}, ONES)
    text = str(raised.value)
    assert "bool()" in text
    assert "argument q['w'][0] of branch" in text
    assert "wgattn.where" in text
    assert "static_argnums" in text
    for use, call in {
        "np.asarray": lambda x: np.asarray(x),
        "float()": lambda x: float(x.sum()),
        "item()": lambda x: x.sum().item(),
        "block_until_ready()": lambda x: x.block_until_ready(),
        "an index": lambda x: list(range(3))[x[0, 0].astype(np.int32)],
    }.items():
        with pytest.raises(TypeError, match=r"argument x of <lambda>") as raised:
            wa.make_graph(wa.jit(lambda x, call=call: call(x), static_argnames="call"))(ONES)
        assert str(raised.value).startswith(use)


def test_what_leaks_says_so():
    kept = []
    wa.jit(lambda x: kept.append(x * 2) or x).lower(ONES)
    with pytest.raises(TypeError, match="depends on argument x of <lambda> left the function while it was traced"):
        np.asarray(kept[0])
    assert repr(kept[0]) == "Array(f32[2,3], recorded)"


def test_a_traced_array_says_what_it_is():
    seen = []
    wa.jit(lambda q: seen.append(repr(q["w"])) or q["w"]).lower({"w": ONES})
    assert seen == ["Array(f32[2,3], traced argument q['w'])"]


def test_what_is_no_array_names_its_path():
    f = wa.jit(lambda q: q)
    with pytest.raises(TypeError, match=r"argument q\['w'\]\[0\] of <lambda>: .*got str.*static_argnums"):
        f.lower({"w": ["text"]})
    with pytest.raises(TypeError, match="<lambda> returned a str: results are arrays in a pytree"):
        wa.jit(lambda x: "text").lower(ONES)
    with pytest.raises(TypeError, match="jit wraps a function; got int"):
        wa.jit(3)


def test_a_jit_function_within_another_is_inlined():
    inner = wa.jit(lambda x: x * 2)
    text = repr(wa.make_graph(lambda x: inner(x) + inner(x + 1))(ONES))
    assert text.count("multiply") == 2


def test_numpy_arguments_of_an_inner_function_become_arrays():
    inner = wa.jit(lambda x, y: x.T + y)
    assert "swapaxes" in repr(wa.make_graph(lambda x: inner(ONES, 1.0) * x)(2.0))


@wa.jit
def by_name(x):
    return x + 1


def test_a_jitted_function_is_copied_and_pickled_as_functions_are():
    assert copy.deepcopy({"f": by_name})["f"] is by_name
    assert pickle.loads(pickle.dumps(by_name)) is by_name
    nameless = wa.jit(lambda x: x)
    assert copy.deepcopy(nameless) is nameless
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(nameless)


def test_methods_can_be_wrapped():
    class Scaled:
        factor = 2

        @wa.jit(static_argnums=0)
        def call(self, x: Any) -> Any:
            return x * self.factor

    assert "multiply a 2.0" in Scaled.call.lower(Scaled(), ONES).as_text()


def test_lower_takes_shapes_alone():
    lowered = wa.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((4, 5), np.float16))
    assert "a: f16[4,5]" in lowered.as_text()


def test_lower_narrows_the_dtype_of_a_shape_as_of_an_array():
    shape = jax.ShapeDtypeStruct((1, 4, 2, 8), np.float64)
    lowered = wa.jit(wa.nn.dot_product_attention).lower(shape, shape, shape)
    assert "f32[1,4,2,8]" in lowered.as_text()
    assert lowered.out_info.dtype == np.float32
    with pytest.raises(TypeError, match=r"argument x\['a'\] of <lambda>: wgattn has no dtype complex64"):
        wa.jit(lambda x: x["a"]).lower({"a": jax.ShapeDtypeStruct((2,), np.complex64)})


def test_what_a_result_will_be():
    info = wa.jit(lambda x: {"a": x, "b": x.T.astype(np.float16), "c": 3}).lower(ONES).out_info
    assert {name: (aval.shape, aval.dtype) for name, aval in info.items()} == {
        "a": ((2, 3), np.float32),
        "b": ((3, 2), np.float16),
        "c": ((), np.int32),
    }


def test_a_returned_numpy_argument_is_a_copy():
    given = ONES.copy()
    result = wa.jit(lambda x: x)(given)
    given[:] = 7
    np.testing.assert_array_equal(result, ONES)


def test_a_failed_trace_leaves_nothing_behind():
    def fails(x: Any) -> Any:
        raise KeyError("mine")

    f = wa.jit(fails)
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            f.lower(ONES)
    assert _run.validating() is False
    assert (wa.asarray(ONES) + 1).shape == (2, 3)


def test_donation_is_checked_when_it_is_asked_for():
    for options in (
        {"static_argnums": 0, "donate_argnums": 0},
        {"static_argnames": "x", "donate_argnums": 0},
        {"static_argnums": 0, "donate_argnames": "x"},
    ):
        with pytest.raises(ValueError, match=r"x of <lambda> is static: it holds no memory to donate"):
            wa.jit(lambda x: x, **options)
    with pytest.raises(ValueError, match=r"y of <lambda> is static"):
        wa.jit(lambda x, *, y: x, static_argnames="y", donate_argnames=["x", "y"])
    with pytest.raises(ValueError, match=r"donate_argnums holds 3, and the function takes 1 arguments by position"):
        wa.jit(lambda x: x, donate_argnums=3)
    with pytest.raises(ValueError, match=r"donate_argnames holds 'y'; the function's parameters are: x"):
        wa.jit(lambda x: x, donate_argnames="y")


def test_the_name_and_the_function_stay():
    def attend(q: Any) -> Any:
        """Attend."""
        return q

    assert wa.jit(attend).__name__ == "attend"
    assert wa.jit(attend).__doc__ == "Attend."
    assert wa.jit(attend).__wrapped__ is attend
    assert repr(wa.jit(attend)) == "<wgattn.jit of attend>"
