"""The launches of one backward call, whichever family sweeps: statistics, sweeps over boxes, sums made gradients."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, product

from wgattn._errors import UnsupportedError
from wgattn._kernels.attention.backward import rows, sums, texels
from wgattn._kernels.attention.backward.problem import GradientProblem, sweep_call, turned_rows
from wgattn._kernels.attention.backward.statistics import delta, empty_rows, far_rows, largest
from wgattn._kernels.attention.backward.work import Work, gather, key_heads, launch
from wgattn._kernels.attention.boxes import Box, Span, binds, cut, cut_to_limits, whole
from wgattn._kernels.attention.launches import most_work
from wgattn._kernels.attention.problem import Call
from wgattn._kernels.attention.textures import dense_fits
from wgattn._kernels.kernel import (
    Bytes,
    Copy,
    CopyToTexture,
    Launch,
    Operand,
    Plan,
    Scratch,
    Texture,
    Variant,
    bound_bytes,
)
from wgattn._runtime.profile import DeviceProfile

# How many times longer a dispatch takes than a fast forward family's over the same rows and keys. Backward makes nine
# products against forward's two, four of them in one dispatch at most, at less of the device's rate.
SLOWNESS = 5
KEPT_WORKGROUPS = 512  # of a launch that keeps gradients by scores: fewer leave too much of a device idle at its end
SCORED_SLOWLY = 32  # beside a bias: its gradient and far rows score again, a thread a pair


@dataclass(frozen=True, slots=True)
class Sweep:
    """A family's kernel that passes over keys (by query) or rows (by key and value), and its workgroups for a box.

    `direct` writes all gradients of the sweep instead of sums: it serves where one dispatch makes a box's, unrotated.
    """

    variant: Variant
    workgroups: Callable[[Box], int]
    direct: Variant | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """A sweep by key and value that keeps the gradients by scores of some heads, at most so many bytes, and what makes
    the query's gradient of them. They lie in blocks of `rows` × `keys`, each of `itemsize` bytes."""

    by_key_value: Sweep
    by_query: Sweep
    most_bytes: int
    rows: int
    keys: int
    itemsize: int

    def nbytes(self, box: Box, heads: int) -> int:
        blocks = box.batch * heads * -(-box.size("t") // self.rows) * -(-box.size("s") // self.keys)
        return blocks * self.rows * self.keys * self.itemsize


@dataclass(frozen=True, slots=True)
class Sweeps:
    """A family's two sweeps, and how many keys and query rows one invocation may pass; None: any number.

    `from_textures`: the sweeps read query, key, value and grad_out from textures, and those of bias and mask that are
    `dense`. `by_largest`: they read the largest elements of V and grad_out. `slowness`: see SLOWNESS.
    """

    by_query: Sweep
    by_key_value: Sweep
    max_keys: int | None = None
    max_rows: int | None = None
    from_textures: bool = False
    dense: tuple[str, ...] = ()
    by_largest: bool = False
    slowness: int = SLOWNESS
    kept: Kept | None = None


def plan_gradient(
    problem: GradientProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile, sweeps: Sweeps
) -> Plan:
    """The plan of a backward call.

    Operands are the forward's (query key value out bias mask and the small run-time arrays), residual (float32,
    B0 B1 T N, contiguous), grad_out, and the wanted results: grad_query grad_key grad_value with every batch entry and
    16-bit rows of whole words, grad_bias with size 1 on the axes that are summed over, grad_sinks of one
    row or one a batch entry, grad_scale of one number or one a batch entry; the last three contiguous.
    """
    rope, limits = call.rope, profile.limits
    swept = dict(operands)
    if rope is not None:
        swept |= {name: turned_rows(operands[name]) for name in ("query", "key")}
    gathered, statistics_at = gather(problem.sweep, operands)
    if sum(scratch.nbytes for scratch in gathered.scratch.values()) > limits.binding_bytes:
        raise UnsupportedError(
            f"the statistics of all query rows take more than the {limits.binding_bytes:,} bytes that this device "
            f"binds at once; call with a part of the batch or heads at a time"
        )
    work = Work(problem, sweep_call(call, operands["query"].shape[4]), swept, gathered, statistics_at, limits)
    boxes, key_spans = _boxes(work, sweeps, profile)
    everything = whole(swept)
    steps: list[Launch | Copy | CopyToTexture] = list(gathered.steps)
    scratch: dict[str, Scratch | Texture] = dict(gathered.scratch)

    if rope is not None:
        for name in ("query", "key"):
            scratch[rows.turned_name(name)] = Scratch(-(-swept[name].extent()[1] // 4) * 16)
        steps += [rows.turn(work, box, "query", operands["query"], rope) for box in boxes]
        by_keys = (replace(box, s=span) for box in _first_rows(boxes, work.group) for span in key_spans)
        steps += [rows.turn(work, box, "key", operands["key"], rope) for box in by_keys]
    for box in boxes:
        steps.append(delta(work, box))
        if problem.sweep.bias is not None:
            steps += far_rows(work, box, key_spans, limits.loop_turns)
    parts = tuple(replace(box, s=span) for box, span in product(boxes, key_spans))
    if sweeps.by_largest:
        turns = _in_turn(parts, lambda part: _keys_of(part, work.group))
        steps += [largest(work, part, again) for part, again in turns]
    wanted, textures = problem.wanted, texels.Textures(sweeps.dense) if sweeps.from_textures else None
    heads = _kept_heads(work, sweeps, everything, profile)
    if sweeps.kept is not None and heads:
        steps += _by_kept(work, sweeps.kept, everything, heads, scratch, call)
    else:
        if "query" in wanted or "scale" in wanted:
            steps += _by_query(work, sweeps.by_query, boxes, key_spans, scratch, call, textures)
        if "key" in wanted or "value" in wanted:
            steps += _by_key_value(
                work, sweeps.by_key_value, boxes, key_spans, scratch, call, textures, sweeps.max_rows
            )
    if "bias" in wanted:
        bias = sums.bias_sums(work, parts, limits.loop_turns)
        steps += [bias.add(part, again) for part, again in _in_turn(parts, bias.elements_of)]
        if not bias.direct:
            scratch["bias_parts"] = Scratch(bias.nbytes)
            steps.append(bias.finish())
    if "sinks" in wanted:
        steps.append(sums.sinks(work, everything))
    return Plan(tuple(steps), scratch)


def _with_mean(problem: GradientProblem) -> bool:
    """Whether rows that keep no key are the mean of V, which then has a gradient of theirs."""
    return "value" in problem.wanted and problem.forward.empty_rows == "mean" and not problem.forward.sinks


def _kept_heads(work: Work, sweeps: Sweeps, box: Box, profile: DeviceProfile) -> int:
    """Of how many query heads gradients by scores are kept at a time, whole groups; 0 where they are not kept."""
    wanted, kept = set(work.problem.wanted), sweeps.kept
    if kept is None or not {"query", "key", "value"} <= wanted or "scale" in wanted:
        return 0
    if kept.by_key_value.direct is not None and _with_mean(work.problem):
        return 0
    heads = min(kept.most_bytes // kept.nbytes(box, work.group) * work.group, box.size("n"))
    here = replace(box, n=(0, heads))
    if heads == 0 or (kept.by_key_value.workgroups(here) < KEPT_WORKGROUPS and heads < box.size("n")):
        return 0
    boxes, key_spans = _boxes(work, sweeps, profile, launches=box.size("n") // heads)
    in_one = len(boxes) == len(key_spans) == len(_short(box, sweeps.max_rows)) == 1
    return heads if in_one else 0


def _by_kept(
    work: Work,
    kept: Kept,
    box: Box,
    heads: int,
    scratch: dict[str, Scratch | Texture],
    call: Call,
) -> list[Launch | Copy | CopyToTexture]:
    """All three gradients, some heads after others."""
    steps: list[Launch | Copy | CopyToTexture] = []
    first, end = box.n
    scratch["kept_scores"] = Scratch(kept.nbytes(box, heads))
    scores: dict[str, Bytes | str] = {"scores": Bytes("kept_scores")}
    for start in range(first, end, heads):
        here = (replace(box, n=(start, min(start + heads, end))),)
        steps += _by_key_value(work, kept.by_key_value, here, (box.s,), scratch, call, None, None, scores)
        steps += _by_query(work, kept.by_query, here, (box.s,), scratch, call, None, scores)
    return steps


def _by_query(
    work: Work,
    sweep: Sweep,
    boxes: tuple[Box, ...],
    key_spans: tuple[Span, ...],
    scratch: dict[str, Scratch | Texture],
    call: Call,
    textures: texels.Textures | None,
    others: Mapping[str, Bytes | str] | None = None,
) -> list[Launch | Copy | CopyToTexture]:
    """grad_query, a box of rows after another, and grad_scale from the same sums."""
    wanted, problem = work.problem.wanted, work.problem.sweep
    steps: list[Launch | Copy | CopyToTexture] = []
    if sweep.direct is not None and len(key_spans) == 1 and "scale" not in wanted:
        return [_direct(work, sweep, sweep.direct, replace(box, s=key_spans[0]), ("query",), others) for box in boxes]
    for place, box in enumerate(boxes):
        _grow(scratch, "query_sums", box.batch * box.size("t") * box.size("n") * problem.head_dim * 4)
        for turn, span in enumerate(key_spans):
            here = replace(box, s=span)
            steps += _swept(work, sweep, here, "query_sums", turn > 0, scratch, textures, others)
        if "query" in wanted:
            steps.append(rows.finish(work, box, "query", call.rope, work.operands["grad_query"], mean=False))
        if "scale" in wanted:
            steps.append(sums.scale_part(work, box, place))
    if "scale" in wanted:
        scratch["scale_parts"] = Scratch(sums.scale_bytes(work, len(boxes)))
        steps.append(sums.scale(work, len(boxes)))
    return steps


def _by_key_value(
    work: Work,
    sweep: Sweep,
    boxes: tuple[Box, ...],
    key_spans: tuple[Span, ...],
    scratch: dict[str, Scratch | Texture],
    call: Call,
    textures: texels.Textures | None,
    max_rows: int | None,
    others: Mapping[str, Bytes | str] | None = None,
) -> list[Launch | Copy | CopyToTexture]:
    """grad_key and grad_value, a range of keys after another, each over all query rows."""
    wanted, problem = work.problem.wanted, work.problem.sweep
    mean = _with_mean(work.problem)
    steps: list[Launch | Copy | CopyToTexture] = []
    for _, same in groupby(boxes, lambda box: _keys_of(box, work.group)):
        parts = [short for box in same for short in _short(box, max_rows)]
        heads = key_heads(parts[0], work.group)
        if mean:
            _grow(scratch, "mean", parts[0].batch * heads * problem.value_dim * 4)
            steps += [empty_rows(work, box, turn > 0) for turn, box in enumerate(parts)]
        if sweep.direct is not None and len(parts) == 1 and not mean:
            for span in key_spans:
                here = replace(parts[0], s=span)
                steps.append(_direct(work, sweep, sweep.direct, here, ("key", "value"), others))
            continue
        for span in key_spans:
            row = (problem.head_dim + problem.value_dim) * 4
            _grow(scratch, "key_value_sums", parts[0].batch * heads * (span[1] - span[0]) * row)
            for turn, box in enumerate(parts):
                here = replace(box, s=span)
                steps += _swept(work, sweep, here, "key_value_sums", turn > 0, scratch, textures, others)
            here = replace(parts[0], s=span)
            for name in ("key", "value"):
                if name in wanted:
                    result = work.operands[f"grad_{name}"]
                    steps.append(rows.finish(work, here, name, call.rope, result, mean and name == "value"))
    return steps


def _direct(
    work: Work,
    sweep: Sweep,
    variant: Variant,
    box: Box,
    names: tuple[str, ...],
    others: Mapping[str, Bytes | str] | None = None,
) -> Launch:
    """The gradients of a box from one sweep."""
    resources: dict[str, Bytes | str] = dict(others or {})
    values: dict[str, float] = {}
    for name in names:
        part = cut(name, work.operands[f"grad_{name}"], box, work.group)
        resources[f"grad_{name}"], values[f"grad_{name}_at"] = bound_bytes(
            part, f"grad_{name}", work.limits.offset_alignment
        )
        axes = ("b0", "b1", "t", "n") if name == "query" else ("b0", "b1", "s", "k")
        for axis, stride in zip(axes, part.strides, strict=False):
            values[f"grad_{name}_{axis}"] = stride % 2**32
    return launch(work, variant, work.problem.sweep, box, sweep.workgroups(box), resources, **values)


def _swept(
    work: Work,
    sweep: Sweep,
    box: Box,
    sums_name: str,
    add: bool,
    scratch: dict[str, Scratch | Texture],
    textures: texels.Textures | None,
    others: Mapping[str, Bytes | str] | None = None,
) -> list[Launch | CopyToTexture]:
    """One sweep over a box, and what fills the textures that it reads."""
    resources: dict[str, Bytes | str] = {"sums": Bytes(sums_name), **(others or {})}
    steps: list[Launch | CopyToTexture] = []
    values: dict[str, float] = {}
    if textures is not None:
        filled = textures.fill(work, box, scratch)
        steps += filled.steps
        resources |= filled.resources
        values |= filled.values
    count = sweep.workgroups(box)
    return [*steps, launch(work, sweep.variant, work.problem.sweep, box, count, resources, add=int(add), **values)]


def _boxes(
    work: Work, sweeps: Sweeps, profile: DeviceProfile, launches: int = 1
) -> tuple[tuple[Box, ...], tuple[Span, ...]]:
    """Boxes of rows, and ranges of keys, whose operands, gradients and sums can be bound, and that end in good time.

    `launches`: how many share out a box's heads, at least.
    """
    sweep, operands, limits = work.problem.sweep, work.operands, profile.limits
    saved = operands["out"]
    given = {"out": max(saved, operands["grad_out"], key=lambda each: each.extent()[1] * each.itemsize)}
    given |= {name: operands[name] for name in ("query", "key", "value", "bias", "mask") if name in operands}
    widths = {
        "query": sweep.head_dim,
        "out": sweep.value_dim,
        "key": sweep.head_dim + sweep.value_dim,
        "value": sweep.value_dim,
    }

    def fits(name: str, part: Operand) -> bool:
        rows_of_part = 1
        for size in part.shape[:4]:
            rows_of_part *= size
        if sweeps.from_textures and name in ("query", "key", "value", "out"):
            given = part if name != "out" else replace(operands["grad_out"], shape=part.shape)
            if not texels.fits(sweep, "grad_out" if name == "out" else name, given, limits):
                return False
        if name in sweeps.dense and not dense_fits(name, part, limits):
            return False
        return binds(part, limits) and rows_of_part * widths.get(name, 0) * 4 <= limits.binding_bytes

    most = most_work(profile)
    if most is not None:
        slowness = sweeps.slowness if sweep.bias is None else max(sweeps.slowness, SCORED_SLOWLY)
        most = most * launches // slowness
    return cut_to_limits(given, limits, max_keys=sweeps.max_keys, fits=fits, most_work=most)


def _first_rows(boxes: tuple[Box, ...], group: int) -> list[Box]:
    """One box of each range of batch entries and key/value heads: keys are the same for all rows."""
    return [next(same) for _, same in groupby(boxes, lambda box: _keys_of(box, group))]


def _keys_of(box: Box, group: int) -> tuple[Span, Span, int]:
    """Where the keys of a box are: batch entries, and the first key/value head."""
    return box.b0, box.b1, box.n[0] // group


def _in_turn(parts: tuple[Box, ...], place: Callable[[Box], Hashable]) -> Iterator[tuple[Box, bool]]:
    """Each part, and whether one before it wrote where `place` says, so that it adds to what is there."""
    seen: set[Hashable] = set()
    for part in parts:
        yield part, place(part) in seen
        seen.add(place(part))


def _short(box: Box, max_rows: int | None) -> list[Box]:
    step = box.size("t") if max_rows is None else max_rows
    first, end = box.t
    return [replace(box, t=(start, min(start + step, end))) for start in range(first, end, step)]


def _grow(scratch: dict[str, Scratch | Texture], name: str, nbytes: int) -> None:
    held = scratch.get(name)
    scratch[name] = Scratch(max(nbytes, held.nbytes if isinstance(held, Scratch) else 0))
