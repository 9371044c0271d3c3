"""A transformer in JAX writes text with a KV cache on wgattn's device: prompts in chunks, then a token at a time.

The character model of train_char_lm.py learns the Zen of Python in a few seconds. Then it goes on from three prompts of
different lengths, greedily: once with a cache, once computing all of the text again for each letter. The letters are
the same, and once warm the cached loop traces nothing:

    pip install optax
    python docs/examples/generate.py --dtype int8 --layout paged
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from train_char_lm import ALPHABET, LAYERS, B, H, K, N, Params, T, encode, norm, rotate, train

import wgattn
from wgattn.jax import CacheHandle

PROMPTS = ["Beautiful is", "There should be one-- and preferably only", "Now is"]
CHUNK = 16  # tokens of a prompt that are given at once
SEEN = (T - 1, 0)  # the model was trained on T letters: each sees the T - 1 before it
ROPE = wgattn.nn.Rope()
traced: list[tuple[int, ...]] = []  # the tokens' shape of each trace of `step`: what JAX compiled it for

Attend = Callable[[int, jax.Array, jax.Array, jax.Array], jax.Array]  # (layer, query, key, value), not rotated


def logits(params: Params, tokens: jax.Array, attend: Attend) -> jax.Array:
    """What each of tokens (B, T) may be followed by: (B, T, letters)."""
    x = params["ends"]["letters"][tokens]
    for number, layer in enumerate(params["layers"]):
        y = norm(x)
        query, key, value = (
            (y @ layer[name]).reshape(*y.shape[:2], heads, H)
            for name, heads in (("query", N), ("key", K), ("value", K))
        )
        x = x + attend(number, query, key, value).reshape(y.shape) @ layer["join"]
        x = x + jax.nn.gelu(norm(x) @ layer["widen"]) @ layer["narrow"]
    return norm(x) @ params["ends"]["next"]


@partial(jax.jit, donate_argnums=1)
def step(
    params: Params, caches: list[CacheHandle], tokens: jax.Array, counts: jax.Array
) -> tuple[list[CacheHandle], jax.Array]:
    """The caches with the first `counts` of tokens (B, T) more, and the likeliest letter (B,) behind each sequence's.

    A chunk of the prompts, or with T = 1 the letters that were just written.
    """
    traced.append(tokens.shape)
    grown = list(caches)

    def attend(number: int, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        cache = caches[number]
        grown[number] = cache.append(key, value, counts, rope=ROPE)  # keys are rotated where they come to lie
        query = rotate(query, cache.positions(query.shape[1]))
        return wgattn.jax.cached_attention(
            query, grown[number], query_offset=cache.lengths, query_seq_lengths=counts, local_window_size=SEEN
        )

    found = logits(params, tokens, attend)
    last = jnp.take_along_axis(found, counts[:, None, None] - 1, axis=1)
    return grown, last[:, 0].argmax(-1)


def stored(x: jax.Array, dtype: str) -> jax.Array:
    """x as a cache of that dtype gives it back."""
    if dtype != "int8":
        return x.astype(dtype).astype(x.dtype)
    scale = jnp.abs(x).max(-1, keepdims=True) / 127
    return jnp.round(x / scale) * scale


@partial(jax.jit, static_argnames="dtype")
def again(params: Params, tokens: jax.Array, lengths: jax.Array, dtype: str) -> jax.Array:
    """The likeliest letter behind the first `lengths` of tokens (B, T), computed from all of them."""
    at = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)

    def attend(_: int, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        keys, values = stored(rotate(key, at), dtype), stored(value, dtype)
        return wgattn.jax.dot_product_attention(rotate(query, at), keys, values, is_causal=True, local_window_size=SEEN)

    found = logits(params, tokens, attend)
    return jnp.take_along_axis(found, lengths[:, None, None] - 1, axis=1)[:, 0].argmax(-1)


def write(params: Params, letters: int, **options: Any) -> tuple[np.ndarray, float, int]:
    """So many letters (prompts, letters) behind each prompt, with caches of such options.

    Also the letters a second, and how often a step was traced once there was a first letter.
    """
    prompts = [encode(prompt) for prompt in PROMPTS]
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    whole = np.zeros((len(prompts), -(-lengths.max() // CHUNK) * CHUNK), np.int32)
    for row, prompt in zip(whole, prompts, strict=True):
        row[: len(prompt)] = prompt
    capacity = int(lengths.max()) + letters
    caches = [CacheHandle.create(len(prompts), capacity, K, H, **options) for _ in range(LAYERS)]
    token, ones = jnp.zeros(len(prompts), jnp.int32), jnp.ones(len(prompts), jnp.int32)
    for start in range(0, whole.shape[1], CHUNK):
        counts = np.clip(lengths - start, 0, CHUNK)
        caches, found = step(params, caches, whole[:, start : start + CHUNK], counts)
        token = jnp.where(counts > 0, found, token)
    caches, following = step(params, caches, token[:, None], ones)  # the first of its kind: compiled
    written, warm = [token, following.block_until_ready()], len(traced)
    began = time.perf_counter()
    while len(written) < letters:
        caches, following = step(params, caches, written[-1][:, None], ones)
        written.append(following)
    text = np.stack(written, axis=1)
    rate = (letters - 2) * len(prompts) / (time.perf_counter() - began)
    for cache in caches:
        cache.free()
    return text, rate, len(traced) - warm


def write_again(params: Params, letters: int, dtype: str) -> tuple[np.ndarray, float]:
    """The same without a cache: each letter from all of the text before it. Also the letters a second."""
    prompts = [encode(prompt) for prompt in PROMPTS]
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    text = np.zeros((len(prompts), lengths.max() + letters), np.int32)
    for row, prompt in zip(text, prompts, strict=True):
        row[: len(prompt)] = prompt
    again(params, text, lengths, dtype).block_until_ready()  # the first of its kind: compiled
    began = time.perf_counter()
    for n in range(letters):
        text[np.arange(len(prompts)), lengths + n] = again(params, text, lengths + n, dtype)
    rate = letters * len(prompts) / (time.perf_counter() - began)
    return np.stack([row[n : n + letters] for row, n in zip(text, lengths, strict=True)]), rate


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write text with a KV cache, and without one.")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16", "int8"], default="float16")
    parser.add_argument("--layout", choices=["dense", "paged"], default="dense")
    parser.add_argument("--letters", type=int, default=120, help="written behind each prompt")
    parser.add_argument("--steps", type=int, default=150, help="of training")
    options = parser.parse_args(arguments)
    params, losses = train(jax.nn.dot_product_attention, options.steps)
    print(f"trained {options.steps} steps of {B} x {T} letters to a loss of {losses[-1]:.3f}", flush=True)
    text, rate, again_traced = write(params, options.letters, dtype=options.dtype, layout=options.layout)
    print(f"{options.dtype}, {options.layout}: {rate:.0f} letters a second, traced {again_traced} times once warm")
    right, slow = write_again(params, options.letters, options.dtype)
    print(f"from all of the text each time: {slow:.0f} letters a second", flush=True)
    assert np.array_equal(text, right), "the letters are those of attention that is computed again"
    assert again_traced == 0
    for prompt, row in zip(PROMPTS, text, strict=True):
        print(f"\n{prompt}|" + "".join(ALPHABET[token] for token in row))


if __name__ == "__main__":
    main()
