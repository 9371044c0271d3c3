"""On matrix units, backward: float16 in, float32 sums; a workgroup a block of query rows or keys."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from wgattn._dtypes import float16, short_name
from wgattn._kernels.attention.backward.launches import Kept, Sweep, Sweeps, plan_gradient
from wgattn._kernels.attention.backward.problem import GradientProblem
from wgattn._kernels.attention.backward.work import (
    ADDING,
    GRAD_OUT,
    LARGEST,
    LARGEST_PARTS,
    blocks_of_keys,
    blocks_of_rows,
    shader,
    sums_binding,
    sweep_bindings,
    sweep_name,
)
from wgattn._kernels.attention.boxes import Box
from wgattn._kernels.attention.problem import AttentionProblem, Call, aligned_bytes
from wgattn._kernels.kernel import SUPPORTED, Binding, Operand, Plan, Scalar, Support, Variant, unsupported
from wgattn._kernels.matrices import LANES, is_emulated, matrix_features, supports_matrices
from wgattn._runtime.profile import DeviceProfile, Tuned

name = "backward_matrix"
MAX_DIM = 128
MOST_KEPT = 1 << 29  # bytes of gradients by scores that are kept at a time
SIDE = 16  # rows and columns of a matrix
SCORE_PITCH = 9  # 16 scores and 16 gradients by weights, as float32, in words of 16 bytes
EXCHANGE = SIDE * SCORE_PITCH  # words of 16 bytes that a subgroup has for scores, then for weights
SCORES_MADE = Binding("scores", "write", "vec4<u32>")
NAMES = ("query", "key", "value", "grad_out")


@dataclass(frozen=True, slots=True)
class Tile:
    """`subgroups` of a workgroup with `blocks` times 16 own rows each; `stream` rows of the other side a step.

    `steps` steps' rows are staged at a time, so that subgroups wait for each other less often.
    """

    subgroups: int
    blocks: int
    stream: int
    steps: int = 1

    @property
    def own(self) -> int:
        return self.subgroups * self.blocks * SIDE

    @property
    def staged(self) -> int:
        return self.stream * self.steps

    @property
    def threads(self) -> int:
        return self.subgroups * LANES

    def pitches(self, sweep: AttentionProblem) -> dict[str, int]:
        """16 bytes from one row to the next, odd numbers: lanes beside each other meet no bank conflict."""
        return {
            "HEAD_PITCH": sweep.head_dim // 8 + 1,
            "VALUE_PITCH": sweep.value_dim // 8 + 1,
            "SCORE_PITCH": SCORE_PITCH,
        }

    def workgroup_bytes(self, sweep: AttentionProblem, by: str) -> int:
        """What streams, what subgroups exchange, and the statistics of streamed rows."""
        pitch = self.pitches(sweep)
        staged = self.staged * (pitch["HEAD_PITCH"] + pitch["VALUE_PITCH"])
        statistics = self.staged * 8 if by == "key_value" else 0
        return (staged + self.subgroups * EXCHANGE) * 16 + statistics

    def registers(self, sweep: AttentionProblem, by: str) -> int:
        """32-bit registers of a lane that hold matrices: sums, own rows, scores and gradients by weights."""
        head, value = sweep.head_dim, sweep.value_dim
        sums = head // 2 + (value // 2 if by == "key_value" else 0)
        return self.blocks * (sums + head // 4 + value // 4 + self.stream)


# Fastest first.
TILES = {
    "query": (Tile(4, 2, 32), Tile(8, 1, 32), Tile(4, 1, 32), Tile(2, 1, 16), Tile(1, 1, 16)),
    "key_value": (Tile(8, 1, 32, 2), Tile(8, 1, 16, 2), Tile(4, 1, 16), Tile(2, 1, 16), Tile(1, 1, 16)),
}
QUERY_TILES = (Tile(8, 2, 32), Tile(8, 1, 32))  # of the query's gradient from gradients by scores
MOST_REGISTERS = 208  # of 255 that a lane may have


def tile_of(problem: GradientProblem, profile: DeviceProfile, by: str) -> Tile | None:
    """The first tile that fits the device, None where none does.

    Tuned by `backward_matrix_query_h64` and so on, a place in TILES.
    """
    fitting = _fitting(problem, profile, by)
    return fitting.get(profile.constant(_tuned_name(problem, by)), next(iter(fitting.values()), None))


def _tuned_name(problem: GradientProblem, by: str) -> str:
    return f"{name}_{by}_h{problem.sweep.head_dim}"


def _fitting(problem: GradientProblem, profile: DeviceProfile, by: str) -> dict[int, Tile]:
    """The tiles that fit the device, by their places in TILES."""
    return {
        place: tile
        for place, tile in enumerate(TILES[by])
        if tile.workgroup_bytes(problem.sweep, by) <= profile.limits.workgroup_bytes
        and tile.threads <= profile.limits.invocations
        and tile.registers(problem.sweep, by) <= MOST_REGISTERS
    }


def supports(problem: GradientProblem, profile: DeviceProfile) -> Support:
    units = supports_matrices(profile)
    if not units:
        return units
    sweep = problem.sweep
    if problem.forward.rope is not None:
        return unsupported("rotated rows are float32, which its matrices do not multiply")
    dtypes = (sweep.query_dtype, sweep.key_dtype, sweep.value_dtype, sweep.out_dtype)
    others = {short_name(dtype) for dtype in dtypes if dtype != float16}
    if others:
        return unsupported(f"it multiplies float16, not {' and '.join(sorted(others))}")
    if max(sweep.head_dim, sweep.value_dim) > MAX_DIM:
        return unsupported(f"head dims above {MAX_DIM} do not fit registers")
    if any(tile_of(problem, profile, by) is None for by in TILES):
        return unsupported(
            f"none of its tiles fits {profile.limits.workgroup_bytes:,} bytes of workgroup memory and "
            f"{MOST_REGISTERS} registers"
        )
    return SUPPORTED


def suits(problem: GradientProblem, profile: DeviceProfile) -> Support:
    return SUPPORTED


def candidates(problem: GradientProblem, profile: DeviceProfile) -> Tuned:
    return tuple((_tuned_name(problem, by), place) for by in TILES for place in _fitting(problem, profile, by))


def variant(problem: GradientProblem, profile: DeviceProfile) -> Variant:
    """The sweep by key and value, which stands for the family."""
    return _sweep(problem, profile, "key_value")


def plan(problem: GradientProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile) -> Plan:
    by_query, by_key_value = (_tile(problem, profile, by) for by in TILES)
    of_rows, of_keys = blocks_of_rows(by_query.own), blocks_of_keys(by_key_value.own, problem.sweep.group)

    def direct(by: str, names: tuple[str, ...]) -> Variant | None:
        grads = [operands[f"grad_{each}"] for each in names if each in problem.wanted]
        if len(grads) < len(names) or not _wide(problem) or aligned_bytes(*grads) != 16:
            return None
        made = _sweep(problem, profile, by, direct=True)
        return made if len(made.bindings) <= profile.limits.storage_buffers else None

    sweeps = Sweeps(
        Sweep(_sweep(problem, profile, "query"), of_rows, direct("query", ("query",))),
        Sweep(_sweep(problem, profile, "key_value"), of_keys, direct("key_value", ("key", "value"))),
        _most(problem, profile, by_query, 1),
        _most(problem, profile, by_key_value, problem.sweep.group),
        by_largest=True,
        slowness=1,
        kept=_kept(problem, profile, operands, of_keys),
    )
    return plan_gradient(problem, call, operands, profile, sweeps)


def _kept(
    problem: GradientProblem,
    profile: DeviceProfile,
    operands: Mapping[str, Operand],
    by_key_value: Callable[[Box], int],
) -> Kept | None:
    """The sweep by key and value that keeps gradients by scores, and what reads them; None where that cannot be."""
    sweep = problem.sweep
    grads = [operands[f"grad_{each}"] for each in ("query", "key", "value") if each in problem.wanted]
    if len(grads) < 3 or not _wide(problem) or aligned_bytes(*grads) != 16:
        return None
    # Of other rows the two sides skip other tiles: what is read might not have been written.
    if sweep.bias is not None or sweep.mask or sweep.softcap or sweep.segments or sweep.query_lengths:
        return None
    made, tile = _sweep(problem, profile, "key_value", direct=True, kept=True), _query_tile(problem, profile)
    if len(made.bindings) > profile.limits.storage_buffers or tile is None:
        return None

    most = min(MOST_KEPT, profile.limits.binding_bytes)
    from_scores = _from_scores(problem, profile, tile)
    by_query = Sweep(from_scores, blocks_of_rows(tile.own), from_scores)
    return Kept(Sweep(made, by_key_value, made), by_query, most, SIDE, SIDE, float16.itemsize)


def _query_tile(problem: GradientProblem, profile: DeviceProfile) -> Tile | None:
    """Two blocks of rows a subgroup where head dims are wide, which otherwise leave too few workgroups."""
    for tile in QUERY_TILES:
        wanted = tile.blocks == 1 or problem.sweep.head_dim > 80
        fits = _from_scores_bytes(problem, tile) <= profile.limits.workgroup_bytes
        if wanted and fits and tile.threads <= profile.limits.invocations:
            return tile
    return None


def _from_scores_pitch(tile: Tile) -> int:
    """16 bytes from a row to the next of gradients by scores, as float16, and of sums, as float32."""
    return max(tile.staged // 8 + 1, 5)


def _from_scores_bytes(problem: GradientProblem, tile: Tile) -> int:
    keys = 2 * tile.staged * (problem.sweep.head_dim // 8 + 1)
    return (keys + tile.own * _from_scores_pitch(tile)) * 16


def _tile(problem: GradientProblem, profile: DeviceProfile, by: str) -> Tile:
    tile = tile_of(problem, profile, by)
    assert tile is not None, "supports() was asked first"
    return tile


def _wide(problem: GradientProblem) -> bool:
    """Rows that start and end at multiples of 16 bytes are copied as they are; others go through the shared readers."""
    return problem.aligned == 16


def _sweep(
    problem: GradientProblem, profile: DeviceProfile, by: str, direct: bool = False, kept: bool = False
) -> Variant:
    """The kernel of a sweep, which writes sums, or with `direct` the gradients themselves.

    `kept`: by key and value it writes the gradients by scores, too.
    """
    sweep, tile = problem.sweep, _tile(problem, profile, by)
    wide, emulated = _wide(problem), is_emulated(profile)
    words = (
        f"s{tile.subgroups}x{tile.blocks}k{tile.stream}x{tile.steps}",
        *(("wide" + "direct" * direct + "kept" * kept,) if wide else ()),
        *(("emulated",) if emulated else ()),
    )
    placed: tuple[tuple[str, ...], ...] = (("query", "t", "n"), ("key", "s", "k"), ("value", "s", "k"))
    made: tuple[tuple[str, ...], ...] = ()
    if direct:
        made = (("grad_query", "t", "n"),) if by == "query" else (("grad_key", "s", "k"), ("grad_value", "s", "k"))
    results = tuple(Binding(of, "write", "vec4<u32>") for of, *_ in made) or (sums_binding(),)
    bound = sweep_bindings(sweep, *results, *((SCORES_MADE,) if kept else ()))
    fields: tuple[tuple[str, Scalar], ...] = (*GRAD_OUT, *ADDING, *LARGEST)
    own = _shape(sweep, tile, by, emulated) | {
        "WIDE": wide,
        "DIRECT": direct,
        "KEPT": kept,
        "STREAM": tile.stream,
        "STREAM_BLOCKS": tile.stream // SIDE,
        "VALUE_STEPS": sweep.value_dim // SIDE,
        "VALUE_EIGHTS": sweep.value_dim // 8,
        "HEAD_CHUNKS": sweep.head_dim // 4,
        "VALUE_CHUNKS": sweep.value_dim // 4,
        "VALUE_PIECES": -(-tile.staged * sweep.value_dim // 8 // tile.threads),
        "EXCHANGE": EXCHANGE,
        **tile.pitches(sweep),
    }
    unbuffered: tuple[str, ...] = ("out",)
    if wide:
        bound = tuple(replace(each, element="vec4<u32>") if each.name in NAMES else each for each in bound)
        unbuffered = ("out", *NAMES)
        own["rows_placed"] = (*placed, ("grad_out", "t", "n"), *made)
        fields += tuple(field for place in (*placed, *made) for field in _places(*place))
    kernel = shader(
        name,
        sweep_name(f"{name}_{by}", sweep, *words),
        "matrix",
        sweep,
        bound,
        fields,
        tuple(own.items()),
        unbuffered,
        tile.workgroup_bytes(sweep, by),
    )
    reason = f"matrix units: tiles of {tile.own} own and {tile.stream} streamed rows"
    return replace(kernel, features=matrix_features(profile)).because((), reason)


def _from_scores(problem: GradientProblem, profile: DeviceProfile, tile: Tile) -> Variant:
    """The query's gradient from kept gradients by scores."""
    sweep, emulated = problem.sweep, is_emulated(profile)
    bound = (
        Binding("key", "read", "vec4<u32>"),
        Binding("rows", "read", "u32"),
        Binding("scores", "read", "vec4<u32>"),
        Binding("grad_query", "write", "vec4<u32>"),
    )
    placed = (("key", "s", "k"), ("grad_query", "t", "n"))
    own = _shape(sweep, tile, "query", emulated) | {
        "HEAD_PITCH": sweep.head_dim // 8 + 1,
        "PITCH": _from_scores_pitch(tile),
        "rows_placed": placed,
    }
    kernel = shader(
        name,
        sweep_name(
            f"{name}_from_scores",
            sweep,
            f"s{tile.subgroups}x{tile.blocks}k{tile.staged}",
            *(("emulated",) if emulated else ()),
        ),
        "matrix_query",
        sweep,
        bound,
        (*GRAD_OUT, *ADDING, *LARGEST, *(field for place in placed for field in _places(*place))),
        tuple(own.items()),
        ("out", *NAMES),
        _from_scores_bytes(problem, tile),
    )
    reason = f"matrix units: tiles of {tile.own} rows, gradients by scores of {tile.staged} keys at a time"
    return replace(kernel, features=matrix_features(profile)).because((), reason)


