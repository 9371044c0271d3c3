"""The operations on caches: their rules, their text and their adjoints, without a device."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import wgattn as wa
from tests.graph.recording import Recording
from tests.graph.test_adjoints import compare, rotated
from wgattn._array import Array, asarray, of
from wgattn._dtypes import FLOATS, bfloat16, float8_e5m2, float16, float32, int8, int32, uint8, uint32
from wgattn._errors import UnsupportedError
from wgattn._graph import operations as op
from wgattn._graph.graph import Aval
from wgattn._graph.rules import infer
from wgattn._graph.text import as_text
from wgattn._kernels.stored import row_size, scale_count
from wgattn._record import record

B, C, K, H, Hv, T = 2, 16, 3, 40, 33, 5
DENSE = ("key", "value", "lengths", "new_key", "new_value")


def operands(dtype: np.dtype = float16, paged: bool = False, **changed: Aval) -> dict[str, Aval]:
    """Those of an append, in order."""
    first = (7, 8) if paged else (B, C)
    found = {side: Aval((*first, K, row_size(dtype, n)), dtype) for side, n in (("key", H), ("value", Hv))}
    if blocks := scale_count(dtype, H) + scale_count(dtype, Hv):
        found["scales"] = Aval((*first, K, blocks), float32)
    if paged:
        found["pages"] = Aval((B, 2), int32)
    found |= {"lengths": Aval((B,), int32), "new_key": Aval((B, T, K, H), float32)}
    return {**found, "new_value": Aval((B, T, K, Hv), float32), **changed}


def results(given: dict[str, Aval], **options: Any) -> tuple[Aval, ...]:
    return infer(op.CacheAppend(tuple(given), **options), tuple(given.values()))


@pytest.mark.parametrize("dtype", [*FLOATS, int8, uint8, float8_e5m2], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("paged", [False, True])
def test_an_append_gives_back_its_storage_and_the_new_lengths(dtype, paged):
    given = operands(dtype, paged, counts=Aval((B,), int32))
    stored = [given[name] for name in ("key", "value", "scales") if name in given]
    assert results(given, ring=3) == (*stored, Aval((B,), int32))


def test_rows_of_storage_are_whole_words():
    assert [row_size(dtype, 33) for dtype in (float32, float16, int8, float8_e5m2)] == [36] * 4
    assert [row_size(uint8, n) for n in (1, 32, 33, 128)] == [16, 16, 32, 64]
    assert [scale_count(dtype, 33) for dtype in (float32, int8, uint8)] == [0, 1, 2]


WIDE = {"key": Aval((3, C, K, 40), float16), "value": Aval((3, C, K, 36), float16)}
REFUSED = {
    "no scales": (ValueError, "int8 storage has scales", {**operands(int8), "scales": None}),
    "scales": (ValueError, "float16 storage has no scales", operands(scales=Aval((B, C, K, 2), float32))),
    "few scales": (ValueError, r"f32\[2,16,3,4\]", operands(uint8, scales=Aval((B, C, K, 3), float32))),
    "two types": (TypeError, "value is float32 beside float16", operands(value=Aval((B, C, K, 36), float32))),
    "type": (TypeError, "one storage type", operands(key=Aval((B, C, K, 40), uint32))),
    "new type": (TypeError, "new rows are float32", operands(new_key=Aval((B, T, K, H), int8))),
    "heads": (ValueError, r"would be \(2, 16, 4, 40\)", operands(new_key=Aval((B, T, 4, H), float32))),
    "tokens": (ValueError, "beside", operands(new_value=Aval((B, 1, K, Hv), float32))),
    "row": (ValueError, r"would be \(2, 16, 3, 44\)", operands(new_key=Aval((B, T, K, 41), float32))),
    "batch": (ValueError, "storage of 3 sequences", operands(**WIDE)),
    "lengths": (ValueError, r"lengths must be i32\[2\]; got f32\[2\]", operands(lengths=Aval((B,), float32))),
    "counts": (ValueError, r"counts must be i32\[2\]; got i32\[3\]", operands(counts=Aval((3,), int32))),
    "pages": (ValueError, r"pages must be", operands(paged=True, pages=Aval((3, 2), int32))),
    "alone": (ValueError, "key and new_key", {name: operands()[name] for name in ("key", "lengths", "new_value")}),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_an_append_that_does_not_fit_is_refused(case):
    error, message, given = REFUSED[case]
    with pytest.raises(error, match=message):
        results({name: aval for name, aval in given.items() if aval is not None})


def test_pages_and_rings_have_their_sizes():
    with pytest.raises(ValueError, match="power of two"):
        results(operands(paged=True, key=Aval((7, 6, K, 40), float16), value=Aval((7, 6, K, 36), float16)))
    with pytest.raises(ValueError, match="ring of 16 slots cannot have 16 pinned"):
        results(operands(), ring=C)
    with pytest.raises(ValueError, match="rotates 42 of head_dim 40"):
        results(operands(), rope=wa.nn.Rope(rotary_dim=42))


def test_moves_and_rows():
    storage, index = Aval((4, 8, K, 4), float16), Aval((6,), int32)
    assert infer(op.CacheMove(), (storage, index)) == (Aval((6, 8, K, 4), float16),)
    assert infer(op.CacheMove(destination=True), (storage, index, index)) == (storage,)
    assert infer(op.CacheRows(3), (storage, Aval((4,), int32))) == (Aval((4, 3, K, 4), float16),)
    with pytest.raises(ValueError, match=r"indices \(M,\); got f32\[6\]"):
        infer(op.CacheMove(), (storage, Aval((6,), float32)))
    with pytest.raises(ValueError, match=r"whole words; an entry of f16\[4,3\]"):
        infer(op.CacheMove(), (Aval((4, 3), float16), index))
    with pytest.raises(ValueError, match=r"a source and perhaps a destination; got f32\[\]"):
        infer(op.CacheMove(), (Aval((), float32), index))
    with pytest.raises(ValueError, match="dense float"):
        infer(op.CacheRows(3), (Aval((4, 8, K, 4), int8), Aval((4,), int32)))
    with pytest.raises(ValueError, match=r"must be i32\[4\]"):
        infer(op.CacheRows(3), (storage, index))


TEXT = """\
a: i8[7,8,3,40]  b: i8[7,8,3,36]  c: f32[7,8,3,2]  d: i32[2,2]  e: i32[2]  f: f32[2,5,3,40]
g: f32[2,5,3,33]  h: i32[2]
i, j, k, l = cache_append a b  new f g  at e  counts=h  scales=c  pages=d  ring, 1 pinned
                 rope(k; base=10000, half){}
