"""The options of attention calls, as type checkers see them: what the overloads of a call share."""

from __future__ import annotations  # jaxtyping is for readers and type checkers: it loads too much for an import

from typing import TYPE_CHECKING, Any, TypedDict

from ._array import Array
from ._kernels.rotation import Rope

if TYPE_CHECKING:
    from jaxtyping import Float, Int

ArrayLike = Any  # what asarray takes: NumPy, JAX, DLPack, numbers


class CachedOptions(TypedDict, total=False):
    """All keyword options of `cached_attention` but `return_residual`, which decides what comes back."""

    scale: float | Float[Array, ""] | ArrayLike | None
    is_causal: bool
    query_seq_lengths: Int[Array, " B"] | ArrayLike | None
    local_window_size: int | tuple[int, int] | None
    implementation: str | None
    softcap: float | None
    sinks: Float[Array, " N"] | ArrayLike | None
    query_offset: int | Int[Array, ...] | ArrayLike | None
    residual_dtype: Any
    rope: Rope | None


class AttentionOptions(CachedOptions, total=False):
    """All keyword options of `dot_product_attention` but `return_residual`."""

    key_value_seq_lengths: Int[Array, " B"] | ArrayLike | None
