"""Flash, tiled: a workgroup a block of query rows, K and V staged in workgroup memory by turns. For prefill on GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass

from wgattn._kernels.attention.inputs import bindings, constants, parameters
from wgattn._kernels.attention.launches import enough_buffers, plan_blocks, split_candidates
from wgattn._kernels.attention.naming import tuned_name, variant_name
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant, unsupported
from wgattn._runtime.profile import DeviceProfile, Tuned

name = "flash_tiled"
MAX_DIM = 256


@dataclass(frozen=True, slots=True)
class Tile:
    """How a workgroup's threads stand: `across` × `down`, each with `rows` × `keys` logits (`keys` a multiple of 4).

    `from_dim`: the head dim from which it is faster than those behind it in TILES.
    """

    across: int
    down: int
    rows: int
    keys: int
    from_dim: int = 0

    @property
    def q(self) -> int:
        return self.down * self.rows

    @property
    def k(self) -> int:
        return self.across * self.keys

    @property
    def threads(self) -> int:
        return self.across * self.down

    def columns(self, problem: AttentionProblem) -> int:
        """vec4 of the output that a thread owns in each of its rows."""
        return -(-problem.value_dim // 4 // self.across)

    def pitches(self, problem: AttentionProblem) -> dict[str, int]:
        """vec4 from one row to the next. K's and the weights' are odd, so that threads across meet no bank conflict."""
        k_pitch, v_pitch = problem.head_dim // 4 + 1, self.columns(problem) * self.across
        return {
            "Q_PITCH": problem.head_dim // 4 + 1,
            "K_PITCH": k_pitch,
            "V_PITCH": v_pitch,
            "KEY_VALUE_PITCH": max(k_pitch, v_pitch),
            "WEIGHT_PITCH": self.k // 4 + 1,
        }

    def workgroup_bytes(self, problem: AttentionProblem) -> int:
        """Q, then K or V, the weights, a number a row and thread across, and a flag."""
        pitch = self.pitches(problem)
        quads = self.q * pitch["Q_PITCH"] + self.k * pitch["KEY_VALUE_PITCH"] + self.q * pitch["WEIGHT_PITCH"]
        return quads * 16 + (self.across * (self.q + 1) + 1) * 4


# Fastest first. A thread's sums (rows × columns vec4) must stay in registers: MAX_SUMS of them at most.
TILES = (
    Tile(8, 16, 4, 4),
    Tile(4, 16, 4, 4, from_dim=96),
    Tile(8, 8, 4, 4),
    Tile(8, 8, 2, 4),
    Tile(4, 8, 2, 4),
    Tile(8, 8, 1, 4),
    Tile(4, 8, 1, 4),
    Tile(2, 8, 1, 4),
    Tile(2, 4, 1, 4),
)
MAX_SUMS = 32
FEW_ROWS = 16  # rows of a tile that are enough where T is at most 16


def tile_of(problem: AttentionProblem, profile: DeviceProfile) -> Tile | None:
    """The first tile that fits the device, or None. Tuned by `flash_tiled_h64` and so on, a place in TILES."""
    fitting = _fitting(problem, profile)
    rule = next((tile for tile in fitting.values() if tile.from_dim <= problem.head_dim), None)
    return fitting.get(profile.constant(tuned_name(name, problem)), rule)


def _fitting(problem: AttentionProblem, profile: DeviceProfile) -> dict[int, Tile]:
    """The tiles that fit the device, by their places in TILES."""
    return {
        place: tile
        for place, tile in enumerate(TILES)
        if tile.workgroup_bytes(problem) <= profile.limits.workgroup_bytes
        and tile.threads <= profile.limits.invocations
        and tile.rows * tile.columns(problem) <= MAX_SUMS
        and (problem.queries not in ("one", "few") or tile.q <= FEW_ROWS)
    }


def heads_of(problem: AttentionProblem, tile: Tile) -> int:
    """Heads of a group that share a tile: rows that few queries leave free; a power of two."""
    if problem.queries not in ("one", "few") or problem.group == 1:
        return 1
    heads = 1 << (problem.group - 1).bit_length()
    return min(heads, tile.q if problem.queries == "one" else tile.q // 2)


def supports(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    if max(problem.head_dim, problem.value_dim) > MAX_DIM:
        return unsupported(f"head dims above {MAX_DIM} are not tiled")
    if tile_of(problem, profile) is None:
        least = TILES[-1].workgroup_bytes(problem)
        return unsupported(
            f"its least tile needs {least:,} bytes of workgroup memory, of {profile.limits.workgroup_bytes:,} there"
        )
    return enough_buffers(problem, profile)


def suits(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    return SUPPORTED  # on a CPU adapter too: slower than flash_rows, tried before it, but well ahead of plain


def candidates(problem: AttentionProblem, profile: DeviceProfile) -> Tuned:
    tiles = ((tuned_name(name, problem), place) for place in _fitting(problem, profile))
    return *tiles, *split_candidates(profile)


def variant(problem: AttentionProblem, profile: DeviceProfile, partial: bool = False) -> Variant:
    tile = _tile(problem, profile)
    heads = heads_of(problem, tile)
    own = (f"q{tile.q}k{tile.k}", f"t{tile.rows}x{tile.keys}", *((f"n{heads}",) if heads > 1 else ()))
    return Variant(
        family=name,
        name=variant_name(name, problem, partial, *own),
        template="attention/flash_tiled.wgsl",
        constants=(
            *constants(problem, partial),
            ("WORKGROUP", tile.threads),
            ("ACROSS", tile.across),
            ("ROWS", tile.rows),
            ("KEYS", tile.keys),
            ("TILE_Q", tile.q),
            ("TILE_K", tile.k),
            ("HEADS", heads),
            ("TILE_T", tile.q // heads),
            ("HEAD_CHUNKS", problem.head_dim // 4),
            ("VALUE_CHUNKS", problem.value_dim // 4),
            ("COLUMNS", tile.columns(problem)),
            *tile.pitches(problem).items(),
        ),
        bindings=bindings(problem, partial),
        parameters=parameters(problem),
        workgroup_bytes=tile.workgroup_bytes(problem),
        reason=f"tiles of {tile.q} rows and {tile.k} keys in workgroup memory",
    )


def plan(problem: AttentionProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile) -> Plan:
    tile = _tile(problem, profile)
    return plan_blocks(
        problem,
        call,
        operands,
        profile,
        lambda partial: variant(problem, profile, partial),
        heads_of(problem, tile),
        tile.q,
        _max_keys(problem, tile, profile),
    )


def _tile(problem: AttentionProblem, profile: DeviceProfile) -> Tile:
    tile = tile_of(problem, profile)
    assert tile is not None, "supports() was asked first"
    return tile


def _max_keys(problem: AttentionProblem, tile: Tile, profile: DeviceProfile) -> int | None:
    """How many keys fit in the loop turns an invocation has: every loop of a tile is counted as it is written."""
    turns = profile.limits.loop_turns
    if turns is None:
        return None
    head, value = problem.head_dim // 4, problem.value_dim // 4
    columns, rows, keys = tile.columns(problem), tile.rows, tile.keys
    staged = -(-tile.k * head // tile.threads) + -(-tile.k * value // tile.threads)
    scores = head * (1 + rows + keys * (1 + rows)) + rows * (2 + 2 * keys + tile.across + keys // 4 + columns)
    output = tile.k // 4 * (1 + rows + columns * (1 + rows))
    a_tile = 1 + staged + scores + output + (tile.k if problem.segments else 0)
    if problem.paged:
        a_tile += tile.k // 8  # pages, each of which may have no key
    if problem.rope == "half":
        a_tile += 4 * -(-tile.k * head // tile.threads)
    if problem.empty_rows == "mean":
        a_tile += -(-value // tile.threads) * tile.k // 8 * 9
    return max((turns - 4096) // a_tile, 1) * tile.k
