"""Arithmetic of views against NumPy's own."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.graph.evaluate import seen
from wgattn._graph.graph import View
from wgattn._graph.rewrite.strides import broadcast, reshaped, settled, sliced, through, transposed

BUFFER = np.arange(4000)


@st.composite
def views(draw: st.DrawFn) -> View:
    """A view of BUFFER, reached by slices, transpositions and broadcasts, as views are."""
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=4)))
    view = View(shape, View.natural(shape).strides, draw(st.integers(0, 50)))
    for _ in range(draw(st.integers(0, 3))):
        axes = tuple(draw(st.permutations(range(len(view.shape)))))
        view = transposed(view, axes)
        start, size, step = [], [], []
        for n in view.shape:
            by = draw(st.sampled_from([1, 1, 1, 2, -1, -2]))
            count = draw(st.integers(1, -(-n // abs(by))))
            start.append(n - 1 if by < 0 else 0)
            size.append(count)
            step.append(by)
        view = sliced(view, tuple(start), tuple(size), tuple(step))
        view = broadcast(view, tuple(draw(st.sampled_from([1, 3])) if n == 1 else n for n in view.shape))
    return view


def elements(view: View) -> np.ndarray:
    return seen(BUFFER, view)


@given(views(), st.data())
def test_reshape_is_numpys_and_refuses_only_what_needs_a_copy(view, data):
    size, shape = elements(view).size, []
    while size > 1:
        divisors = [n for n in range(1, size + 1) if size % n == 0]
        shape.append(data.draw(st.sampled_from(divisors if len(shape) < 5 else [size])))
        size //= shape[-1]
    found, array = reshaped(view, tuple(shape)), elements(view)
    if found is not None:
        np.testing.assert_array_equal(elements(found), array.reshape(shape))
        assert settled(found) == found
    else:
        assert not np.shares_memory(array.reshape(shape), array)


@given(views(), st.data())
def test_settled_views_see_the_same(view, data):
    strides = tuple(
        data.draw(st.integers(-9, 9)) if n == 1 else s for n, s in zip(view.shape, view.strides, strict=True)
    )
    np.testing.assert_array_equal(elements(settled(View(view.shape, strides, view.offset))), elements(view))


@given(st.data())
def test_through_finds_the_same_elements_in_another_layout(data):
    """A value laid out in one way, seen through a view; laid out in another, it has to look alike."""
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    order = data.draw(st.permutations(range(len(shape))))
    pitch = data.draw(st.integers(0, 2))

    def laid_out(order: list[int], pitch: int, offset: int) -> View:
        padded = [n + pitch * (a == len(shape) - 1) for a, n in enumerate(shape)]
        strides, step = [0] * len(shape), 1
        for axis in reversed(order):
            strides[axis] = step
            step *= padded[axis]
        return View(shape, tuple(strides), offset)

    base, target = laid_out(list(range(len(shape))), data.draw(st.integers(0, 1)), 3), laid_out(list(order), pitch, 5)
    first, second = np.full(3000, -1), np.full(3000, -2)
    seen(first, base)[...] = seen(second, target)[...] = np.arange(np.prod(shape)).reshape(shape)
    view = base
    for _ in range(2):
        view = transposed(view, tuple(data.draw(st.permutations(range(len(view.shape))))))
        flat = reshaped(view, (int(np.prod(view.shape)),))
        view = flat if flat is not None and data.draw(st.booleans()) else view
        size = tuple(data.draw(st.integers(1, n)) for n in view.shape)
        start = tuple(data.draw(st.integers(0, n - s)) for n, s in zip(view.shape, size, strict=True))
        view = sliced(view, start, size, (1,) * len(size))
    found = through(view, base, target)
    if found is not None:
        np.testing.assert_array_equal(seen(second, found), seen(first, view))
    if base.strides == target.strides:
        assert found is not None


def test_a_view_that_joins_axes_needs_a_layout_that_does():
    base = View.natural((2, 3, 4))
    flat = View((6, 4), (4, 1))
    assert through(flat, base, View((2, 3, 4), (4, 8, 1))) is None
    assert through(flat, base, View((2, 3, 4), (15, 5, 1), 2)) == View((6, 4), (5, 1), 2)
    assert through(View((4, 6), (1, 4)), base, View((2, 3, 4), (15, 5, 1))) == View((4, 6), (1, 5))


def test_padding_is_never_read_as_elements():
    base = View((3, 2), (4, 1))
    assert through(View((12,), (1,)), base, base) is None
    assert through(View((3, 2), (4, 1), 2), base, base) is None


def test_a_view_that_runs_over_the_end_of_an_axis_is_no_view_of_another_order():
    base, turned = View.natural((3, 4)), View((3, 4), (1, 3))
    assert through(View((4,), (1,), 4), base, turned) == View((4,), (3,), 1)
    assert through(View((4,), (1,), 6), base, turned) is None
    assert through(View((4,), (-1,), 6), base, turned) is None
    assert through(View((2, 2), (4, 1), 1), View((3, 2), (4, 1)), View((3, 2), (2, 1))) is None
