"""shard_map over batch and heads with its default checks, and sharded arguments of jit, on 2 and 8 host devices."""

import pytest

from tests.faces.jax.programs import check

pytestmark = pytest.mark.device

CALLS = """
x, y = SHAPE
mesh = jax.make_mesh((x, y), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
q, k, v = normal(8, 16, 8, 16), normal(8, 20, 8, 16), normal(8, 20, 8, 16)
bias, scale, weight = normal(1, 8, 1, 20), jnp.float32(0.3), normal(8, 16, 8, 16)
heads = P("x", None, "y")
specs = (heads, heads, heads, P(None, "y"), P())

def sharded(attention):
    def call(q, k, v, bias, scale):
        return attention(q, k, v, bias, scale=scale, is_causal=True, return_residual=True)
    return jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=(heads, heads))

def whole(q, k, v, bias, scale):
    return theirs(q, k, v, bias, scale=scale, is_causal=True, return_residual=True)

given = (q, k, v, bias, scale)
close(jax.jit(sharded(ours))(*given), whole(*given))
def loss(call):
    return jax.jit(jax.grad(lambda *given: (call(*given)[0] * weight).sum(), (0, 1, 2, 3, 4)))
close(loss(sharded(ours))(*given), loss(whole)(*given))

# the gradient of a replicated bias taken inside is the sum over the devices that share it
inside = jax.shard_map(
    lambda q, k, v, bias: jax.grad(lambda bias: ours(q, k, v, bias).sum())(bias),
    mesh=mesh, in_specs=specs[:4], out_specs=P(None, "y"),
)
close(jax.jit(inside)(q, k, v, bias), jax.grad(lambda bias: theirs(q, k, v, bias).sum())(bias))

mapped = jax.shard_map(jax.vmap(lambda q, k, v: ours(q, k, v)), mesh=mesh, in_specs=P("x"), out_specs=P("x"))
close(jax.jit(mapped)(q, k, v), theirs(q, k, v))

placed = [jax.device_put(a, NamedSharding(mesh, P("x"))) for a in (q, k, v)]
close(jax.jit(ours)(*placed), theirs(q, k, v))
print("done")
"""


@pytest.mark.parametrize("shape", [(2, 1), (4, 2)], ids=["2 devices", "8 devices"])
def test_shard_map_over_batch_and_heads(shape: tuple[int, int]) -> None:
    """https://github.com/jax-ml/jax/issues/30619 and https://github.com/jax-ml/jax/issues/38164"""
    assert "done" in check(f"SHAPE = {shape}\n{CALLS}", shape[0] * shape[1])
