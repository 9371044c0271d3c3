"""Rotary position embedding as a value: its parameters and frequencies, and the tables that kernels read.

The tables are made on the host in float64 and rounded once. A position is split into three digits, 4096 · 1024 · 1024,
and a table row holds the rotation of one digit; a kernel multiplies the rotations of the digits that are not zero. So
any int32 position is served by 6,144 rows, and a position below 4096 reads its own rounded cos and sin.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

DIGITS = (4096, 1024, 1024)
TABLES = "rope_tables"  # what every plan and shader calls the tables
Style = Literal["half", "interleaved"]


@dataclass(frozen=True, slots=True)
class Rope:
    """The parameters of a rotary embedding; `wgattn.nn.rope` says what each means.

    `rope=` of an attention call takes one, and rotates query and key while they are read. Source: Su et al.,
    "RoFormer" (2021); scaling rules `llama3` (Llama 3.1) and `yarn` (Peng et al., 2023).

    Raises ValueError for parameters that are out of range, or that a scaling rule lacks or does not know.

    Example:
        >>> wgattn.nn.Rope(base=500_000.0, rotary_dim=32).rotated(64)
        32
    """

    base: float = 10000.0
    rotary_dim: int | None = None
    style: Style = "half"
    scaling: Mapping[str, float | str] | tuple[tuple[str, float | str], ...] | float | None = None  # a tuple once made

    def __post_init__(self) -> None:
        if not (math.isfinite(self.base) and self.base > 0):
            raise ValueError(f"rope base must be finite and above 0; got {self.base}")
        if self.style not in ("half", "interleaved"):
            raise ValueError(f'rope style is "half" or "interleaved"; got {self.style!r}')
        if self.rotary_dim is not None and (self.rotary_dim < 2 or self.rotary_dim % 2):
            raise ValueError(f"rotary_dim must be even and at least 2; got {self.rotary_dim}")
        if isinstance(self.scaling, Mapping):
            object.__setattr__(self, "scaling", tuple(sorted(self.scaling.items())))
        inverse_frequencies(self, self.rotary_dim or 2)

    def rotated(self, head_dim: int) -> int:
        """How many of `head_dim` elements are rotated."""
        rotary_dim = head_dim if self.rotary_dim is None else self.rotary_dim
        if rotary_dim > head_dim or rotary_dim % 2:
            raise ValueError(
                f"rope rotates {rotary_dim} of head_dim {head_dim} elements: "
                f"give an even rotary_dim of at most {head_dim}"
            )
        return rotary_dim


def inverse_frequencies(rope: Rope, rotary_dim: int) -> tuple[np.ndarray, float]:
    """Radians a position for each of rotary_dim / 2 pairs, float64, and the factor on cos and sin (1 but for yarn)."""
    pairs = np.arange(0, rotary_dim, 2, dtype=np.float64)
    plain = rope.base ** (-pairs / rotary_dim)
    if rope.scaling is None:
        return plain, 1.0
    if isinstance(rope.scaling, int | float):
        return plain / float(rope.scaling), 1.0
    given = {name: value for name, value in dict(rope.scaling).items() if value is not None}
    rule = next((given.pop(name) for name in ("rule", "rope_type", "type") if name in given), None)
    if rule not in _RULES:
        raise ValueError(
            f'rope scaling takes None, a factor, or a dict with rule "linear", "llama3" or "yarn"; got {rule!r}'
        )
    if unknown := set(given) - _RULES[rule]:
        raise ValueError(f"rope scaling rule {rule} takes {sorted(_RULES[rule])}; got {sorted(unknown)} beside them")
    if rule == "linear":
        return plain / _take(given, rule, "factor"), 1.0
    if rule == "llama3":
        return _llama3(plain, given), 1.0
    return _yarn(plain, rope.base, rotary_dim, given)


_RULES = {
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate",
        "attention_factor", "mscale", "mscale_all_dim",
    },
}  # fmt: skip


def _take(given: dict, rule: object, name: str, default: float | None = None) -> float:
    value = given.get(name, default)
    if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"rope scaling rule {rule} needs {name}, a number above 0; got {value!r}")
    return float(value)


def _llama3(plain: np.ndarray, given: dict) -> np.ndarray:
    factor = _take(given, "llama3", "factor")
    low = _take(given, "llama3", "low_freq_factor", 1.0)
    high = _take(given, "llama3", "high_freq_factor", 4.0)
    trained = _take(given, "llama3", "original_max_position_embeddings", 8192)
    turns = trained * plain / (2 * np.pi)  # whole turns within the trained length
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return plain / factor * (1 - blend) + plain * blend


def _yarn(plain: np.ndarray, base: float, rotary_dim: int, given: dict) -> tuple[np.ndarray, float]:
    factor = _take(given, "yarn", "factor")
    trained = _take(given, "yarn", "original_max_position_embeddings")

    def pair_of(turns: float) -> float:  # the pair that makes `turns` whole turns within the trained length
        return rotary_dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    first = pair_of(_take(given, "yarn", "beta_fast", 32.0))
    last = pair_of(_take(given, "yarn", "beta_slow", 1.0))
    if given.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)
    ramp = np.clip((np.arange(rotary_dim // 2) - first) / (last - first or 1e-3), 0.0, 1.0)
    return plain / factor * ramp + plain * (1 - ramp), _yarn_attention(factor, given)


def _yarn_attention(factor: float, given: dict) -> float:
    """The factor on cos and sin: as given, or 0.1 · mscale · ln(factor) + 1, over the same of mscale_all_dim."""

    def grown(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if "attention_factor" in given:
        return _take(given, "yarn", "attention_factor")
    if "mscale" in given and "mscale_all_dim" in given:
        return grown(_take(given, "yarn", "mscale")) / grown(_take(given, "yarn", "mscale_all_dim"))
    return grown(1.0)


@lru_cache(maxsize=16)
def tables(rope: Rope, head_dim: int) -> np.ndarray:
    """float32 (6144, rotary_dim / 2, 2): cos and sin of each digit's rotation; the last digit's rows are signed."""
    frequency, factor = inverse_frequencies(rope, rope.rotated(head_dim))
    low, middle, high = DIGITS
    digits = np.concatenate([np.arange(low), np.arange(middle) * low, _signed(high) * low * middle]).astype(np.float64)
    angle = digits[:, None] * frequency
    table = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    table[:low] *= factor
    return table.astype(np.float32)


def _signed(size: int) -> np.ndarray:
    digits = np.arange(size)
    return np.where(digits < size // 2, digits, digits - size)
