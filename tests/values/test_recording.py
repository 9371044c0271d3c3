"""Arrays record without a device, say what is wrong at once, and hold the bytes that they were given."""

import os
import subprocess
import sys
import weakref

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import wgattn as wa
from wgattn._record import LONGEST_CHAIN, build

NO_DEVICE = """
import numpy as np, sys
import wgattn as wa
q, kv = np.ones((2, 9, 8, 64), np.float16), np.ones((2, 7, 2, 64), np.float16)
out, residual = wa.nn.dot_product_attention(wa.nn.rope(q), kv, kv, is_causal=True, return_residual=True)
y = (out.reshape(2, 9, -1).swapaxes(1, 2)[:, ::2] * 2 + 1).mean(axis=-1)
z = wa.concatenate([y, wa.where(y > 0, y, 0)])
for _ in range(3000):
    z = z + 1
print(z, residual, z.is_ready())
try:
    np.asarray(y)
except wa.AdapterNotFoundError as error:
    print("no adapter")
print(sorted(m for m in ("jax", "wgpu") if m in sys.modules))
"""


def test_recording_needs_no_device():

    hidden = {
        **os.environ,
        "VK_ICD_FILENAMES": "/dev/null",
        "VK_DRIVER_FILES": "/dev/null",
        "WGPU_BACKEND_TYPE": "Vulkan",
    }
    done = subprocess.run([sys.executable, "-c", NO_DEVICE], capture_output=True, text=True, env=hidden, check=True)
    first, second, third = done.stdout.splitlines()
    assert first == "Array(f16[4,256], recorded) Array(f16[2,9,8], recorded) False"
    assert second == "no adapter"
    assert "jax" not in third


def test_the_bytes_are_taken_at_once():
    given = np.ones(3, np.float32)
    x = wa.asarray(given)
    given[:] = 7
    assert np.asarray(x).tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(x)[0] = 2
    assert np.array(x).flags.writeable


def test_what_asarray_takes():
    assert wa.asarray(jnp.ones((2, 3), jnp.bfloat16)).dtype == ml_dtypes.bfloat16
    assert wa.asarray([[1, 2], [3, 4]]).shape == (2, 2)
    assert wa.asarray(np.ones(2, ">f4")).dtype == np.float32
    assert wa.asarray(np.ones((4, 4), np.float32).T[::2]).shape == (2, 4)
    x = wa.asarray(1.0)
    assert wa.asarray(x) is x
    assert wa.asarray(1.0, np.float16).dtype == np.float16
    with pytest.raises(TypeError, match=r"asarray takes NumPy and JAX arrays.*got str"):
        wa.asarray("q")
    with pytest.raises(TypeError, match=r"join them, wgattn.concatenate\(\[a\[None\] for a in arrays\]\)"):
        wa.asarray([x, x])


def test_dlpack_both_ways():
    class Only:  # what has DLPack and nothing else
        def __init__(self, x):
            self.x = x

        def __dlpack__(self, **options):
            return self.x.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    ours = wa.asarray(Only(x))
    np.testing.assert_array_equal(np.from_dlpack(ours), x)
    np.testing.assert_array_equal(jnp.asarray(ours), x)


def test_an_array_is_made_by_asarray_alone():
    with pytest.raises(TypeError, match=r"wgattn.asarray\(x\)"):
        wa.Array(np.ones(3))


def test_matrix_products_say_what_wgattn_is_for():
    x = wa.asarray(np.ones((2, 2), np.float32))
    for call in (lambda: x @ x, lambda: np.ones((2, 2)) @ x, lambda: x**2, lambda: x // 2, lambda: 3 % x):
        with pytest.raises(TypeError, match=r"wgattn.nn.dot_product_attention\(query, key, value\)"):
            call()


def test_what_is_missing_says_so():
    x = wa.asarray(np.ones((2, 2), np.float32))
    with pytest.raises(AttributeError, match=r"wgattn.Array has no max: .*np.asarray\(x\)"):
        x.max()
    with pytest.raises(AttributeError, match="wgattn has no matmul"):
        wa.matmul  # noqa: B018
    with pytest.raises(TypeError, match=r"logical_and \(&, \|, ~\) takes bool arrays; got float32"):
        x & x
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)
    with pytest.raises(TypeError, match="sum adds up float arrays; this one is int32"):
        wa.sum(np.arange(3))


