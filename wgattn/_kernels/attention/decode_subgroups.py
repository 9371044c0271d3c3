"""Decode in subgroups: one query row a head, teams of lanes read keys side by side. For T = 1 on GPUs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from wgattn._dtypes import float8_e4m3fn, float32, int8, short_name
from wgattn._kernels.attention.inputs import bindings, constants, parameters
from wgattn._kernels.attention.launches import SPLITS, enough_buffers, plan_row, split_candidates
from wgattn._kernels.attention.naming import variant_name
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.kernel import SUPPORTED, Operand, Plan, Support, Variant, unsupported
from wgattn._runtime.profile import DeviceProfile, Tuned

name = "decode_subgroups"
MAX_DIM = 256
WORKGROUP = 64
MOST_HEADS = 8  # query heads that one read of a key serves
ELEMENTS = 32  # of a lane's query and of its sums, over its heads: what stays in registers
MOST_ELEMENTS = 96  # where no team is large enough for that
TEAMS = (8, 16, 32, 4)  # lanes, as they are tried: eight read whole cache lines of most types
BYTE_ELEMENTS = 64  # the same where a lane of a discrete GPU, which has 255 registers, reads elements of one byte
BYTE_WORKGROUPS = 512  # that fill a discrete GPU with lanes of so many registers
# What the exchange turns, by the digits of int8 products: the fastest on an H200. Of keys, those that lanes far apart
# share: so many bytes of one key are read side by side.
TURNED: dict[int, tuple[str, ...]] = {0: ("heads",), 2: ("heads",), 3: ("heads", "keys")}
TURNED_BYTES = 64
MOST_SHARE = 32  # bytes of a float32 key that a lane reads, for eight keys to be taken at a time; of more four are
SLACK = 8.0  # how far a logit may lie above the running maximum


class Step(NamedTuple):
    """A step of the exchange over lanes `mask` apart: what is halved, and the keys and heads a lane has after it.

    turned: the lanes of its upper side hold the halves of their registers swapped, so that both sides keep the first.
    """

    mask: int
    kind: Literal["heads", "keys", "add"]
    keys: int
    heads: int
    turned: bool

    @property
    def size(self) -> int:
        """What is left of the kind."""
        return self.heads if self.kind == "heads" else self.keys if self.kind == "keys" else 0

    def second(self, n: int) -> bool:
        """Whether register `n` of the kind lies in the half that is given away."""
        return n // self.size % 2 == 1


@dataclass(frozen=True, slots=True)
class Team:
    """`lanes` that share the rows of `heads` query heads, and take `batch` keys at a time, `unit` bytes a read.

    unit 0: rows are read four elements at a time, by the shared readers. `digits`: int8 keys are multiplied as they
    are, by query rows of so many int8 digits; 0: products are of float32.
    """

    lanes: int
    heads: int
    batch: int
    unit: int
    digits: int

    def steps(self) -> tuple[Step, ...]:
        """How products are summed over the team: keys and heads are halved; what is odd is added by both sides."""
        kinds: list[Literal["heads", "keys", "add"]] = []
        keys, heads, turned = self.batch, self.heads, TURNED[self.digits]
        while 2 ** len(kinds) < self.lanes:
            even = heads % 2 == 0
            kinds.append("heads" if even and (turned or keys == 1) else "keys" if keys > 1 else "add")
            keys, heads = keys // 2 if kinds[-1] == "keys" else keys, heads // 2 if kinds[-1] == "heads" else heads
        by_distance = sorted(range(len(kinds)), key=lambda at: ("add", "heads", "keys").index(kinds[at]))
        found, keys, heads = [], self.batch, self.heads
        for at, kind in enumerate(kinds):
            mask = 1 << by_distance.index(at)
            keys, heads = keys // 2 if kind == "keys" else keys, heads // 2 if kind == "heads" else heads
            wide = kind == "heads" or mask * self.unit >= TURNED_BYTES
            found.append(Step(mask, kind, keys, heads, kind in turned and wide))
        return tuple(found)

    def across(self, j: int, g: int) -> int:
        """How far the lane is that ends up with what another has in registers j of keys and g of heads."""
        return sum(step.mask for step in self.steps() if step.turned and step.second(g if step.kind == "heads" else j))

    def along(self, j: int, g: int) -> int:
        """Which lane ends up with key j and head g, as far as steps say that turn nothing."""
        straight = (step for step in self.steps() if step.mask & self.straight)
        return sum(step.mask for step in straight if step.second(g if step.kind == "heads" else j))

    @property
    def straight(self) -> int:
        """The bits of a lane's number that decide which sums it ends up with; all lanes hold theirs in one order."""
        return sum(step.mask for step in self.steps() if step.kind != "add" and not step.turned)

    @property
    def alike(self) -> int:
        """The lanes' bits that make no difference to the heads whose logits they end up with."""
        return sum(step.mask for step in self.steps() if step.kind != "heads")


