"""The command line's words for an attention call, read into a Workload."""

import re
from typing import Any

import typer

from wgattn.bench.workload import DTYPES, Workload


def workload(
    q: str,
    keys: int | None = None,
    kv_heads: int | None = None,
    value_dim: int | None = None,
    dtype: str = "f32",
    window: str | None = None,
    **options: Any,
) -> Workload:
    """The call that the options spell. Raises typer.BadParameter, which names the option and what it takes."""
    B, T, N, H = _query(q)
    S, K, Hv = (T if keys is None else keys), kv_heads or N, value_dim or H
    if dtype not in DTYPES:
        raise typer.BadParameter(f"{dtype!r} is not one of {', '.join(DTYPES)}", param_hint="--dtype")
    if N % K:
        told = f"{N} query heads cannot share {K} key/value heads: N % K must be 0"
        raise typer.BadParameter(told, param_hint="--kv-heads")
    for name in ("bias", "mask"):
        letters = options.get(name)
        if letters is not None and not re.fullmatch("B?N?T?S?", letters):
            raise typer.BadParameter(f"{letters!r} is not a part of BNTS, in that order", param_hint=f"--{name}")
    return Workload(B, T, N, H, S, K, Hv, dtype, window=None if window is None else _window(window), **options)


def _query(text: str) -> tuple[int, int, int, int]:
    sizes = _integers(text, "--q", "B,T,N,H or T,N,H")
    if len(sizes) not in (3, 4) or min(sizes) < 0:
        raise typer.BadParameter(f"{text!r} is not a shape B,T,N,H or T,N,H", param_hint="--q")
    B, T, N, H = (1, *sizes) if len(sizes) == 3 else sizes
    return B, T, N, H


def _window(text: str) -> tuple[int, int]:
    sizes = _integers(text, "--window", "LEFT,RIGHT or one number")
    if len(sizes) not in (1, 2):
        raise typer.BadParameter(f"{text!r} is not LEFT,RIGHT nor one number", param_hint="--window")
    return sizes[0], sizes[-1]


def _integers(text: str, option: str, form: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not {form}", param_hint=option) from None