def test_shapes_that_do_not_fit_raise_at_once():
    x = wa.asarray(np.ones((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"add: shapes \(2, 3\) and \(2,\) do not broadcast"):
        x + np.ones(2)
    with pytest.raises(ValueError, match=r"shape \(2, 3\) does not broadcast to \(3, 3\)"):
        wa.broadcast_to(x, (3, 3))
    with pytest.raises(ValueError, match=r"concatenate along axis 0: shapes \(2, 3\) and \(2, 2\)"):
        wa.concatenate([x, x[:, :2]])
    with pytest.raises(ValueError, match="axis 2 does not exist"):
        x.sum(axis=2)


def test_repr_forces_nothing():
    x = wa.asarray(np.ones((2, 3), np.float32))
    assert repr(x) == "Array([[1., 1., 1.],\n       [1., 1., 1.]], dtype=float32)"
    assert repr(x + 1) == "Array(f32[2,3], recorded)"
    assert repr(wa.asarray(2)) == "Array(2, dtype=int32)"
    assert repr(wa.asarray(np.arange(99))) == "Array([ 0,  1, ..., 97, 98], dtype=int32)"
    assert repr(wa.asarray(np.ones((2, 8, 8, 64), np.float16))) == "Array(f16[2,8,8,64], on the host)"


def test_facts_of_an_array():
    x = wa.asarray(np.ones((2, 3), np.float16))
    assert (x.shape, x.ndim, x.size, x.nbytes, x.dtype, x.device) == ((2, 3), 2, 6, 12, np.float16, None)


def test_what_holds_no_element_is_never_recorded():
    empty = wa.asarray(np.ones((0, 3), np.float32))
    assert np.asarray(empty + 1).shape == (0, 3)
    assert np.asarray(empty.T.reshape(3, 0)).shape == (3, 0)
    assert np.asarray(empty.sum(0)).tolist() == [0, 0, 0]
    assert np.isnan(np.asarray(empty.mean(0))).all()
    x = wa.asarray(np.ones((2, 3), np.float32))
    assert np.asarray(x[2:]).shape == (0, 3)
    assert wa.concatenate([empty, x]) is not None
    np.testing.assert_array_equal(np.asarray(wa.concatenate([empty, x])), np.ones((2, 3)))


def test_scalars_that_wgsl_cannot_write_are_values():
    x = wa.asarray(np.ones(2, np.float32))
    for scalar in (float("inf"), float("nan"), -0.0):
        y = x * scalar
        assert len(build([(y._step, 0)]).leaves) == 2, scalar
    assert len(build([((x * 0.5)._step, 0)]).leaves) == 1
    assert len(build([((x.astype(np.float16) * 1e6)._step, 0)]).leaves) == 2


def test_equal_recordings_are_equal_graphs():
    def graph(seed: int):
        x = wa.asarray(np.full((2, 3), seed, np.float32))
        y = (x.T * 2 + x.T).sum(0)
        return build([(y._step, 0)]).graph

    assert graph(1) == graph(2)
    assert hash(graph(1)) == hash(graph(2))


def test_a_graph_of_any_length_is_built_without_recursion():
    x = wa.asarray(np.ones(2, np.float32))
    from wgattn._array import Array, elementwise
    from wgattn._record import Trace, tracing

    with tracing(Trace("long")):
        y: Array = x
        for _ in range(2_000):
            y = elementwise("negative", y)
    assert len(build([(y._step, 0)]).graph.nodes) == 2_001


def test_what_is_dropped_goes():
    x = wa.asarray(np.ones(2, np.float32)) + 1
    watched = weakref.ref(x._step)
    del x
    assert watched() is None


def test_a_chain_has_a_bound():
    assert 100 <= LONGEST_CHAIN <= 1000


def test_copies_are_the_array_itself():
    import copy

    x = wa.asarray(np.ones(2, np.float32))
    assert copy.copy(x) is x
    assert copy.deepcopy([x])[0] is x


def test_comparison_with_what_is_no_array():
    x = wa.asarray(np.ones(2, np.float32))
    assert (x == None) is False  # noqa: E711
    assert (x != "a") is True
    with pytest.raises(TypeError, match="add takes Arrays, NumPy and JAX arrays and numbers; got str"):
        x + "a"
