"""What an attention call gives, as a type checker sees it: pyright reads this file too."""
# pyright: reportUnnecessaryTypeIgnoreComment=true

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import assert_type

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import wgattn as wa
from wgattn._options import AttentionOptions, CachedOptions

X = np.ones((1, 2, 2, 4), np.float32)
RESIDUAL = np.zeros((1, 2, 2), np.float32)
Pair = tuple[wa.Array, wa.Array]
JaxPair = tuple[jax.Array, jax.Array]


@pytest.mark.parametrize("flag", [False])
def test_return_residual_decides_the_type(flag: bool) -> None:
    assert_type(wa.nn.dot_product_attention(X, X, X), wa.Array)
    assert_type(wa.nn.dot_product_attention(X, X, X, is_causal=True, return_residual=False), wa.Array)
    assert_type(wa.nn.dot_product_attention(X, X, X, return_residual=flag), wa.Array | Pair)
    out, residual = assert_type(wa.nn.dot_product_attention(X, X, X, softcap=2.0, return_residual=True), Pair)
    assert (out.shape, residual.shape) == (X.shape, RESIDUAL.shape)


def test_of_a_cache() -> None:
    cache = wa.KVCache.create(1, 4, kv_heads=2, head_dim=4)
    assert_type(wa.nn.cached_attention(X, cache, scale=2.0), wa.Array)
    assert_type(wa.nn.cached_attention(X, cache, return_residual=True)[1], wa.Array)
    with pytest.raises(TypeError, match="key_value_seq_lengths"):
        wa.nn.cached_attention(X, cache, key_value_seq_lengths=None)  # pyright: ignore[reportCallIssue]


def test_of_merged_parts() -> None:
    assert_type(wa.nn.merge_attention([X], [RESIDUAL]), wa.Array)
    assert_type(wa.nn.merge_attention([X], [RESIDUAL], return_residual=True), Pair)


@pytest.mark.device
def test_in_jax() -> None:
    x = jnp.asarray(X)
    assert_type(wa.jax.dot_product_attention(x, x, x, is_causal=True), jax.Array)
    assert_type(wa.jax.dot_product_attention(x, x, x, return_residual=True), JaxPair)
    cache = wa.jax.new_cache(1, 4, kv_heads=2, head_dim=4)
    assert_type(wa.jax.cached_attention(x, cache), jax.Array)
    assert_type(wa.jax.cached_attention(x, cache, return_residual=True), JaxPair)
    assert_type(wa.jax.merge_attention([x], [RESIDUAL]), jax.Array)
    assert_type(wa.jax.merge_attention([x], [RESIDUAL], return_residual=True), JaxPair)


def keywords(function: Callable[..., object]) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {x.name for x in parameters if x.kind is x.KEYWORD_ONLY} - {"return_residual"}


@pytest.mark.parametrize("module", [wa.nn, wa.jax])
def test_the_options_of_the_types_are_those_of_the_calls(module: ModuleType) -> None:
    assert keywords(module.dot_product_attention) == AttentionOptions.__optional_keys__
    assert keywords(module.cached_attention) == CachedOptions.__optional_keys__
