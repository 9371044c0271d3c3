"""Views of views: what each view operation makes of a View, and a view of one layout seen through another."""

from wgattn._graph.graph import View
from wgattn._kernels.kernel import natural_strides


def settled(view: View) -> View:
    """The same view with the strides of one-element axes chosen by rule, so that equal views are equal values."""
    if 0 in view.shape:
        return View(view.shape, natural_strides(view.shape), 0)
    strides, step = [], 1
    for size, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        strides.append(step if size == 1 else stride)
        step = strides[-1] * size
    return View(view.shape, tuple(reversed(strides)), view.offset)


def reshaped(view: View, shape: tuple[int, ...]) -> View | None:
    """`view` in another shape of equal size, or None where no strides say so and a copy is needed."""
    if 0 in shape:
        return View.natural(shape)
    runs = _runs([(size, stride) for size, stride in zip(view.shape, view.strides, strict=True) if size > 1])
    strides: list[int] = []
    run, left = len(runs) - 1, runs[-1][0] if runs else 1
    step = runs[-1][1] if runs else 1
    for size in reversed(shape):
        if size == 1:
            strides.append(step)
            continue
        if left == 1:
            run -= 1
            left, step = runs[run]
        if left % size:
            return None
        strides.append(step)
        left, step = left // size, step * size
    return settled(View(shape, tuple(reversed(strides)), view.offset))


def _runs(axes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Axes with neighbours joined where one stride walks both: (size, stride), outermost first."""
    runs: list[tuple[int, int]] = []
    for size, stride in axes:
        if runs and runs[-1][1] == stride * size:
            runs[-1] = (runs[-1][0] * size, stride)
        else:
            runs.append((size, stride))
    return runs


def transposed(view: View, axes: tuple[int, ...]) -> View:
    return settled(View(tuple(view.shape[a] for a in axes), tuple(view.strides[a] for a in axes), view.offset))


def sliced(view: View, start: tuple[int, ...], size: tuple[int, ...], step: tuple[int, ...]) -> View:
    offset = view.offset + sum(first * stride for first, stride in zip(start, view.strides, strict=True))
    return settled(View(size, tuple(s * stride for s, stride in zip(step, view.strides, strict=True)), offset))


def broadcast(view: View, shape: tuple[int, ...]) -> View:
    """`view` repeated along new leading axes and along its axes of size 1: their strides become 0."""
    new = len(shape) - len(view.shape)
    strides = tuple(
        0 if size != to else stride for size, stride, to in zip(view.shape, view.strides, shape[new:], strict=True)
    )
    return settled(View(shape, (0,) * new + strides, view.offset))


def through(view: View, base: View, target: View) -> View | None:
    """The elements that `view` sees of a value laid out as `base`, where the same value is laid out as `target`.

    None where they are not evenly spaced there.
    """
    if view == base:
        return target
    if 0 in view.shape:
        return View.natural(view.shape)
    axes = _joint_axes(base, target)
    if axes is None:
        return None
    rest, offset, low = view.offset - base.offset, target.offset, []
    for size, stride, target_stride in axes:
        index = min(max(rest // stride, 0), size - 1)
        rest -= index * stride
        offset += index * target_stride
        low.append(index)
    if rest:
        return None
    high, strides = list(low), []
    for size, stride in zip(view.shape, view.strides, strict=True):
        if size == 1 or stride == 0:
            strides.append(0)
            continue
        axis = next(
            (a for a, (n, s, _) in enumerate(axes) if stride % s == 0 and abs(stride) // s * (size - 1) < n), None
        )
        if axis is None:
            return None
        step = stride // axes[axis][1]
        strides.append(step * axes[axis][2])
        low[axis] += min(step, 0) * (size - 1)
        high[axis] += max(step, 0) * (size - 1)
    if any(first < 0 or last >= axis[0] for first, last, axis in zip(low, high, axes, strict=True)):
        return None
    return settled(View(view.shape, tuple(strides), offset))


def _joint_axes(base: View, target: View) -> list[tuple[int, int, int]] | None:
    """(size, base stride, target stride), widest base stride first; axes that are one run in both are joined."""
    axes = [axis for axis in zip(base.shape, base.strides, target.strides, strict=True) if axis[0] > 1]
    axes.sort(key=lambda axis: -axis[1])
    joined: list[tuple[int, int, int]] = []
    for size, stride, target_stride in axes:
        if stride <= 0:
            return None
        if joined and joined[-1][1:] == (stride * size, target_stride * size):
            joined[-1] = (joined[-1][0] * size, stride, target_stride)
        else:
            joined.append((size, stride, target_stride))
    return joined
