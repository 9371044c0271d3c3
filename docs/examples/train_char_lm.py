"""A transformer learns the Zen of Python by heart, its attention computed by wgattn: one import is changed.

Two layers with grouped query heads and rotary embeddings, character by character, in plain JAX with optax. It trains
once with jax.nn's attention and once with wgattn.jax's, from the same seed, and the losses agree to 1e-3 at each step.
Then the weights that wgattn trained go on from a prompt:

    pip install optax matplotlib
    python docs/examples/train_char_lm.py --plot curves.png
"""

import argparse
import codecs
import contextlib
import io
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import wgattn

with contextlib.redirect_stdout(io.StringIO()):  # it prints itself
    import this

TEXT = codecs.decode(this.s, "rot13")
ALPHABET = sorted(set(TEXT))
PROMPT, LETTERS = "Beautiful is", 400  # how what is written begins, and how many letters are added
LAYERS, B, T, N, K, H = 2, 8, 64, 4, 2, 32  # N query heads; each pair of them shares one of K key/value heads
D = N * H
PEAK = 3e-3  # the learning rate's

Params = dict[str, Any]
Attention = Callable[..., jax.Array]  # (query, key, value, *, is_causal) as jax.nn's
ATTENTIONS: dict[str, Attention] = {
    "jax": jax.nn.dot_product_attention,
    "wgattn": wgattn.jax.dot_product_attention,
}


def encode(text: str) -> np.ndarray:
    return np.array([ALPHABET.index(letter) for letter in text], np.int32)


def initial(key: jax.Array) -> Params:
    """The weights: a table of the letters, six matrices a layer, and one that leads back to letters."""
    shapes = {
        "query": (D, N * H), "key": (D, K * H), "value": (D, K * H), "join": (N * H, D),
        "widen": (D, 4 * D), "narrow": (4 * D, D),
    }  # fmt: skip

    def matrices(key: jax.Array, shapes: dict[str, tuple[int, int]]) -> dict[str, jax.Array]:
        keys = jax.random.split(key, len(shapes))
        return {
            name: jax.random.normal(key, shape) * shape[0] ** -0.5
            for key, (name, shape) in zip(keys, shapes.items(), strict=True)
        }

    first, *layers = jax.random.split(key, 1 + LAYERS)
    ends = matrices(first, {"letters": (len(ALPHABET), D), "next": (D, len(ALPHABET))})
    return {"ends": ends, "layers": [matrices(key, shapes) for key in layers]}


def norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def rotate(x: jax.Array, positions: jax.Array | None = None) -> jax.Array:
    """Rotary embeddings of x (B, T, heads, H): head dims i and i + H/2 turn by an angle that grows with position.

    Positions are (B, T), 0 … T-1 unless given.
    """
    at = jnp.arange(x.shape[1]) if positions is None else positions
    angle = at[..., None, None] * 10000.0 ** (-jnp.arange(H // 2) / (H // 2))
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def logits(params: Params, tokens: jax.Array, attention: Attention) -> jax.Array:
    """What each of tokens (B, T) may be followed by: (B, T, letters)."""
    x = params["ends"]["letters"][tokens]
    for layer in params["layers"]:
        y = norm(x)
        query, key, value = (
            (y @ layer[name]).reshape(*y.shape[:2], heads, H)
            for name, heads in (("query", N), ("key", K), ("value", K))
        )
        heads = attention(rotate(query), rotate(key), value, is_causal=True)
        x = x + heads.reshape(y.shape) @ layer["join"]
        x = x + jax.nn.gelu(norm(x) @ layer["widen"]) @ layer["narrow"]
    return norm(x) @ params["ends"]["next"]


def loss(params: Params, tokens: jax.Array, attention: Attention) -> jax.Array:
    """The mean cross-entropy of each letter of tokens (B, T + 1) after those before it."""
    found = logits(params, tokens[:, :-1], attention)
    return optax.softmax_cross_entropy_with_integer_labels(found, tokens[:, 1:]).mean()


def train(attention: Attention, steps: int, seed: int = 0) -> tuple[Params, np.ndarray]:
    """The trained weights, and the loss at each step."""
    optimizer = optax.adam(optax.cosine_onecycle_schedule(steps, PEAK), b2=0.99)
    text = jnp.asarray(encode(TEXT))

    @jax.jit
    def step(params: Params, state: Any, key: jax.Array) -> tuple[Params, Any, jax.Array]:
        starts = jax.random.randint(key, (B, 1), 0, len(text) - T)
        value, gradient = jax.value_and_grad(loss)(params, text[starts + jnp.arange(T + 1)], attention)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    first, *keys = jax.random.split(jax.random.key(seed), 1 + steps)
    params = initial(first)
    state, losses = optimizer.init(params), []
    for key in keys:
        params, state, value = step(params, state, key)
        losses.append(float(value))
    return params, np.array(losses)


def write(params: Params, attention: Attention) -> str:
    """The prompt and what follows: each letter the likeliest one after the T before it."""
    following = jax.jit(partial(logits, attention=attention))
    tokens = list(encode(PROMPT))
    for _ in range(LETTERS):
        seen = np.array(tokens[-T:])
        padded = np.pad(seen, (0, T - len(seen)))  # causal: what stands behind is not seen
        tokens.append(int(following(params, padded[None])[0, len(seen) - 1].argmax()))
    return "".join(ALPHABET[token] for token in tokens)


def draw(losses: dict[str, np.ndarray], path: str) -> None:
    """Both curves side by side, and how far apart they are."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3), layout="constrained")
    names = {"jax": "jax.nn", "wgattn": "wgattn.jax"}
    panels = figure.subplots(1, len(losses) + (len(losses) > 1))
    for axes, (name, curve) in zip(np.atleast_1d(panels), losses.items(), strict=False):
        axes.plot(curve)
        axes.set(title=names[name], xlabel="step", ylabel="loss", ylim=(0, None))
    if len(losses) > 1:
        apart = np.abs(losses["wgattn"] - losses["jax"])
        panels[-1].semilogy(np.maximum(apart, 1e-9), ".")  # what is equal is drawn at the foot
        panels[-1].axhline(1e-3, linestyle=":", color="gray")
        panels[-1].set(title="difference", xlabel="step", ylim=(1e-9, 1e-2))
    figure.savefig(path, dpi=80)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a small transformer with jax.nn's attention and with wgattn's.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--attention", choices=[*ATTENTIONS, "both"], default="both")
    parser.add_argument("--plot", metavar="PNG", help="draw the losses into this file")
    options = parser.parse_args(arguments)
    losses = {}
    for name in ATTENTIONS if options.attention == "both" else (options.attention,):
        start = time.perf_counter()
        params, losses[name] = train(ATTENTIONS[name], options.steps)
        seconds = time.perf_counter() - start
        shown = losses[name][np.linspace(0, options.steps - 1, 9).astype(int)]
        print(f"{name:6}  {options.steps} steps in {seconds:.0f} s, loss", *(f"{x:.4f}" for x in shown), flush=True)
    if len(losses) > 1:
        print(f"largest difference {np.abs(losses['wgattn'] - losses['jax']).max():.1e}")
    if options.plot:
        draw(losses, options.plot)
    print(write(params, ATTENTIONS[name]))


if __name__ == "__main__":
    main()
