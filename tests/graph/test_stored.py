"""What attention may read as key and value, and what its text says of it."""

from typing import Any

import numpy as np
import pytest

from tests.graph.recording import Recording, count
from wgattn._dtypes import float8_e4m3fn, float16, float32, int8, int32, uint8
from wgattn._graph import operations as op
from wgattn._graph.graph import Aval
from wgattn._graph.rewrite import fuse
from wgattn._graph.rules import infer
from wgattn._graph.text import as_text
from wgattn._kernels.attention.problem import Call
from wgattn._kernels.rotation import Rope

QUERY = Aval((2, 5, 4, 40), float32)
LENGTHS, PAGES = Aval((2,), int32), Aval((2, 3), int32)
PLAIN = Call()
PAGED = Call(empty="zero", page_size=8)
RING = Call(empty="zero", ring=1)


def avals(call: Call = PLAIN, **operands: Aval) -> tuple[Aval, ...]:
    given = {"query": QUERY, **operands}
    return infer(op.Attention(tuple(given), call, float32), list(given.values()))


def rows(dtype: Any, *shape: int, dims: tuple[int, int] = (40, 40)) -> dict[str, Aval]:
    return {name: Aval((*shape, dim), np.dtype(dtype)) for name, dim in zip(("key", "value"), dims, strict=True)}


def test_stored_types() -> None:
    """int8 has a scale a row, int4 rows of whole blocks and a scale each; the result's Hv is the call's there."""
    out = Aval((2, 5, 4, 40), float32)
    assert avals(**rows(float8_e4m3fn, 2, 7, 2)) == (out,)
    assert avals(**rows(int8, 2, 7, 2), scales=Aval((2, 7, 2, 2), float32)) == (out,)
    packed = rows(uint8, 2, 7, 2, dims=(32, 48))
    scales = Aval((2, 7, 2, 5), float32)
    assert avals(Call(value_dim=70), **packed, scales=scales) == (Aval((2, 5, 4, 70), float32),)


def test_pages_and_rings() -> None:
    out = Aval((2, 5, 4, 40), float32)
    more = {"key_value_lengths": LENGTHS, "pages": PAGES}
    assert avals(PAGED, **rows(float16, 11, 8, 2), **more) == (out,)
    assert avals(PAGED, **rows(float16, 11, 8, 2), **more, mask=Aval((2, 1, 1, 24), np.dtype(bool))) == (out,)
    assert avals(RING, **rows(float16, 2, 7, 2), key_value_lengths=LENGTHS) == (out,)


@pytest.mark.parametrize(
    ("call", "operands", "error", "text"),
    [
        (Call(), rows(int32, 2, 7, 2), TypeError, "key must not be int32"),
        (Call(), rows(int8, 2, 7, 2), ValueError, r"int8 need scales f32\[2,7,2,2\]; got none"),
        (Call(), rows(int8, 2, 7, 2) | {"scales": Aval((2, 7, 2, 1), float32)}, ValueError, r"got f32\[2,7,2,1\]"),
        (Call(), rows(float16, 2, 7, 2) | {"scales": Aval((2, 7, 2, 2), float32)}, TypeError, "float16 take no scales"),
        (Call(), rows(uint8, 2, 7, 2, dims=(40, 32)), ValueError, "do not fit together"),
        (
            Call(),
            rows(int8, 2, 7, 2) | {"value": Aval((2, 7, 2, 40), float16), "scales": Aval((2, 7, 2, 1), float32)},
            TypeError,
            "key int8 and value float16 must be quantised alike",
        ),
        (PAGED, rows(float16, 11, 8, 2), ValueError, r"needs pages int32 \(B, ·\); got none"),
        (PAGED, rows(float16, 11, 8, 2) | {"pages": Aval((3, 3), int32)}, ValueError, r"got i32\[3,3\]"),
        (PAGED, rows(float16, 11, 8, 2) | {"pages": PAGES}, ValueError, "need key_value_lengths"),
        (PAGED, rows(float16, 11, 16, 2) | {"pages": PAGES}, ValueError, r"must be a pool \(P, page_size = 8, K, ·\)"),
        (
            Call(empty="zero", page_size=12),
            rows(float16, 11, 12, 2),
            ValueError,
            "a power of two and at least 8; got 12",
        ),
        (
            PAGED,
            rows(float16, 11, 8, 2)
            | {"key_value_lengths": LENGTHS, "pages": PAGES, "mask": Aval((1, 1, 1, 8), np.dtype(bool))},
            ValueError,
            r"does not broadcast to \(2, 4, 5, 24\)",
        ),
        (
            Call(ring=0),
            rows(float16, 2, 7, 2) | {"key_value_lengths": LENGTHS},
            ValueError,
            "rows without keys that are",
        ),
        (Call(empty="zero", ring=7), rows(float16, 2, 7, 2) | {"key_value_lengths": LENGTHS}, ValueError, "7 slots"),
        (
            RING,
            rows(float16, 2, 7, 2) | {"key_value_lengths": LENGTHS, "bias": Aval((7,), float32)},
            ValueError,
            "a ring of keys takes no bias",
        ),
    ],
)
def test_what_does_not_fit(call: Call, operands: dict[str, Aval], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        avals(call, **operands)


def test_the_text_names_what_is_special() -> None:
    r = Recording()
    q, k, v = r.input(2, 1, 4, 8), r.input(5, 8, 2, 8, dtype=float16), r.input(5, 8, 2, 8, dtype=float16)
    more = {"key_value_lengths": r.input(2, dtype=int32), "pages": r.input(2, 3, dtype=int32)}
    paged = r.attention(q, k, v, PAGED, **more)
    assert as_text(r.graph(paged)).splitlines()[-2] == (
        "f = attention a b c  group=2  key_value_lengths=d  pages=e  scale=0.353553  empty=zero  page_size=8"
    )
    r = Recording()
    q, k, v = r.input(2, 1, 4, 8), r.input(2, 8, 2, 8), r.input(2, 8, 2, 8)
    ring = r.attention(q, k, v, RING, key_value_lengths=r.input(2, dtype=int32))
    assert "ring after 1 pinned" in as_text(r.graph(ring))


@pytest.mark.parametrize("call", [PAGED, Call(empty="zero", ring=0)])
def test_a_rotation_of_slots_is_no_rotation_of_keys(call: Call) -> None:
    """What a pool or a ring holds was rotated where it lies, which is not where it sits in the sequence."""
    r = Recording()
    pool = (5, 8) if call.page_size else (2, 24)
    q, k, v = r.input(2, 1, 4, 8), r.input(*pool, 2, 8), r.input(*pool, 2, 8)
    more = {"key_value_lengths": r.input(2, dtype=int32)}
    if call.page_size:
        more["pages"] = r.input(2, 3, dtype=int32)
    turned = [r.do(op.Rotate(Rope()), x) for x in (q, k)]
    assert count(fuse(r.graph(r.attention(*turned, v, call, **more))), op.Rotate) == 2


def test_repeated_heads_beside_scales_stay() -> None:
    r = Recording()
    q, k, v = r.input(2, 1, 4, 8), r.input(2, 7, 2, 8, dtype=int8), r.input(2, 7, 2, 8, dtype=int8)
    k, v = (r.do(op.Repeat(2, 2), x) for x in (k, v))
    out = r.attention(q, k, v, Call(), scales=r.input(2, 7, 4, 2))
    fused = fuse(r.graph(out))
    (attention,) = [node for node in fused.nodes if isinstance(node.operation, op.Attention)]
    assert fused.view(attention.uses[1]).shape == (2, 7, 4, 8)
