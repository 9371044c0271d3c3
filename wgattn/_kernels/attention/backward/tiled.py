"""Tiled, backward: a workgroup a block of query rows or keys; the other side streams by. For GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass

from wgattn._kernels.attention.backward.launches import Sweep, Sweeps, plan_gradient
from wgattn._kernels.attention.backward.problem import GradientProblem
from wgattn._kernels.attention.backward.work import (
    ADDING,
    GRAD_OUT,
    key_heads,
    shader,
    sums_binding,
    sweep_bindings,
    sweep_name,
)
from wgattn._kernels.attention.boxes import Box
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant, unsupported
from wgattn._runtime.profile import DeviceProfile, Tuned

name = "backward_tiled"
MAX_DIM = 256
MAX_SUMS = 32  # vec4 that a thread adds up in registers


@dataclass(frozen=True, slots=True)
class Tile:
    """How threads stand: `across` × `down`, each with `rows` × `items` pairs (`items` a multiple of 4)."""

    across: int
    down: int
    rows: int
    items: int

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

    def sums(self, sweep: AttentionProblem, by: str) -> int:
        columns = self.columns(sweep.head_dim) + (self.columns(sweep.value_dim) if by == "key_value" else 0)
        return self.rows * columns

    def pitches(self, sweep: AttentionProblem) -> dict[str, int]:
        """vec4 from one row to the next, odd where dims are even, so that threads meet no bank conflict."""
        head, value = sweep.head_dim // 4 + 1, sweep.value_dim // 4 + 1
        return {
            "HEAD_PITCH": head,
            "VALUE_PITCH": value,
            "STREAM_PITCH": max(head, value),
            "FACTOR_PITCH": self.stream // 4 + 1,
        }

    def workgroup_bytes(self, sweep: AttentionProblem) -> int:
        """Both own tiles, the streamed one, and the factors."""
        pitch = self.pitches(sweep)
        own = self.own * (pitch["HEAD_PITCH"] + pitch["VALUE_PITCH"] + pitch["FACTOR_PITCH"])
        return 16 * (own + self.stream * pitch["STREAM_PITCH"])


# Fastest first.
TILES = (
    Tile(8, 16, 4, 4),
    Tile(8, 8, 4, 4),
    Tile(8, 8, 2, 4),
    Tile(4, 8, 4, 4),
    Tile(8, 8, 1, 4),
    Tile(4, 8, 2, 4),
    Tile(4, 8, 1, 4),
    Tile(2, 8, 1, 4),
    Tile(2, 4, 1, 4),
    Tile(1, 4, 1, 4),
)


def tile_of(problem: GradientProblem, profile: DeviceProfile, by: str) -> Tile | None:
    """The first tile that fits the device, None where none does.

    Tuned by `backward_tiled_query_h64` and so on, a place in TILES.
    """
    fitting = _fitting(problem, profile, by)
    return fitting.get(profile.constant(_tuned_name(problem, by)), next(iter(fitting.values()), None))


def _tuned_name(problem: GradientProblem, by: str) -> str:
    return f"{name}_{by}_h{problem.sweep.head_dim}"


def _fitting(problem: GradientProblem, profile: DeviceProfile, by: str) -> dict[int, Tile]:
    """The tiles that fit the device, by their places in TILES."""
    room = {p: t for p, t in enumerate(TILES) if t.workgroup_bytes(problem.sweep) <= profile.limits.workgroup_bytes}
    fast = {
        place: tile
        for place, tile in room.items()
        if tile.threads <= profile.limits.invocations and tile.sums(problem.sweep, by) <= MAX_SUMS
    }
    return fast or room  # rows too long for registers spill, and still serve


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
    group = problem.sweep.group

    def query_workgroups(box: Box) -> int:
        return box.batch * box.size("n") * -(-box.size("t") // by_query.own)

    def key_value_workgroups(box: Box) -> int:
        return box.batch * key_heads(box, group) * -(-box.size("s") // by_key_value.own)

    sweeps = Sweeps(
        Sweep(_sweep(problem, profile, "query"), query_workgroups),
        Sweep(_sweep(problem, profile, "key_value"), key_value_workgroups),
        _most(problem, profile, by_query, "query"),
        _most(problem, profile, by_key_value, "key_value"),
    )
    return plan_gradient(problem, call, operands, profile, sweeps)


def _tile(problem: GradientProblem, profile: DeviceProfile, by: str) -> Tile:
    tile = tile_of(problem, profile, by)
    assert tile is not None, "supports() was asked first"
    return tile


def _sweep(problem: GradientProblem, profile: DeviceProfile, by: str) -> Variant:
    sweep, tile = problem.sweep, _tile(problem, profile, by)
    words = (
        f"o{tile.own}s{tile.stream}",
        f"t{tile.rows}x{tile.items}",
    )
    own = {
        "BY": by,
        "WORKGROUP": tile.threads,
        "ACROSS": tile.across,
        "ROWS": tile.rows,
        "ITEMS": tile.items,
        "OWN": tile.own,
        "STREAM": tile.stream,
        "HEAD_CHUNKS": sweep.head_dim // 4,
        "VALUE_CHUNKS": sweep.value_dim // 4,
        "HEAD_COLUMNS": tile.columns(sweep.head_dim),
        "VALUE_COLUMNS": tile.columns(sweep.value_dim),
        **tile.pitches(sweep),
    }
    return shader(
        name,
        sweep_name(f"{name}_{by}", sweep, *words),
        "tiled",
        sweep,
        sweep_bindings(sweep, sums_binding()),
        (*GRAD_OUT, *ADDING),
        tuple(own.items()),
        workgroup_bytes=tile.workgroup_bytes(sweep),
    ).because((), f"tiles of {tile.own} own and {tile.stream} streamed rows in workgroup memory")


def _most(problem: GradientProblem, profile: DeviceProfile, tile: Tile, by: str) -> int | None:
    """How many streamed rows fit in the loop turns an invocation has: loops that are not unrolled."""
    turns = profile.limits.loop_turns
    if turns is None:
        return None
    sweep = problem.sweep
    head, value = sweep.head_dim // 4, sweep.value_dim // 4
    loads = -(-tile.stream * head // tile.threads) + -(-tile.stream * value // tile.threads)
    a_step = 4 + loads + head + value + tile.stream // 4
    if by == "key_value":
        a_step += -(-tile.stream * value // tile.threads) + tile.stream // 4
        a_step *= sweep.group
    a_step += tile.stream if sweep.segments else 0
    return max((turns - 4096) // a_step, 1) * tile.stream
