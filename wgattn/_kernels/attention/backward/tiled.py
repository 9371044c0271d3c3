"""Tiled, backward: a workgroup a block of query rows or keys; the other side streams by. For GPUs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wgattn._dtypes import float32
from wgattn._kernels.attention.backward.launches import Kept, Sweep, Sweeps, plan_gradient
from wgattn._kernels.attention.backward.problem import GradientProblem
from wgattn._kernels.attention.backward.work import (
    ADDING,
    GRAD_OUT,
    blocks_of_keys,
    blocks_of_rows,
    shader,
    sums_binding,
    sweep_bindings,
    sweep_name,
)
from wgattn._kernels.attention.boxes import Box
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.kernel import SUPPORTED, Binding, Operand, Plan, Support, Variant, storage_element, unsupported
from wgattn._runtime.profile import DeviceProfile, Tuned

name = "backward_tiled"
MAX_DIM = 256
MOST_KEPT = 1 << 30  # bytes of gradients by scores that are kept at a time
KEPT_SHARE = 4  # and of how many of a call one is
KEPT_ROWS = 64  # gradients by scores of a key that lie together
MOST_STAGED = 16 * 1024  # bytes of keys and kept gradients by scores
SCORES_MADE = Binding("scores", "write", "vec4<f32>")


@dataclass(frozen=True, slots=True)
class Tile:
    """How a workgroup's threads stand: `across` × `down`, powers of two from 2 on, each with `rows` × `items` pairs of
    own and streamed rows, multiples of 4.

    `dims`: the dims of both sides that are staged at a time, at most. `from_dim`: the head dims that it is for, where
    another tile fits too.
    """

    across: int
    down: int
    rows: int
    items: int
    dims: int = 32
    from_dim: int = 0

    @property
    def own(self) -> int:
        return self.down * self.rows

    @property
    def stream(self) -> int:
        return self.across * self.items

    @property
    def threads(self) -> int:
        return self.across * self.down

    def columns(self, dim: int) -> int:
        """vec4 of the sums that a thread owns in each of its rows."""
        return -(-dim // 4 // self.across)

    def registers(self, sweep: AttentionProblem, by: str) -> int:
        """32-bit registers of a thread that hold its sums, and two numbers a pair."""
        columns = self.columns(sweep.head_dim) + (self.columns(sweep.value_dim) if by == "key_value" else 0)
        return self.rows * (4 * columns + 2 * self.items)

    def stages(self, sweep: AttentionProblem) -> dict[str, int]:
        """What is staged at a time: chunks of 4 dims of both sides, then as many streamed rows, and what multiplies
        them, as fit; and the vec4 that it takes."""
        dims = sweep.head_dim, sweep.value_dim
        head, value = (self._chunks(dim) for dim in dims)
        a_row = [self.own // 4 + self.columns(dim) * self.across for dim in dims]
        looked_up = 2 * self.threads * self.rows // 4
        staged = max(max(head, value) * (self.own + self.stream), 4 * max(a_row), looked_up)
        head_rows, value_rows = (self._rows(staged, each) for each in a_row)
        return {
            "HEAD_STAGE": head,
            "VALUE_STAGE": value,
            "HEAD_ROWS": head_rows,
            "VALUE_ROWS": value_rows,
            "STAGED": staged,
        }

    def _chunks(self, dim: int) -> int:
        chunks = dim // 4
        return max(n for n in range(1, chunks + 1) if chunks % n == 0 and 4 * n <= self.dims)

    def _rows(self, staged: int, a_row: int) -> int:
        rows = self.stream
        while rows * a_row > staged:
            rows //= 2
        return rows

    def at_once(self, sweep: AttentionProblem, by: str) -> bool:
        """Whether a stage is read whole before it is stored. Where threads hold so much that few fit a multiprocessor,
        no others work while these wait for one read after another; elsewhere it costs registers, and so threads."""
        return self.registers(sweep, by) > CROWDED

    def workgroup_bytes(self, sweep: AttentionProblem) -> int:
        return self.stages(sweep)["STAGED"] * 16


# Fastest first. NVIDIA's drivers give the workgroups of a multiprocessor 48 KiB together, so that what one needs
# decides how many there are at a time.
TILES = (
    Tile(16, 8, 8, 4, from_dim=48),
    Tile(8, 8, 8, 8, dims=16),
    Tile(32, 4, 8, 4, dims=16),
    Tile(16, 8, 4, 4),
    Tile(32, 4, 4, 4, dims=16),
    Tile(8, 8, 4, 4),
    Tile(8, 4, 4, 4),
    Tile(4, 4, 4, 4),
)
MOST_REGISTERS = 192  # of 255 that a thread may have
CROWDED = 160  # registers from which on two workgroups of 128 threads are all that a multiprocessor takes
CPU_PAIRS = 1024  # of a tile on a CPU adapter, which has nothing from larger ones but longer compilation


def tile_of(problem: GradientProblem, profile: DeviceProfile, by: str) -> Tile | None:
    """The first tile that fits the device, None where none does.

    Tuned by `backward_tiled_query_h64` and so on, a place in TILES.
    """
    fitting = _fitting(problem, profile, by)
    dim = max(problem.sweep.head_dim, problem.sweep.value_dim)
    rule = next((tile for tile in fitting.values() if tile.from_dim <= dim), None)
    return fitting.get(profile.constant(_tuned_name(problem, by)), rule)


def _tuned_name(problem: GradientProblem, by: str) -> str:
    return f"{name}_{by}_h{problem.sweep.head_dim}"


def _fitting(problem: GradientProblem, profile: DeviceProfile, by: str) -> dict[int, Tile]:
    """The tiles that fit the device, by their places in TILES."""
    room = {
        place: tile
        for place, tile in enumerate(TILES)
        if tile.workgroup_bytes(problem.sweep) <= profile.limits.workgroup_bytes
        and tile.threads <= profile.limits.invocations
    }
    fast = {
        place: tile
        for place, tile in room.items()
        if (
            tile.own * tile.stream <= CPU_PAIRS
            if profile.is_cpu
            else tile.registers(problem.sweep, by) <= MOST_REGISTERS
        )
    }
    return fast or room  # what spills still serves


def supports(problem: GradientProblem, profile: DeviceProfile) -> Support:
    if max(problem.sweep.head_dim, problem.sweep.value_dim) > MAX_DIM:
        return unsupported(f"head dims above {MAX_DIM} are not tiled")
    if tile_of(problem, profile, "query") is None or tile_of(problem, profile, "key_value") is None:
        least = TILES[-1].workgroup_bytes(problem.sweep)
        return unsupported(
            f"its least tile needs {least:,} bytes of workgroup memory, of {profile.limits.workgroup_bytes:,} there"
        )
    return SUPPORTED


def suits(problem: GradientProblem, profile: DeviceProfile) -> Support:
    return unsupported("workgroup memory and barriers are slow on a CPU adapter") if profile.is_cpu else SUPPORTED


def candidates(problem: GradientProblem, profile: DeviceProfile) -> Tuned:
    return tuple(
        (_tuned_name(problem, by), place) for by in ("query", "key_value") for place in _fitting(problem, profile, by)
    )


def variant(problem: GradientProblem, profile: DeviceProfile) -> Variant:
    """The sweep by key and value, which stands for the family."""
    return _sweep(problem, profile, "key_value")


def plan(problem: GradientProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile) -> Plan:
    by_query, by_key_value = (_tile(problem, profile, by) for by in ("query", "key_value"))
    of_rows, of_keys = blocks_of_rows(by_query.own), blocks_of_keys(by_key_value.own, problem.sweep.group)
    sweeps = Sweeps(
        Sweep(_sweep(problem, profile, "query"), of_rows),
        Sweep(_sweep(problem, profile, "key_value"), of_keys),
        _most(problem, profile, by_query, "query"),
        _most(problem, profile, by_key_value, "key_value"),
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
    # By segments the two sides pass other tiles by: what is read might not have been written.
    if problem.sweep.segments:
        return None
    made = _sweep(problem, profile, "key_value", kept=True)
    if len(made.bindings) > profile.limits.storage_buffers:
        return None
    tile = _tile(problem, profile, "query")
    by_query = Sweep(_from_scores(problem, profile, tile), blocks_of_rows(tile.own))
    b0, b1, queries, heads, _ = operands["query"].shape
    scores = b0 * b1 * heads * queries * operands["key"].shape[2] * float32.itemsize
    most = min(MOST_KEPT, scores // KEPT_SHARE, profile.limits.binding_bytes)
    return Kept(Sweep(made, by_key_value), by_query, most, KEPT_ROWS, 1, float32.itemsize)


def _from_scores(problem: GradientProblem, profile: DeviceProfile, tile: Tile) -> Variant:
    """The query's gradient from kept gradients by scores."""
    sweep = problem.sweep
    chunks, a_key = sweep.head_dim // 4, tile.own // 4 + tile.columns(sweep.head_dim) * tile.across
    most = min(MOST_STAGED, profile.limits.workgroup_bytes)
    staged = next((keys for keys in (32, 16, 8) if keys * a_key * 16 <= most), 4)
    own = _shape(sweep, tile, "query") | {
        "STAGED": staged,
        "FACTOR_PIECES": -(-staged * tile.own // 4 // tile.threads),
        "KEY_PIECES": -(-staged * chunks // tile.threads),
    }
    return shader(
        name,
        sweep_name(f"{name}_from_scores", sweep, f"o{tile.own}s{staged}t{tile.across}x{tile.rows}"),
        "tiled_query",
        sweep,
        (
            Binding("key", "read", storage_element(sweep.key_dtype, "key" in sweep.vectors)),
            Binding("rows", "read", "u32"),
            Binding("scores", "read", "vec4<f32>"),
            sums_binding(),
        ),
        ADDING,
        tuple(own.items()),
        ("query", "value", "out", "grad_out", "bias", "mask"),
        staged * a_key * 16,
    ).because((), f"tiles of {tile.own} rows, gradients by scores of {staged} keys at a time")


def _tile(problem: GradientProblem, profile: DeviceProfile, by: str) -> Tile:
    tile = tile_of(problem, profile, by)
    assert tile is not None, "supports() was asked first"
    return tile


def _sweep(problem: GradientProblem, profile: DeviceProfile, by: str, kept: bool = False) -> Variant:
    """`kept`: by key and value it writes the gradients by scores, too."""
    sweep, tile = problem.sweep, _tile(problem, profile, by)
    stages = tile.stages(sweep)
    words = (
        f"o{tile.own}s{tile.stream}",
        f"t{tile.rows}x{tile.items}",
        f"d{4 * stages['HEAD_STAGE']}",
        *(("kept",) if kept else ()),
    )
    own = _shape(sweep, tile, by) | {
        "KEPT": kept,
        "STREAM": tile.stream,
        "STREAM_QUADS": tile.stream // 4,
        "STREAM_MASK": min(tile.across, 8) - 1,
        "VALUE_CHUNKS": sweep.value_dim // 4,
        "VALUE_COLUMNS": tile.columns(sweep.value_dim),
        "AT_ONCE": tile.at_once(sweep, by),
        **stages,
    }
    return shader(
        name,
        sweep_name(f"{name}_{by}", sweep, *words),
        "tiled",
        sweep,
        sweep_bindings(sweep, sums_binding(), *((SCORES_MADE,) if kept else ())),
        (*GRAD_OUT, *ADDING),
        tuple(own.items()),
        workgroup_bytes=tile.workgroup_bytes(sweep),
    ).because(
        (),
        f"tiles of {tile.own} own and {tile.stream} streamed rows, each thread with {tile.rows} × {tile.items} pairs",
    )


def _shape(sweep: AttentionProblem, tile: Tile, by: str) -> dict[str, object]:
    """The constants of a tile's threads and own rows."""
    return {
        "BY": by,
        "WORKGROUP": tile.threads,
        "ACROSS": tile.across,
        "DOWN": tile.down,
        "ROWS": tile.rows,
        "ITEMS": tile.items,
        "OWN": tile.own,
        "OWN_QUADS": tile.own // 4,
        "OWN_MASK": min(tile.down, 8) - 1,
        "HEAD_CHUNKS": sweep.head_dim // 4,
        "HEAD_COLUMNS": tile.columns(sweep.head_dim),
    }


def _most(problem: GradientProblem, profile: DeviceProfile, tile: Tile, by: str) -> int | None:
    """How many streamed rows fit in the loop turns an invocation has: every loop is counted as it is written."""
    turns = profile.limits.loop_turns
    if turns is None:
        return None
    sweep, stages = problem.sweep, tile.stages(problem.sweep)
    head, value = sweep.head_dim // 4, sweep.value_dim // 4

    def products(chunks: int, stage: int) -> int:
        staged = -(-tile.own // 4 * stage // tile.threads) + -(-tile.stream // 4 * stage // tile.threads)
        return chunks // stage * (1 + staged + stage)

    def sums(chunks: int, rows: int) -> int:
        return tile.stream // rows * (1 + -(-rows * chunks // tile.threads) + rows // 4)

    a_tile = 1 + products(head, stages["HEAD_STAGE"]) + products(value, stages["VALUE_STAGE"])
    a_tile += sums(head, stages["HEAD_ROWS"]) + tile.items * (1 + tile.rows)
    if by == "key_value":
        a_tile = 1 + (a_tile + sums(value, stages["VALUE_ROWS"])) * sweep.group
    a_tile += tile.stream if sweep.segments else 0
    return max((turns - 4096) // a_tile, 1) * tile.stream
