"""Flash, tiled: a workgroup a block of query rows, with tiles of logits in registers. For prefill on GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass

from wgattn._kernels.attention.inputs import bindings, constants, parameters
from wgattn._kernels.attention.launches import enough_buffers, plan_blocks, split_candidates
from wgattn._kernels.attention.naming import tuned_name, variant_name
from wgattn._kernels.attention.problem import AttentionProblem, Call, key_count
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant, unsupported
from wgattn._runtime.profile import DeviceProfile, Tuned

name = "flash_tiled"
MAX_DIM = 256


@dataclass(frozen=True, slots=True)
class Tile:
    """How a workgroup's threads stand: `across` × `down`, powers of two from 2 on, each with `rows` × `keys` logits,
    multiples of 4.

    `dims`: the head dims of Q and K that are staged at a time, at most. `turn`: lines of a stage that are multiplied in
    one turn of a loop; more are faster, and take longer to compile. `early`: values are read before weights are made,
    or while those ahead of them are multiplied, and places of query rows kept, where registers are left. `from_dim`,
    `to_dim`: the head dims that it is for, where another tile fits too.
    """

    across: int
    down: int
    rows: int
    keys: int
    dims: int = 32
    turn: int = 4
    early: bool = False
    from_dim: int = 0
    to_dim: int = MAX_DIM

    @property
    def q(self) -> int:
        return self.down * self.rows

    @property
    def k(self) -> int:
        return self.across * self.keys

    @property
    def threads(self) -> int:
        return self.across * self.down

    @property
    def scratch_pitch(self) -> int:
        """vec4 from one thread across to the next; odd, so that they meet no bank conflict."""
        return self.q // 4 + 1

    def columns(self, problem: AttentionProblem) -> int:
        """vec4 of the output that a thread owns in each of its rows."""
        return -(-problem.value_dim // 4 // self.across)

    def registers(self, problem: AttentionProblem) -> int:
        """32-bit registers of a thread that hold its sums and logits."""
        return self.rows * (4 * self.columns(problem) + self.keys)

    def stages(self, problem: AttentionProblem) -> dict[str, int]:
        """What is staged at a time, in vec4: head dims of Q and K, then weights and values of as many keys as fit."""
        chunks = problem.head_dim // 4
        at_a_time = max(n for n in range(1, chunks + 1) if chunks % n == 0 and 4 * n <= self.dims)
        pitch = self.columns(problem) * self.across
        a_key = self.q // 4 + pitch
        staged = max(at_a_time * (self.q + self.k), 4 * a_key, self.threads * self.rows // 4)
        keys = self.k
        while keys * a_key > staged:
            keys //= 2
        return {
            "STAGED": staged,
            "STAGE_CHUNKS": at_a_time,
            "KEYS_AT": at_a_time * self.q,
            "STAGE_KEYS": keys,
            "VALUES_AT": keys * self.q // 4,
            "VALUE_PITCH": pitch,
        }

    def lines(self, staged: int) -> int:
        """Lines that a turn multiplies, of so many that are staged; both are multiples of 4."""
        return self.turn if staged % self.turn == 0 else 4

    def shuffles(self, profile: DeviceProfile) -> bool:
        """Whether the threads that share a row are sure to be in one subgroup."""
        return 2 * self.across <= profile.team

    def workgroup_bytes(self, problem: AttentionProblem, profile: DeviceProfile) -> int:
        """What is staged; without shuffles, a number a row and thread across."""
        scratch = 0 if self.shuffles(profile) else self.across * self.scratch_pitch
        return (self.stages(problem)["STAGED"] + scratch) * 16


# Fastest first. NVIDIA's drivers give the workgroups of a multiprocessor 48 KiB together, so that what one needs
# decides how many there are at a time.
TILES = (
    Tile(8, 16, 8, 8, turn=8, early=True, to_dim=64),
    Tile(16, 8, 8, 8, early=True, from_dim=80, to_dim=128),
    Tile(16, 8, 8, 4, early=True, from_dim=64, to_dim=64),
    Tile(16, 8, 8, 4, from_dim=80),
    Tile(8, 8, 8, 8, dims=16, early=True),
    Tile(16, 8, 8, 8, dims=16),
    Tile(16, 8, 8, 4, dims=16),
    Tile(16, 16, 4, 4),
    Tile(16, 8, 4, 4),
    Tile(8, 8, 4, 4),
    Tile(16, 4, 4, 4),
    Tile(8, 4, 4, 4),
    Tile(4, 4, 4, 4),
)
MOST_REGISTERS = 160  # of 255 that a thread may have
SLACK = 8.0  # how far a logit may lie above the running maximum
FEW_ROWS = 16  # rows of a tile that are enough where T is at most 16
SPLIT_KEYS = 64  # how keys are split: see splits_for
DECODE_BYTES = 6144  # with so much workgroup memory a device holds as many workgroups as of those that decode
MOST_LOGITS = 4096  # of a tile where rows are few in all: small ones fill the device, and compile sooner
CPU_LOGITS = 1024  # of a tile on a CPU adapter, which has nothing from larger ones but longer compilation


def tile_of(problem: AttentionProblem, profile: DeviceProfile) -> Tile | None:
    """The first tile that fits the device, or None. Tuned by `flash_tiled_h64` and so on, a place in TILES."""
    fitting = _fitting(problem, profile)
    rule = next((tile for tile in fitting.values() if _is_for(tile, problem, profile)), None)
    return fitting.get(profile.constant(tuned_name(name, problem)), rule)


def _is_for(tile: Tile, problem: AttentionProblem, profile: DeviceProfile) -> bool:
    small = tile.q * tile.k <= CPU_LOGITS
    enough = tile.q * tile.k <= MOST_LOGITS or not problem.small
    return tile.from_dim <= problem.head_dim <= tile.to_dim and enough and (small or not profile.is_cpu)


def _fitting(problem: AttentionProblem, profile: DeviceProfile) -> dict[int, Tile]:
    """The tiles that fit the device, by their places in TILES."""
    return {
        place: tile
        for place, tile in enumerate(TILES)
        if tile.workgroup_bytes(problem, profile) <= profile.limits.workgroup_bytes
        and tile.threads <= profile.limits.invocations
        and tile.registers(problem) <= MOST_REGISTERS
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
        least = TILES[-1].workgroup_bytes(problem, profile)
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
    shuffles, stages = tile.shuffles(profile), tile.stages(problem)
    own = (
        f"q{tile.q}k{tile.k}",
        f"t{tile.rows}x{tile.keys}",
        f"d{4 * stages['STAGE_CHUNKS']}" + ("s" if shuffles else ""),
        f"l{tile.turn}" + ("e" if tile.early else ""),
        *((f"n{heads}",) if heads > 1 else ()),
    )
    return Variant(
        family=name,
        name=variant_name(name, problem, partial, *own),
        template="attention/flash_tiled.wgsl",
        constants=(
            *constants(problem, partial),
            ("WORKGROUP", tile.threads),
            ("ACROSS", tile.across),
            ("DOWN", tile.down),
            ("ROWS", tile.rows),
            ("KEYS", tile.keys),
            ("TILE_Q", tile.q),
            ("TILE_K", tile.k),
            ("ROW_QUADS", tile.q // 4),
            ("KEY_QUADS", tile.k // 4),
            ("ROW_MASK", min(tile.down, 8) - 1),
            ("KEY_MASK", min(tile.across, 8) - 1),
            ("HEADS", heads),
            ("TILE_T", tile.q // heads),
            ("HEAD_CHUNKS", problem.head_dim // 4),
            ("VALUE_CHUNKS", problem.value_dim // 4),
            ("COLUMNS", tile.columns(problem)),
            *stages.items(),
            ("TURN", tile.lines(4 * stages["STAGE_CHUNKS"])),
            ("VALUE_TURN", tile.lines(stages["STAGE_KEYS"])),
            ("EARLY", tile.early),
            ("SHUFFLES", shuffles),
            ("SCRATCH_PITCH", tile.scratch_pitch),
            ("SLACK", SLACK),
        ),
        bindings=bindings(problem, partial),
        parameters=parameters(problem),
        workgroup_bytes=tile.workgroup_bytes(problem, profile),
        features=frozenset({"subgroup"}) if shuffles else frozenset(),
        reason=f"tiles of {tile.q} rows and {tile.k} keys, each thread with {tile.rows} × {tile.keys} logits",
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
        SPLIT_KEYS,
        _size(problem, tile, profile, operands["query"].shape[2], key_count(call, operands)),
        halves=True,
    )


def _size(problem: AttentionProblem, tile: Tile, profile: DeviceProfile, queries: int, keys: int) -> float:
    """How many workgroups that decode one is worth: see splits_for. Less where a causal mask leaves out keys."""
    causal = all(any(bound[:2] == ("upper", "diagonal") for bound in clause) for clause in problem.keys.clauses)
    left_out = min(queries, keys) / (2 * max(keys, 1)) if causal else 0.0
    return tile.workgroup_bytes(problem, profile) / DECODE_BYTES * (1 - left_out)


def _tile(problem: AttentionProblem, profile: DeviceProfile) -> Tile:
    tile = tile_of(problem, profile)
    assert tile is not None, "supports() was asked first"
    return tile


def _max_keys(problem: AttentionProblem, tile: Tile, profile: DeviceProfile) -> int | None:
    """How many keys fit in the loop turns an invocation has: every loop of a tile is counted as it is written."""
    turns = profile.limits.loop_turns
    if turns is None:
        return None
    stages = tile.stages(problem)
    chunks, keys, value = stages["STAGE_CHUNKS"], stages["STAGE_KEYS"], problem.value_dim // 4
    rotated = 0
    if problem.rope == "half":  # elements of a rotated chunk are found one by one
        rotated = 16 * (-(-tile.q // 4 * chunks // tile.threads) - (-tile.k // 4 * chunks // tile.threads))
    logits = problem.head_dim // 4 // chunks * (1 + rotated + chunks) + tile.rows // 4 * tile.across
    output = tile.k // keys * (1 + keys // 4)
    a_tile = 1 + logits + output + tile.keys * (1 + tile.rows) + (tile.k if problem.segments else 0)
    if problem.paged:
        a_tile += tile.k // 8  # pages, each of which may have no key
    if problem.empty_rows == "mean":
        a_tile += -(-value // tile.threads) * tile.k // 8 * 9
    return max((turns - 4096) // a_tile, 1) * tile.k
