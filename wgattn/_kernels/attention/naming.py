"""The readable name of an attention variant: what its shader sees of the problem, and the family's own constants."""

from wgattn._kernels.attention.problem import AttentionProblem


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
