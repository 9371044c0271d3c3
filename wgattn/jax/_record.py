"""An attention call of JAX as recorded functions of wgattn: checked on one example's shapes, run on all that vmap maps."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from wgattn import masks, nn
from wgattn._array import Array
from wgattn._bind import check_implementation
from wgattn._functions import broadcast_to
from wgattn._graph.operations import Rotate
from wgattn._array import apply
from wgattn._dtypes import float32
from wgattn._jit import JitFunction, jit
from wgattn._kernels.attention.problem import Call, Clause
from wgattn._kernels.rotation import Rope

from ._batching import Batching, entries, merged, split_point, tail_of
from ._callback import HostProgram

DIFFERENTIABLE = ("query", "key", "value", "bias", "sinks", "scale")
PARTS = {"query_segments", "key_segments"}


@dataclass(frozen=True, slots=True)
class Spec:
    """All that is static in a call: the names of its operands in order, and its options."""

    names: tuple[str, ...]
    clauses: tuple[Clause, ...] | None = None  # of a mask value; its sources and segment ids are operands
    scale: float | None = None
    is_causal: bool = False
    window: tuple[int, int] | int | None = None
    softcap: float | None = None
    rope: Rope | None = None
    implementation: str | None = None
    residual: bool = False

    @property
    def differentiable(self) -> tuple[int, ...]:
        """The places of the operands that gradients flow to."""
        return tuple(i for i, name in enumerate(self.names) if name in DIFFERENTIABLE)
