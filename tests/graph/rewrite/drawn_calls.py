"""Recordings as programs make them, drawn by hypothesis: attention on parts of arrays, between steps that fold."""

from hypothesis import strategies as st

from tests.graph.recording import Recording
from wgattn._dtypes import float16, float32
from wgattn._graph import operations as op
from wgattn._graph.graph import Graph, Use
from wgattn._kernels.attention.problem import Bound, Call
from wgattn._kernels.rotation import Rope

B, T, S, H = 2, 3, 4, 4
CALLS = (Call(), Call(((Bound("upper", "diagonal"),),)), Call(softcap=3.0, residual=float32))


@st.composite
def calls(draw: st.DrawFn) -> Graph:
    """One to three attention calls, each on its own part of three arrays; most steps are drawn once for all of them."""
    r = Recording()
    count, repeats = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 4]))
    stored = draw(st.sampled_from([float32, float16]))
    swapped, plan = draw(st.booleans()), _Plan(draw)
    arrays = [
        r.input(count, B, *((K, n) if swapped else (n, K)), H, dtype=stored)
        for n, K in ((T, 4), (S, 4 // repeats), (S, 4 // repeats))
    ]
    call, ends, inner = draw(st.sampled_from(CALLS)), draw(st.lists(st.sampled_from(ENDS), max_size=2)), []
    for part in range(count):
        taken = [_part(r, x, part) for x in arrays]
        if swapped:
            taken = [r.do(op.Transpose((0, 2, 1, 3)), x) for x in taken]
        if plan.often("cast"):
            taken = [r.do(op.Cast(float32), x) for x in taken]
        query, key, value = taken
        for step in plan.order:
            if plan.often(step + " query"):
                query = STEPS[step](r, query)
            if plan.often(step + " key"):
                key = STEPS[step](r, key)
        if repeats > 1 and plan.often("repeat"):
            key, value = (plan.form(r, x, repeats) for x in (key, value))
        inner += [query, key]
        if _dtype(r, query) != _dtype(r, key) or _dtype(r, key) != _dtype(r, value):
            continue
        out = r.attention(query, key, value, call)
        for end in ends:
            out = end(r, out)
        inner.append(out)
    outputs = [x for x in inner if draw(st.sampled_from([False, False, True]))] + inner[-1:]
    if draw(st.booleans()) and len({r.nodes[x.node].avals[0] for x in inner[2::3]}) == 1:
        outputs.append(r.do(op.Concatenate(0), *inner[2::3]))
    return r.graph(*outputs)


class _Plan:
    """What is done to all parts alike, but for a part here and there."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.known: dict[str, bool] = {}
        self.order = draw(st.permutations(sorted(STEPS)))
        self.form = draw(st.sampled_from([_repeated, _spread]))

    def often(self, what: str) -> bool:
        if what.startswith("rope"):
            what = "rope"
        usual = self.known.setdefault(what, self.draw(st.booleans()))
        return usual != (self.draw(st.integers(0, 15)) == 15)


def _part(r: Recording, x: Use, part: int) -> Use:
    shape = r.nodes[x.node].avals[0].shape
    one = r.do(op.Slice((part, 0, 0, 0, 0), (1, *shape[1:]), (1,) * 5), x)
    return r.do(op.Reshape(shape[1:]), one)


def _dtype(r: Recording, x: Use):
    return r.nodes[x.node].avals[0].dtype


def _repeated(r: Recording, x: Use, repeats: int) -> Use:
    return r.do(op.Repeat(repeats, 2), x)


def _spread(r: Recording, x: Use, repeats: int) -> Use:
    _, S, K, _ = r.nodes[x.node].avals[0].shape
    wide = r.do(op.BroadcastTo((B, S, K, repeats, H)), r.do(op.Reshape((B, S, K, 1, H)), x))
    return r.do(op.Reshape((B, S, K * repeats, H)), wide)


STEPS = {
    "rope": lambda r, x: r.do(op.Rotate(Rope()), x),
    "half": lambda r, x: r.multiply(x, 0.5),
    "part": lambda r, x: r.do(op.Elementwise("divide"), x, r.constant(3.0, _dtype(r, x))),
}
ENDS = (
    lambda r, x: r.do(op.Cast(float16), x),
    lambda r, x: r.do(op.Reshape((B, T * 4 * H)), r.do(op.Transpose((0, 2, 1, 3)), x)) if _rank(r, x) == 4 else x,
    lambda r, x: r.do(op.Reshape((B * T, 4 * H)), x),
)


def _rank(r: Recording, x: Use) -> int:
    return len(r.nodes[x.node].avals[0].shape)
