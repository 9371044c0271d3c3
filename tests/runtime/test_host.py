"""Arrays in, one run, arrays out: by mapping, and in one submit through staging buffers."""

import numpy as np
import pytest

import wgattn
from tests.tolerance import check
from wgattn import _runtime
from wgattn._graph.graph import View

pytestmark = pytest.mark.device


@pytest.fixture(params=["mapped", "staged", "staged in chunks"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How bytes come to the device and back."""
    if request.param != "mapped":
        monkeypatch.setattr(_runtime.device(), "mappable", False)
    if request.param == "staged in chunks":
        monkeypatch.setattr("wgattn._runtime.encode.ONE_SUBMIT", 0)
    return request.param


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("odd", [0, 1])
def test_arrays_go_through(way: str, dtype: type, odd: int) -> None:
    """Rows of 16-bit results may be padded on the device, and never are in the array."""
    r = np.random.default_rng(0)
    q = r.standard_normal((1, 9, 2, 16 + odd)).astype(dtype)
    fn = wgattn.jit(lambda q: (wgattn.nn.dot_product_attention(q, q, q), q * 2))
    program = fn.lower(q).compile()._program
    right = [np.asarray(x) for x in fn(q)]
    place = np.empty_like(q)
    for turn in range(6):  # more than there are staging buffers of a size
        found = program.run_on_host([q], {0: place} if turn % 2 else None)
        for mine, other in zip(found, right, strict=True):
            assert mine.flags.c_contiguous
            check(mine, other)
        assert (found[0] is place) == bool(turn % 2)


def test_it_is_one_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    device = _runtime.device()
    monkeypatch.setattr(device, "mappable", False)
    x = np.random.default_rng(1).standard_normal((1, 64, 4, 64)).astype(np.float32)
    program = wgattn.jit(lambda q, k, v: wgattn.nn.dot_product_attention(q, k, v)).lower(x, x, x).compile()._program
    program.run_on_host([x, x, x])
    submits = []
    submit = device.submit
    monkeypatch.setattr(device, "submit", lambda encoder: (submits.append(encoder), submit(encoder))[1])
    program.run_on_host([x, x, x])
    assert len(submits) == 1


def test_what_lies_on_the_device_stays_there(way: str) -> None:
    a, b = np.arange(6, dtype=np.float32), np.ones(6, np.float32)
    program = wgattn.jit(lambda a, b: a + b).lower(a, b).compile()._program
    (found,) = program.run_on_host([a, _runtime.upload(b)])
    assert found.tolist() == (a + b).tolist()
    assert program.schedule.outputs[0].view == View.natural((6,))