m = cache_move i  from h{}
n = cache_move b  from e  to h{}
out m: i8[2,8,3,40]  n: i8[7,8,3,36]"""


def test_the_text_says_what_is_written_in_place():
    r = Recording()
    given = operands(int8, paged=True, counts=Aval((B,), int32))
    uses = {name: r.input(*aval.shape, dtype=aval.dtype) for name, aval in given.items()}
    after = r.do(op.CacheAppend(tuple(given), 1, wa.nn.Rope()), *uses.values())
    taken = r.do(op.CacheMove(), after, uses["counts"])
    moved = r.do(op.CacheMove(destination=True), uses["value"], uses["lengths"], uses["counts"])
    graph = r.graph(taken, moved)
    assert as_text(graph) == TEXT.format("", "", "")
    assert as_text(graph, ()) == TEXT.format("  in a copy of a b c", "", "  in a copy of b")
    assert as_text(graph, (0, 1, 2)) == TEXT.format("  in a copy of b", "", "  in place")


def test_the_text_of_rows():
    r = Recording()
    rows = r.do(op.CacheRows(4), r.input(B, C, K, 4), r.input(B, dtype=int32), r.input(B, dtype=int32))
    assert "d = cache_rows a  4 from b  counts=c" in as_text(r.graph(rows))


def test_lowered_functions_know_what_is_donated():
    def grow(held: Any, new: Any) -> Any:
        return append(*held, *new)

    held = (np.zeros((B, C, K, 40), np.float16), np.zeros((B, C, K, 36), np.float16), np.zeros(B, np.int32))
    new = (np.zeros((B, 1, K, H), np.float32), np.zeros((B, 1, K, Hv), np.float32))
    line = "f, g, h = cache_append a b  new d e  at c"
    assert line + "  in a copy of a b" in wa.jit(grow).lower(held, new).as_text()
    assert line + "  in place" in wa.jit(grow, donate_argnums=0).lower(held, new).as_text()


def append(key: Any, value: Any, lengths: Any, new_key: Any, new_value: Any, **options: Any) -> tuple[Array, ...]:
    given = [asarray(x) for x in (key, value, lengths, new_key, new_value)]
    step = record(op.CacheAppend(DENSE, **options), [(x._step, x._result) for x in given])
    return tuple(of(step, result) for result in range(len(step.avals)))


LENGTHS = np.array([3, 0, 6, -2], np.int32)
ROPES = [None, wa.nn.Rope(), wa.nn.Rope(100.0, 4, "interleaved")]


def dense(m: Any, key: Any, value: Any, new_key: Any, new_value: Any, rope: Any = None) -> tuple[Any, Any]:
    """An append and then a little arithmetic, in wgattn or jax.numpy; capacity 8, two of three tokens fit the third."""
    if m is wa:
        key, value, _ = append(key, value, LENGTHS, new_key, new_value, rope=rope)
    else:
        start = np.maximum(LENGTHS, 0)
        if rope is not None:
            new_key = rotated(new_key.astype(np.float32), start[:, None] + np.arange(3), rope)
        pad = [(0, 0)] * 3
        for b, first in enumerate(start):
            count = min(3, 8 - first)
            rows = [jnp.pad(x[b, :count], [*pad[:2], (0, 2)]) for x in (new_key, new_value)]
            key = key.at[b, first : first + count].set(rows[0].astype(key.dtype))
            value = value.at[b, first : first + count].set(rows[1].astype(value.dtype))
    return key * 2 + value, value


@pytest.mark.parametrize("rope", ROPES, ids=["plain", "half", "interleaved"])
@pytest.mark.parametrize("dtype", FLOATS, ids=["f32", "f16", "bf16"])
def test_the_adjoint_of_an_append(rope, dtype):
    rng = np.random.default_rng(0)
    storage = [rng.standard_normal((4, 8, 2, 8)).astype(dtype) for _ in range(2)]
    new = [rng.standard_normal((4, 3, 2, 6)).astype(float32 if dtype == bfloat16 else dtype) for _ in range(2)]
    for fused in (False, True):
        compare(lambda m, *given: dense(m, *given, rope=rope), (*storage, *new), fused=fused)


def test_no_gradient_passes_what_a_cache_cannot_give_back():
    key, lengths, new = np.zeros((2, 8, 1, 4), np.float32), np.zeros(2, np.int32), np.zeros((2, 1, 1, 4), np.float32)
    with pytest.raises(UnsupportedError, match="a cache that is a ring"):
        wa.vjp(lambda x: append(key, key, lengths, x, x, ring=1)[0], new)
    with pytest.raises(UnsupportedError, match="a cache that stores float8_e5m2"):
        wa.vjp(lambda x: append(key.astype(float8_e5m2), key.astype(float8_e5m2), lengths, x, x)[0], new)

    def reordered(x: Any) -> Any:
        kept = append(key, key, lengths, x, x)[0]
        step = record(op.CacheMove(), [(kept._step, kept._result), (asarray(lengths)._step, 0)])
        return of(step)

    out, pull = wa.vjp(reordered, new)
    with pytest.raises(UnsupportedError, match="reordered"):
        pull(np.ones(out.shape, np.float32))
