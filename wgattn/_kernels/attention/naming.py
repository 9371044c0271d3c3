"""Readable names: of a variant, from what its shader sees of the problem and its constants, and of a tuned constant."""

from wgattn._kernels.attention.problem import AttentionProblem


def tuned_name(family: str, problem: AttentionProblem) -> str:
    """The name of a tuned constant that goes with a head dim, and apart for T up to 16, `flash_tiled_h64_few`, and for
    few rows in all, `flash_tiled_h64_small`."""
    size = "_few" if problem.queries in ("one", "few") else "_small" if problem.small else ""
    return f"{family}_h{problem.head_dim}{size}"


def variant_name(family: str, problem: AttentionProblem, partial: bool, *own: str) -> str:
    """The name, word by word: dtypes, dims (p: padded inside their class), key ranges, features, what is read singly.

    Example: `flash_tiled-f16-h64-ud-rope4-q64k32`.
    """
    dims = f"h{problem.head_dim}"
    if problem.value_dim != problem.head_dim:
        dims += f"v{problem.value_dim}"
    scalar = [word[0] for word in ("query", "key", "value", "out") if word not in problem.vectors]
    words = (
        family,
        problem.dtype_name,
        dims + ("" if problem.exact_dims else "p"),
        problem.keys.name,
        *problem.features,
        *(("scalar" + "".join(scalar),) if scalar else ()),
        *(("part",) if partial else ()),
        *own,
    )
    return "-".join(words)
