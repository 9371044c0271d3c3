"""Small graphs drawn by hypothesis: any operations on a few arrays, with attention calls among them."""

import math

from hypothesis import strategies as st

from tests.graph.recording import Recording
from wgattn._dtypes import bfloat16, float16, float32
from wgattn._graph import operations as op
from wgattn._graph.graph import Graph, Use
from wgattn._kernels.attention.problem import Bound, Call
from wgattn._kernels.rotation import Rope

CALLS = (Call(), Call(((Bound("upper", "diagonal"),),)), Call(scale=0.5, residual=float32), Call(softcap=3.0))
ROPE = Rope()


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A graph of at most a dozen operations over arrays whose attention axes are (2, 3, 4, 2) and the like."""
    r = Recording()
    known = [r.input(2, 3, 4, 2, dtype=draw(st.sampled_from([float32, float32, float16]))) for _ in range(2)]
    for _ in range(draw(st.integers(1, 12))):
        x = known[draw(st.integers(max(0, len(known) - 5), len(known) - 1))]
        known.append(draw(st.sampled_from(STEPS))(draw, r, x, known))
    count = draw(st.integers(1, 3))
    return r.graph(*(known[draw(st.integers(0, len(known) - 1))] for _ in range(count - 1)), known[-1])


def _shape(r: Recording, x: Use) -> tuple[int, ...]:
    return r.nodes[x.node].avals[x.result].shape


def _reshape(draw: st.DrawFn, r: Recording, x: Use, known: list[Use]) -> Use:
    size, shape = math.prod(_shape(r, x)), []
    while size > 1 and len(shape) < 4:
        divisors = [n for n in range(2, size + 1) if size % n == 0]
        shape.append(draw(st.sampled_from([1, *divisors])) if len(shape) < 3 else size)
        size //= shape[-1]
    return r.do(op.Reshape((*shape, *([size] if size > 1 else []))), x)


def _transpose(draw: st.DrawFn, r: Recording, x: Use, known: list[Use]) -> Use:
    return r.do(op.Transpose(tuple(draw(st.permutations(range(len(_shape(r, x))))))), x)


def _slice(draw: st.DrawFn, r: Recording, x: Use, known: list[Use]) -> Use:
    start, size, step = [], [], []
    for n in _shape(r, x):
        first, last = sorted((draw(st.integers(0, n - 1)), draw(st.integers(0, n - 1))))
        by = draw(st.sampled_from([1, 1, 2, -1]))
        start.append(last if by < 0 else first)
        size.append((last - first) // abs(by) + 1)
        step.append(by)
    return r.do(op.Slice(tuple(start), tuple(size), tuple(step)), x)


def _broadcast(draw: st.DrawFn, r: Recording, x: Use, known: list[Use]) -> Use:
    shape = tuple(draw(st.sampled_from([1, 2])) if n == 1 else n for n in _shape(r, x))
    return r.do(op.BroadcastTo((2, *shape) if len(shape) < 4 else shape), x)


def _repeat(draw: st.DrawFn, r: Recording, x: Use, known: list[Use]) -> Use:
    rank = len(_shape(r, x))
    return r.do(op.Repeat(2, draw(st.integers(0, rank - 1))), x) if rank else x


def _cast(draw: st.DrawFn, r: Recording, x: Use, known: list[Use]) -> Use:
    return r.do(op.Cast(draw(st.sampled_from([float32, float32, float16, bfloat16]))), x)


def _scale(draw: st.DrawFn, r: Recording, x: Use, known: list[Use]) -> Use:
    return r.multiply(x, draw(st.sampled_from([0.5, 0.75, -2.0])))


def _add(draw: st.DrawFn, r: Recording, x: Use, known: list[Use]) -> Use:
    return r.do(op.Elementwise("add"), x, x)


def _sum(draw: st.DrawFn, r: Recording, x: Use, known: list[Use]) -> Use:
    rank = len(_shape(r, x))
    return r.do(op.Sum((draw(st.integers(0, rank - 1)),), divisor=2), x) if rank else x


def _concatenate(draw: st.DrawFn, r: Recording, x: Use, known: list[Use]) -> Use:
    rank = len(_shape(r, x))
    return r.do(op.Concatenate(draw(st.integers(0, rank - 1))), x, x) if rank else x


def _rope(draw: st.DrawFn, r: Recording, x: Use, known: list[Use]) -> Use:
    shape = _shape(r, x)
    return r.do(op.Rotate(ROPE), x) if len(shape) == 4 and shape[-1] % 2 == 0 else x


def _attention(draw: st.DrawFn, r: Recording, x: Use, known: list[Use]) -> Use:
    """x as query, and a key and value that fit it, x itself among them."""
    shape, dtype = _shape(r, x), r.nodes[x.node].avals[x.result].dtype
    if len(shape) != 4 or shape[2] > 8:
        return x

    def fits(y: Use) -> bool:
        aval = r.nodes[y.node].avals[y.result]
        like = len(aval.shape) == 4 and (aval.shape[0], aval.shape[3]) == (shape[0], shape[3])
        return like and shape[2] % aval.shape[2] == 0 and aval.dtype == dtype

    key = draw(st.sampled_from([y for y in known if fits(y)]))
    alike = [y for y in known if fits(y) and _shape(r, y) == _shape(r, key)]
    return r.attention(x, key, draw(st.sampled_from(alike)), draw(st.sampled_from(CALLS)))


STEPS = (
    _reshape, _transpose, _slice, _broadcast, _repeat, _cast, _scale, _add, _sum, _concatenate, _rope,
    _attention, _attention, _attention, _transpose, _rope, _scale, _cast,
)  # fmt: skip