def team_of(problem: AttentionProblem, profile: DeviceProfile) -> Team | None:
    """The team that serves the most heads, in even shares, of lanes that hold few elements; None where none fits.

    Tuned by `decode_subgroups_h64_g4_f16` and so on, the lanes of a team.
    """
    tuned = profile.constant(_tuned_name(problem))
    teams = ((tuned,), TEAMS) if tuned in TEAMS else (TEAMS,)
    return next(filter(None, (_first_team(problem, profile, lanes) for lanes in teams)), None)


def _tuned_name(problem: AttentionProblem) -> str:
    return f"{name}_h{problem.head_dim}_g{problem.group}_{short_name(problem.key_dtype)}"


def _first_team(problem: AttentionProblem, profile: DeviceProfile, teams: tuple[int, ...]) -> Team | None:
    dims = (problem.head_dim, problem.value_dim)
    fitting = [n for n in teams if n <= profile.team and not any(dim // 4 % n for dim in dims)]
    for blocks in range(-(-problem.group // MOST_HEADS), problem.group + 1):
        heads = -(-problem.group // blocks)
        for most in (_elements(problem, profile), MOST_ELEMENTS):
            for lanes in fitting:
                if max(dims) * heads <= most * lanes:
                    unit = _unit(problem, lanes)
                    batch = 4 if problem.key_dtype == float32 and 4 * max(dims) > MOST_SHARE * lanes else 8
                    return Team(lanes, heads, min(lanes, batch), unit, _digits(problem) if unit else 0)
    return None


def _elements(problem: AttentionProblem, profile: DeviceProfile) -> int:
    wide = profile.kind == "discrete" and of_bytes(problem)
    return BYTE_ELEMENTS if wide else ELEMENTS


def of_bytes(problem: AttentionProblem) -> bool:
    """Whether keys and values are read in units of a cache whose elements have one byte each."""
    return problem.key_dtype.itemsize == 1 and problem.aligned > 0 and _direct(problem)


def _digits(problem: AttentionProblem) -> int:
    """Digits of 8 bits that a query's numbers need beside the largest of their row: two are off by 2^-16 of it."""
    if problem.key_dtype != int8:
        return 0
    return 3 if float32 in (problem.query_dtype, problem.residual) else 2


def _direct(problem: AttentionProblem) -> bool:
    return problem.rope is None and problem.value_dtype == problem.key_dtype


def _unit(problem: AttentionProblem, lanes: int) -> int:
    """The widest read that divides the rows among the lanes."""
    size = problem.key_dtype.itemsize
    if not _direct(problem):
        return 0
    rows = math.gcd(problem.head_dim, problem.value_dim) * size
    units = (unit for unit in (16, 8, 4) if unit >= 4 * size and unit <= problem.aligned)
    return next((unit for unit in units if rows % (lanes * unit) == 0), 0)


def supports(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    if problem.queries != "one":
        return unsupported("it takes T = 1 alone")
    if max(problem.head_dim, problem.value_dim) > MAX_DIM:
        return unsupported(f"it takes head dims up to {MAX_DIM}")
    if not profile.team:
        return unsupported("the device has no subgroups, or does not say how many lanes they have")
    if team_of(problem, profile) is None:
        return unsupported(f"a head's row does not fit the registers of {profile.team} lanes, the subgroup's least")
    return enough_buffers(problem, profile)


def suits(problem: AttentionProblem, profile: DeviceProfile) -> Support:
    return unsupported("it reads storage buffers, which is slow on a CPU adapter") if profile.is_cpu else SUPPORTED


def candidates(problem: AttentionProblem, profile: DeviceProfile) -> Tuned:
    fitting = ((_tuned_name(problem), lanes) for lanes in TEAMS if _first_team(problem, profile, (lanes,)))
    return *fitting, *split_candidates(profile)


def variant(problem: AttentionProblem, profile: DeviceProfile, partial: bool = False) -> Variant:
    team = _team(problem, profile)
    quads = int(team.unit // (4 * problem.key_dtype.itemsize)) if team.unit else 1
    scaled = problem.scales and team.unit > 0  # once a logit and a weight; the shared readers scale what they read
    ahead = team.unit > 0 and problem.key_dtype.itemsize == 1
    word = f"n{team.heads}l{team.lanes}k{team.batch}u{team.unit}"
    return Variant(
        family=name,
        name=variant_name(name, problem, partial, word + f"d{team.digits}" * bool(team.digits)),
        template="attention/decode_subgroups.wgsl",
        constants=(
            *constants(problem, partial, unit=team.unit),
            ("WORKGROUP", WORKGROUP),
            ("HEADS", team.heads),
            ("LANES", team.lanes),
            ("TEAMS", WORKGROUP // team.lanes),
            ("BATCH", team.batch),
            ("UNIT", team.unit),
            ("QUADS", quads),
            ("KEY_QUADS", problem.head_dim // 4 // team.lanes),
            ("VALUE_QUADS", problem.value_dim // 4 // team.lanes),
            ("VALUE_CHUNKS", problem.value_dim // 4),
            ("SLACK", SLACK),
            ("SCALED", scaled),
            ("AHEAD", ahead),
            ("DIGITS", team.digits),
            ("NAN_SEEN", ahead and problem.key_dtype == float8_e4m3fn),
            ("team", team),
            ("steps", team.steps()),
            ("key_name", short_name(problem.key_dtype)),
            ("value_name", short_name(problem.value_dtype)),
        ),
        bindings=bindings(problem, partial, unit=team.unit),
        parameters=parameters(problem),
        workgroup_bytes=_workgroup_bytes(problem, team),
        features=frozenset({"subgroup"}),
        reason=f"one query row: teams of {team.lanes} lanes read keys and values once for {team.heads} heads",
    )


def plan(problem: AttentionProblem, call: Call, operands: Mapping[str, Operand], profile: DeviceProfile) -> Plan:
    team = _team(problem, profile)
    if max(problem.head_dim, problem.value_dim) * team.heads > ELEMENTS * team.lanes and of_bytes(problem):
        profile = replace(profile, tuned=((SPLITS, BYTE_WORKGROUPS), *profile.tuned))
    return plan_row(
        problem,
        call,
        operands,
        profile,
        lambda partial: variant(problem, profile, partial),
        team.heads,
        _max_keys(problem, team, profile),
    )


def _team(problem: AttentionProblem, profile: DeviceProfile) -> Team:
    team = team_of(problem, profile)
    assert team is not None, "supports() was asked first"
    return team


def _workgroup_bytes(problem: AttentionProblem, team: Team) -> int:
    """A top and a total a head and team, the sums of a head by team."""
    teams = WORKGROUP // team.lanes
    return teams * (2 * team.heads * 4 + problem.value_dim * 4)


def _max_keys(problem: AttentionProblem, team: Team, profile: DeviceProfile) -> int | None:
    """How many keys fit in the loop turns an invocation has; a row without keys loops over V besides."""
    turns = profile.limits.loop_turns
    if turns is None:
        return None
    taken = WORKGROUP // team.lanes * team.batch
    return max((turns - 4096) // (1 + (taken // 8 * 9 if problem.empty_rows == "mean" else 0)), 1) * taken