def _shape(sweep: AttentionProblem, tile: Tile, by: str, emulated: bool) -> dict[str, object]:
    """The constants of a tile's subgroups, own rows, and rows of head_dim that stream by."""
    return {
        "BY": by,
        "EMULATED": emulated,
        "WORKGROUP": tile.threads,
        "SUBGROUPS": tile.subgroups,
        "BLOCKS": tile.blocks,
        "OWN": tile.own,
        "STAGED": tile.staged,
        "HEAD_STEPS": sweep.head_dim // SIDE,
        "HEAD_EIGHTS": sweep.head_dim // 8,
        "HEAD_PIECES": -(-tile.staged * sweep.head_dim // 8 // tile.threads),
        "LARGEST_PARTS": LARGEST_PARTS,
    }


def _places(of: str, *axes: str) -> tuple[tuple[str, Scalar], ...]:
    """The parameters that say where an operand's rows lie."""
    return tuple((f"{of}_{axis}", "u32") for axis in ("at", "b0", "b1", *axes))


def _most(problem: GradientProblem, profile: DeviceProfile, tile: Tile, heads: int) -> int | None:
    """How many streamed rows fit in the loop turns an invocation has: staging, masks, segments."""
    turns = profile.limits.loop_turns
    if turns is None:
        return None
    eights = (problem.sweep.head_dim + problem.sweep.value_dim) // 8
    masks = 2 + tile.blocks * tile.stream // 2
    a_stage = 4 + -(-tile.staged * eights // tile.threads) + 2 + tile.steps * masks
    a_stage = a_stage * heads + (tile.staged if problem.sweep.segments else 0)
    return max((turns - 8192) // a_stage, 1) * tile.staged
