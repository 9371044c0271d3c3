"""The command line's words for an attention call, read into a Workload."""

import re
from typing import Any

import typer

from wgattn._cli.arguments import SHORT, STORED
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
    S = _at_least(0, keys, T, "--keys", "the number of keys")
    K = _at_least(1, kv_heads, N, "--kv-heads", "the number of key/value heads")
    Hv = _at_least(1, value_dim, H, "--value-dim", "the head dim of value")
    if dtype not in DTYPES:
        raise typer.BadParameter(f"{dtype!r} is not one of {', '.join(DTYPES)}", param_hint="--dtype")
    if N % K:
        told = f"{N} query heads cannot share {K} key/value heads: N % K must be 0"
        raise typer.BadParameter(told, param_hint="--kv-heads")
    if (cache := options.get("cache")) is not None:
        options["cache"] = stored = SHORT.get(cache, cache)
        if stored not in STORED:
            raise typer.BadParameter(f"{cache!r} is not one of {', '.join(STORED)}", param_hint="--cache")
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
    if min(N, H) < 1:
        raise typer.BadParameter(f"{text!r} has N={N} and H={H}: both are at least 1", param_hint="--q")
    return B, T, N, H


def _at_least(least: int, given: int | None, otherwise: int, option: str, what: str) -> int:
    if given is not None and given < least:
        raise typer.BadParameter(f"{given} is not {what}, at least {least}", param_hint=option)
    return otherwise if given is None else given


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
