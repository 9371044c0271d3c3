"""Flash on matrix units: float16 in, float32 sums. For prefill on GPUs that have them."""

from collections.abc import Mapping
from dataclasses import dataclass

from wgattn._dtypes import float16, float32, short_name
from wgattn._kernels.attention.inputs import bindings, constants, parameters
from wgattn._kernels.attention.launches import enough_buffers, plan_blocks, split_candidates
from wgattn._kernels.attention.naming import tuned_name, variant_name
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant, unsupported
from wgattn._kernels.matrices import LANES, is_emulated, matrix_features, supports_matrices
from wgattn._runtime.profile import DeviceProfile, Tuned

name = "flash_matrix"
MAX_DIM = 256
SIDE = 16  # rows and columns of a matrix
SLACK = 8.0  # how far a logit may lie above the running maximum


@dataclass(frozen=True, slots=True)
class Tile:
    """`subgroups` of a workgroup with `blocks` times 16 query rows each, and `keys` a step.

    Logits of `slots` times 16 keys are exchanged at once. K and V of `steps` steps are staged at a time, so that
    subgroups wait for each other less often. For head dims up to `most_dim`.
    """

    subgroups: int
    keys: int
    slots: int = 1
    steps: int = 1
    blocks: int = 1
    most_dim: int = MAX_DIM

    @property
    def rows(self) -> int:
        return self.subgroups * self.blocks * SIDE

    @property
    def threads(self) -> int:
        return self.subgroups * LANES

    @property
    def staged(self) -> int:
        return self.keys * self.steps

    def pitches(self, problem: AttentionProblem) -> dict[str, int]:
        """16 bytes from one row to the next, odd numbers: lanes beside each other meet no bank conflict."""
        return {
            "KEY_PITCH": parts_of(problem) * problem.head_dim // 8 + 1,
            "VALUE_PITCH": problem.value_dim // 8 + 1,
            "SCORE_PITCH": 4 * self.slots + 1,
            "WEIGHT_PITCH": self.keys // 8 + 1,
        }

    def workgroup_bytes(self, problem: AttentionProblem) -> int:
        """K and V, the logits and weights of each subgroup, the mean of V."""
        pitch = self.pitches(problem)
        tiles = self.staged * (pitch["KEY_PITCH"] + pitch["VALUE_PITCH"])
        mean = problem.value_dim * 4 + 4 if problem.empty_rows == "mean" else 0
        return (tiles + self.subgroups * self.blocks * self.exchange(problem)) * 16 + mean

    def exchange(self, problem: AttentionProblem) -> int:
        """16 bytes that a block of rows has for logits, then for weights."""
        pitch = self.pitches(problem)
        return SIDE * max(pitch["SCORE_PITCH"], pitch["WEIGHT_PITCH"])

    def registers(self, problem: AttentionProblem) -> int:
        """32-bit registers of a lane that hold matrices: the sums, Q and the logits."""
        return self.blocks * (problem.value_dim // 2 + parts_of(problem) * problem.head_dim // 4 + self.keys // 2)


# Fastest first. On an H200 all workgroups of a multiprocessor have 48 KiB together: below half of that two run at once,
# which is worth more than a larger tile. Two blocks of rows read each part of K and V once, where registers suffice.
TILES = (
    Tile(4, 32, blocks=2, most_dim=96),
    Tile(8, 32, steps=2),
    Tile(8, 32, slots=2),
    Tile(8, 32, most_dim=192),
    Tile(4, 32, most_dim=192),
    Tile(8, 16),
    Tile(2, 32),
    Tile(2, 16),
    Tile(1, 16),
)
MOST_REGISTERS = 208  # of 255 that a lane may have
SPLIT_KEYS, FEW_SPLIT_KEYS = 512, 128  # how keys are split, those of few rows too: see splits_for


def tile_of(problem: AttentionProblem, profile: DeviceProfile) -> Tile | None:
    """The first tile that fits the device, or None; where rows are few, the first of 64. Tuned by `flash_matrix_h64`
    and so on, a place in TILES."""
    fitting = _fitting(problem, profile)
    tiles = list(fitting.values())
    if problem.queries == "few" or problem.small:
        tiles = [tile for tile in tiles if tile.rows == 4 * SIDE] or tiles
    return fitting.get(profile.constant(tuned_name(name, problem)), tiles[0] if tiles else None)


def _fitting(problem: AttentionProblem, profile: DeviceProfile) -> dict[int, Tile]:
    """The tiles that fit the device, by their places in TILES."""
    return {place: tile for place, tile in enumerate(TILES) if _fits(tile, problem, profile)}


def _fits(tile: Tile, problem: AttentionProblem, profile: DeviceProfile) -> bool:
    return (
        tile.workgroup_bytes(problem) <= profile.limits.workgroup_bytes
        and tile.threads <= profile.limits.invocations
        and tile.registers(problem) <= MOST_REGISTERS
        and max(problem.head_dim, problem.value_dim) <= tile.most_dim
    )


def parts_of(problem: AttentionProblem) -> int:
    """How many float16 a number of Q and K is: rotated ones are rounded, which a float32 residual would show."""
    return 2 if problem.rope is not None and problem.residual == float32 else 1


def heads_of(problem: AttentionProblem, tile: Tile) -> int:
    """Heads of a group that share a tile: rows that few queries leave free; a power of two."""
    if problem.queries != "few" or problem.group == 1:
        return 1
    return min(1 << (problem.group - 1).bit_length(), tile.rows // 2)


def supports(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    units = supports_matrices(profile)
    if not units:
        return units
    others = {short_name(d) for d in (problem.query_dtype, problem.key_dtype, problem.value_dtype) if d != float16}
    if others:
        return unsupported(f"it multiplies float16, not {' and '.join(sorted(others))}")
    if problem.out_dtype != float16:
        return unsupported(
            f"it rounds weights to float16, which a result of {short_name(problem.out_dtype)} would show"
        )
    if problem.queries == "one":
        return unsupported("it takes T from 2 on; one row a head leaves matrices empty")
    if max(problem.head_dim, problem.value_dim) > MAX_DIM:
        return unsupported(f"head dims above {MAX_DIM} do not fit registers")
    if tile_of(problem, profile) is None:
        least = TILES[-1]
        return unsupported(
            f"none of its tiles fits: the least needs {least.workgroup_bytes(problem):,} bytes of workgroup memory, of "
            f"{profile.limits.workgroup_bytes:,} there, and {least.registers(problem)} registers, of {MOST_REGISTERS}"
        )
    return enough_buffers(problem, profile)


def suits(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    return SUPPORTED


def _unit(problem: AttentionProblem) -> int:
    """16 where K and V are copied as words of eight elements, 0 where they are read by the shared readers."""
    return 16 if problem.rope is None and problem.aligned == 16 else 0


def candidates(problem: AttentionProblem, profile: DeviceProfile) -> Tuned:
    tiles = ((tuned_name(name, problem), place) for place in _fitting(problem, profile))
    return *tiles, *split_candidates(profile)


def variant(problem: AttentionProblem, profile: DeviceProfile, partial: bool = False) -> Variant:
    tile = _tile(problem, profile)
    heads, unit = heads_of(problem, tile), _unit(problem)
    emulated = is_emulated(profile)
    own = (
        f"s{tile.subgroups}b{tile.blocks}k{tile.keys}x{tile.steps}e{tile.slots}",
        f"u{unit}",
        *((f"n{heads}",) if heads > 1 else ()),
        *(("emulated",) if emulated else ()),
    )
    pitches = tile.pitches(problem)
    return Variant(
        family=name,
        name=variant_name(name, problem, partial, *own),
        template="attention/flash_matrix.wgsl",
        constants=(
            *constants(problem, partial, unit=unit),
            ("EMULATED", emulated),
            ("PARTS", parts_of(problem)),
            ("WORKGROUP", tile.threads),
            ("SUBGROUPS", tile.subgroups),
            ("BLOCKS", tile.blocks),
            ("SLOTS", tile.slots),
            ("STEPS", tile.steps),
            ("TILE_Q", tile.rows),
            ("TILE_K", tile.staged),
            ("STEP_K", tile.keys),
            ("HEADS", heads),
            ("TILE_T", tile.rows // heads),
            ("KEY_BLOCKS", tile.keys // SIDE),
            ("HEAD_STEPS", problem.head_dim // SIDE),
            ("VALUE_STEPS", problem.value_dim // SIDE),
            ("HEAD_EIGHTS", problem.head_dim // 8),
            ("VALUE_EIGHTS", problem.value_dim // 8),
            ("VALUE_CHUNKS", problem.value_dim // 4),
            ("KEY_PIECES", -(-tile.staged * problem.head_dim // 8 // tile.threads)),
            ("VALUE_PIECES", -(-tile.staged * problem.value_dim // 8 // tile.threads)),
            ("EXCHANGE", tile.exchange(problem)),
            *pitches.items(),
            ("SLACK", SLACK),
        ),
        bindings=bindings(problem, partial, unit=unit),
        parameters=parameters(problem),
        workgroup_bytes=tile.workgroup_bytes(problem),
        features=matrix_features(profile),
        reason=f"matrix units: tiles of {tile.rows} rows and {tile.keys} keys",
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
        tile.rows,
        _max_keys(problem, tile, profile),
        FEW_SPLIT_KEYS if problem.queries == "few" else SPLIT_KEYS,
        _size(problem, tile),
    )


def _size(problem: AttentionProblem, tile: Tile) -> int:
    """How many workgroups that decode one is worth: see splits_for. Few blocks of rows of very different length, as
    causal ones are, are split further than fills the device."""
    return 4 if problem.small and problem.queries != "few" else tile.subgroups


def _tile(problem: AttentionProblem, profile: DeviceProfile) -> Tile:
    tile = tile_of(problem, profile)
    assert tile is not None, "supports() was asked first"
    return tile


def _max_keys(problem: AttentionProblem, tile: Tile, profile: DeviceProfile) -> int | None:
    """How many keys fit in the loop turns an invocation has: staging, masks, and what rare calls loop over besides."""
    turns = profile.limits.loop_turns
    if turns is None:
        return None
    staged = -(-tile.staged * (problem.head_dim + problem.value_dim) // 4 // tile.threads) + 2
    a_tile = 1 + 5 * staged + tile.staged // 2 + 3 * tile.staged
    if problem.empty_rows == "mean":
        a_tile += -(-problem.value_dim // 4 // tile.threads) * tile.staged // 8 * 9
    return max((turns - 16384) // a_tile, 1) * tile.staged
