"""The text form, word for word: what `lower(...).as_text()` and `make_graph` print."""

from typing import Any

import numpy as np
import pytest

import wgattn as wa
from wgattn._graph.text import key_ranges, side_by_side
from wgattn.masks import Mask, causal, chunked, full, local, prefix

Q, K = np.ones((2, 1024, 8, 64), np.float16), np.ones((2, 2, 1024, 64), np.float16)


def attend(q: Any, k: Any, v: Any) -> Any:
    k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
    q, k = wa.nn.rope(q), wa.nn.rope(k)
    return wa.nn.dot_product_attention(q, k, v, mask=causal() & local(255, 0))


RECORDED = """\
a: f16[2,1024,8,64]  b: f16[2,2,1024,64]  c: f16[2,2,1024,64]
d = rope a
e = swapaxes b 1 2
f = rope e
g = swapaxes c 1 2
h = attention d f g  group=4  keys i-255 ≤ j ≤ i  scale=0.125
out h: f16[2,1024,8,64]"""

FUSED = """\
a: f16[2,1024,8,64]  b: f16[2,2,1024,64]  c: f16[2,2,1024,64]
d = attention a b[B,K,S,H] c[B,K,S,H]  rope(q,k; base=10000, half)  group=4  keys i-255 ≤ j ≤ i
        scale=0.125
out d: f16[2,1024,8,64]"""


def test_what_was_recorded():
    assert repr(wa.make_graph(attend)(Q, K, K)) == RECORDED


def test_before_and_after_fusion():
    text = wa.jit(attend).lower(Q, K, K).as_text()
    assert text == side_by_side(RECORDED, FUSED)
    first, second, *_ = text.splitlines()
    assert first.split() == ["recorded", "fused"]
    assert second.count("a: f16[2,1024,8,64]  b: f16[2,2,1024,64]") == 2


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_narrow_terminal_has_one_above_the_other(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = wa.jit(attend).lower(Q, K, K).as_text().splitlines()
    assert [line for line in lines if not line.startswith("  ")] == ["recorded", "", "fused"]
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == " ".join(f"recorded {RECORDED} fused {FUSED}".split())


def test_the_text_says_the_same_each_time():
    assert len({wa.jit(attend).lower(Q, K, K).as_text() for _ in range(3)}) == 1


def test_every_operation():
    def fn(x: Any, y: Any, at: Any) -> Any:
        a = x.reshape(2, 12).transpose(1, 0)[2:8:2, ::-1]
        b = wa.repeat(wa.broadcast_to(a[:, :1], (3, 2)), 2, axis=0)
        c = wa.where(b > 1, -b, wa.exp(b).astype(np.float16).astype(np.float32)).sum(axis=1, keepdims=True)
        d = wa.concatenate([c, c * 0.1], axis=1).mean()
        return d, x.transpose(1, 2, 0), wa.nn.rope(y, at, base=500.0, rotary_dim=4, style="interleaved")

    x, y = np.ones((2, 3, 4), np.float32), np.ones((5, 2, 8), np.float16)
    assert repr(wa.make_graph(fn)(x, y, np.arange(5))).splitlines() == [
        "a: f32[2,3,4]  b: f16[5,2,8]  c: i32[5]",
        "d = reshape a (2,12)",
        "e = swapaxes d 0 1",
        "f = slice e [2:8:2, 1::-1]",
        "g = slice f [:, 0:1]",
        "h = broadcast_to g (3,2)",
        "i = repeat h 2 axis=0",
        "j = greater i 1.0",
        "k = negative i",
        "l = exp i",
        "m = cast l f16",
        "n = cast m f32",
        "o = where j k n",
        "p = sum o axes=1 keepdims",
        "q = multiply p 0.1",
        "r = concatenate p q axis=1",
        "s = mean r axes=0,1",
        "t = transpose a 1,2,0",
        "u = reshape b (1,5,2,8)",
        "v = rope u at positions c  base=500  interleaved  rotary_dim=4",
        "w = reshape v (5,2,8)",
        "out s: f32[]  t: f32[3,4,2]  w: f16[5,2,8]",
    ]


def test_every_option_of_attention():
    def fn(q: Any, k: Any, bias: Any, lengths: Any, offset: Any, n: Any, sinks: Any) -> Any:
        return wa.nn.dot_product_attention(
            q, k, k, bias, scale=0.5, softcap=30.0, sinks=sinks, query_offset=offset, key_value_seq_lengths=lengths,
            mask=prefix(n) | causal(), return_residual=True, residual_dtype=np.float32, implementation="plain",
        )  # fmt: skip

    q, k = np.ones((1, 4, 2, 8), np.float32), np.ones((1, 6, 1, 8), np.float32)
    given = (q, k, np.ones((4, 6)), np.ones(1, np.int32), 3, np.int32(2), np.ones(2))
    assert repr(wa.make_graph(fn)(*given)).splitlines() == [
        "a: f32[1,4,2,8]  b: f32[1,6,1,8]  c: f32[4,6]  d: i32[1]  e: i32[]  f: i32[]  g: f32[2]",
        "h = reshape c (1,1,4,6)",
        "i, j = attention a b b  group=2  keys j ≤ f-1 or j ≤ i+e  bias=h  key_value_lengths=d  sinks=g",
        "           scale=0.5  softcap=30  residual=f32  implementation=plain",
        "out i: f32[1,4,2,8]  j: f32[1,4,2]",
    ]


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (full(), "every j"),
        (causal(), "j ≤ i"),
        (causal(3), "j ≤ i+3"),
        (local(2, 1), "i-2 ≤ j ≤ i+1"),
        (prefix(5), "j ≤ 4"),
        (prefix(5) | causal(), "j ≤ 4 or j ≤ i"),
        (prefix(5) & causal(), "j ≤ min(4, i)"),
        (chunked(8), "start of i's 8 ≤ j ≤ end of i's 8"),
        (chunked(8) & causal(), "start of i's 8 ≤ j ≤ i"),
        (chunked(8) & local(3, 0), "max(start of i's 8, i-3) ≤ j ≤ i"),
        (prefix(np.array(3, np.int32)), "j ≤ bound0-1"),
    ],
)
def test_key_ranges_in_words(mask: Mask, words: str):
    assert key_ranges(mask.clauses) == words


def test_texts_that_are_too_wide_stand_above_each_other():
    assert side_by_side("a" * 90, "b" * 90).splitlines() == ["recorded", "  " + "a" * 90, "", "fused", "  " + "b" * 90]


def test_names_go_on_after_z():
    def fn(x: Any) -> Any:
        for _ in range(30):
            x = -x
        return x

    assert repr(wa.make_graph(fn)(1.0)).splitlines()[25:28] == ["z = negative y", "aa = negative z", "ab = negative aa"]


def test_a_merge_names_its_parts_residuals_and_sinks():
    parts, residuals, sinks = np.ones((3, 5, 2, 8), np.float16), np.ones((3, 5, 2), np.float32), np.ones(2, np.float32)
    text = repr(wa.make_graph(wa.nn.merge_attention)(parts, residuals, sinks))
    assert text.splitlines()[1:] == ["d, e = merge a by b  sinks=c", "out d: f16[5,2,8]"]
