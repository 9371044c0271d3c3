"""The calls that `wgattn validate` makes: each option, size and type by itself, then options in pairs."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from wgattn.bench.workload import Workload

BASE = Workload(B=2, T=33, N=4, H=32, S=40, K=2, Hv=32)
EDGES = (1, 2, 7, 8, 9, 16, 17, 31, 33, 64, 65, 127, 129, 257)
HEAD_DIMS = ((1, 1), (3, 5), (8, 16), (16, 8), (32, 33), (40, 40), (64, 64), (72, 64), (80, 96), (96, 80), (128, 128))
WIDE_DIMS = ((160, 160), (192, 128), (255, 256), (256, 255), (272, 300))
HEADS = ((1, 1), (2, 2), (3, 1), (8, 1), (8, 2), (14, 2))
OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "window": {"window": (9, 4)},
    "one-sided window": {"window": (5, 0)},
    "window ahead": {"window": (-2, 9)},
    "offset": {"causal": True, "offset": 7},
    "query lengths": {"query_lengths": True},
    "key lengths": {"key_lengths": True},
    "bias BNTS": {"bias": "BNTS"},
    "bias NS": {"bias": "NS"},
    "mask BNTS": {"mask": "BNTS"},
    "mask TS": {"mask": "TS"},
    "softcap": {"softcap": 2.5},
    "sinks": {"sinks": True},
    "scale": {"scale": -0.3},
    "rope": {"rope": True},
    "residual": {"residual": True},
}


def grid(quick: bool = False) -> list[tuple[str, Workload]]:
    """The calls, each with the name of its group; `quick` keeps one of ten in each group, and at least two."""
    calls = list(dict.fromkeys(_calls()))
    if not quick:
        return calls
    groups = {name: [call for group, call in calls if group == name] for name, _ in calls}
    return [(name, call) for name, found in groups.items() for call in found[:: min(10, max(1, len(found) // 2))]]


def _calls() -> Iterator[tuple[str, Workload]]:
    dtypes = itertools.cycle(("f32", "f16", "bf16"))
    for T, S in itertools.chain(zip(EDGES, EDGES, strict=True), zip(EDGES, EDGES[5:] + EDGES[:5], strict=True)):
        yield "queries and keys", replace(BASE, T=T, S=S, dtype=next(dtypes))
        yield "queries and keys", replace(BASE, T=T, S=S, causal=True)
    for (H, Hv), T in itertools.product(HEAD_DIMS, (1, 20)):
        yield "head dims", replace(BASE, T=T, H=H, Hv=Hv, dtype=next(dtypes))
    for H, Hv in WIDE_DIMS:
        yield "head dims", replace(BASE, T=5, H=H, Hv=Hv)
    for (N, K), T in itertools.product(HEADS, (1, 12)):
        yield "head groups", replace(BASE, T=T, N=N, K=K, causal=True, dtype=next(dtypes))
    for options, T, dtype in itertools.product(OPTIONS.values(), (1, 33), ("f32", "f16", "bf16")):
        yield "options", replace(BASE, T=T, dtype=dtype, **options)
    for first, second in itertools.combinations(OPTIONS.values(), 2):
        if not set(first) & set(second):
            yield "pairs of options", replace(BASE, T=17, **first, **second)
    for options in OPTIONS.values():
        yield "the plain kernel", replace(BASE, T=9, implementation="plain", **options)
    yield from (("long", replace(BASE, B=1, T=T, S=S, N=2, K=1, causal=True)) for T, S in ((1, 8192), (513, 2048)))
