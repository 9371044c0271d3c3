"""The contract's grid as data: attention calls that cross every tile edge, head dim, group, dtype, layout and option.

A Case is drawn from its seed alone. `make` gives its arrays, what a call takes, and what the reference takes for it.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from wgattn import _reference

EDGES = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257)
GROUPS = (1, 2, 3, 4, 7, 8)
HEAD_DIMS = (1, 2, 3, 5, 8, 16, 31, 32, 33, 40, 64, 65, 72, 80, 96, 127, 128, 129, 160, 192, 255, 256)
DTYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
LAYOUTS = ("plain", "heads_first", "fused", "transposed", "sliced")


@dataclass(frozen=True, slots=True)
class Case:
    """One attention call: sizes, dtype, how its operands lie in memory, its options by name, and the seed of all."""

    B: int = 1
    T: int = 16
    S: int = 16
    K: int = 1
    G: int = 1
    H: int = 32
    Hv: int = 32
    dtype: str = "f32"
    layout: str = "plain"
    options: tuple[str, ...] = ()
    seed: int = 0

    @property
    def N(self) -> int:
        return self.K * self.G

    @property
    def name(self) -> str:
        sizes = f"b{self.B}t{self.T}s{self.S}k{self.K}g{self.G}h{self.H}" + f"v{self.Hv}" * (self.Hv != self.H)
        return "-".join((sizes, self.dtype, self.layout, *self.options))


Lift = Callable[[np.ndarray], Any]


@dataclass(frozen=True, slots=True)
class Made:
    """A case's values. `operands(lift)` are query, key and value as views of what `lift` makes of their arrays."""

    operands: Callable[[Lift], tuple[Any, Any, Any]]
    given: dict[str, Any]  # keywords of wgattn.nn.dot_product_attention
    right: dict[str, Any]  # keywords of the reference

    def reference(self) -> _reference.Result:
        return _reference.attention(*self.operands(np.asarray), **self.right)


def make(case: Case) -> Made:
    """The values of a case: the same seed gives the same ones."""
    r = np.random.default_rng(case.seed)
    given, right = {}, {}
    for name in case.options:
        option = OPTIONS[name](r, case)
        given |= option.given
        right |= option.given if option.right is None else option.right
    right = {k: v for k, v in right.items() if k not in ("return_residual", "residual_dtype")}
    return Made(_operands(r, case), given, right)


def _operands(r: np.random.Generator, case: Case) -> Callable[[Lift], tuple[Any, Any, Any]]:
    """Views of the case's layout. What pads a layout is NaN: it belongs to no operand."""
    B, T, S, N, K, H, Hv = case.B, case.T, case.S, case.N, case.K, case.H, case.Hv

    def normal(*shape: int) -> np.ndarray:
        return r.standard_normal(shape, np.float32).astype(DTYPES[case.dtype])

    if case.layout == "fused":  # one projection's output, cut along its heads; needs T = S and H = Hv
        both = normal(B, S, N + 2 * K, H)

        def cut(lift: Lift) -> tuple[Any, Any, Any]:
            x = lift(both)
            return x[:, :, :N], x[:, :, N : N + K], x[:, :, N + K :]

        return cut
    shapes = (B, T, N, H), (B, S, K, H), (B, S, K, Hv)
    if case.layout == "heads_first":
        arrays = [normal(*(shape[i] for i in (0, 2, 1, 3))) for shape in shapes]
        return lambda lift: tuple(lift(x).swapaxes(1, 2) for x in arrays)  # pyright: ignore[reportReturnType]
    if case.layout == "transposed":  # the head dim is not the innermost axis
        arrays = [normal(*(shape[i] for i in (0, 3, 2, 1))) for shape in shapes]
        return lambda lift: tuple(lift(x).swapaxes(1, 3) for x in arrays)  # pyright: ignore[reportReturnType]
    arrays = [normal(*shape) for shape in shapes]
    if case.layout == "sliced":  # rows start at an odd element, and their pitch is odd
        padded = [np.pad(x, ((0, 0), (1, 0), (0, 0), (1, 2)), constant_values=np.nan) for x in arrays]
        return lambda lift: tuple(lift(x)[:, 1:, :, 1 : x.shape[3] - 2] for x in padded)  # pyright: ignore[reportReturnType]
    return lambda lift: tuple(lift(x) for x in arrays)  # pyright: ignore[reportReturnType]


@dataclass(frozen=True, slots=True)
class Option:
    """What an option adds to a call, and to the reference where that is something else."""

    given: dict[str, Any]
    right: dict[str, Any] | None = None


Builder = Callable[[np.random.Generator, Case], Option]


def _bias(shape: str, dtype: np.dtype = DTYPES["f32"], hidden: float = 0.0) -> Builder:
    """Normal bias whose axes are those of BNTS in `shape` and 1 elsewhere; a share `hidden` of it is -inf."""

    def build(r: np.random.Generator, case: Case) -> Option:
        bias = r.standard_normal(_broadcast(shape, case)).astype(dtype)
        bias[r.random(bias.shape) < hidden] = -np.inf
        if hidden and bias.shape[2] > 1:
            bias[:, :, r.integers(bias.shape[2])] = -np.inf
        return Option({"bias": bias})

    return build


def _mask(shape: str, kept: float) -> Builder:
    def build(r: np.random.Generator, case: Case) -> Option:
        mask = r.random(_broadcast(shape, case)) < kept
        if mask.shape[2] > 1:
            mask[:, :, r.integers(mask.shape[2])] = False  # a row that keeps no key
        return Option({"mask": mask})

    return build


def _broadcast(shape: str, case: Case) -> tuple[int, ...]:
    return tuple(
        size if axis in shape else 1 for axis, size in zip("BNTS", (case.B, case.N, case.T, case.S), strict=True)
    )


def _lengths(name: str, most: Callable[[Case], int]) -> Builder:
    def build(r: np.random.Generator, case: Case) -> Option:
        lengths = r.integers(1, most(case) + 1, case.B).astype(np.int32)
        lengths[r.random(case.B) < 0.15] = r.choice([0, -3, most(case) + 5])
        return Option({name: lengths})

    return build


def _window(r: np.random.Generator, case: Case) -> Option:
    return Option({"local_window_size": (int(r.integers(0, case.S + 1)), int(r.integers(0, case.S // 2 + 1)))})


def _skew_window(r: np.random.Generator, case: Case) -> Option:
    low = int(r.integers(-case.S // 2, case.S // 2 + 1))
    return Option({"local_window_size": (low, int(r.integers(0, case.S + 1)) - low)})


def _keep(build: Callable[[Any, np.random.Generator, Case], tuple[Any, _reference.RowMask]]) -> Builder:
    """An option that gives a `wgattn.masks` value, and the reference the function of rows that it means."""

    def built(r: np.random.Generator, case: Case) -> Option:
        from wgattn import masks

        mask, rows = build(masks, r, case)
        return Option({"mask": mask}, {"mask": rows})

    return built


def _masks_causal(masks: Any, r: np.random.Generator, case: Case) -> tuple[Any, _reference.RowMask]:
    offset = r.integers(-2, case.S, case.B).astype(np.int32)
    return masks.causal(offset=offset), lambda rows, at: _reference.causal(at, case.S, offset)


def _masks_local(masks: Any, r: np.random.Generator, case: Case) -> tuple[Any, _reference.RowMask]:
    left, right, offset = (int(x) for x in r.integers(0, case.S // 2 + 1, 3))
    return masks.local(left, right, offset), lambda rows, at: _reference.local(at, case.S, left, right, offset)


def _masks_prefix_lm(masks: Any, r: np.random.Generator, case: Case) -> tuple[Any, _reference.RowMask]:
    n = r.integers(0, case.S + 1, case.B).astype(np.int32)
    return masks.prefix(
        n
    ) | masks.causal(), lambda rows, at: _reference.prefix(case.S, n) | _reference.causal(at, case.S)


def _masks_chunked(masks: Any, r: np.random.Generator, case: Case) -> tuple[Any, _reference.RowMask]:
    size = int(r.integers(1, case.S + 2))
    return masks.chunked(
        size
    ) & masks.causal(), lambda rows, at: _reference.chunked(at, case.S, size) & _reference.causal(at, case.S)


def _masks_segments(masks: Any, r: np.random.Generator, case: Case) -> tuple[Any, _reference.RowMask]:
    ids = [np.sort(r.integers(0, 4, (case.B, size)), axis=1).astype(np.int32) for size in (case.T, case.S)]
    return masks.segments(*ids), lambda rows, at: _reference.segments(rows, *ids)


def _masks_mixed_segments(masks: Any, r: np.random.Generator, case: Case) -> tuple[Any, _reference.RowMask]:
    ids = [r.integers(-1, 3, size).astype(np.int32) for size in (case.T, case.S)]  # unsorted, shared by the batch
    return masks.segments(
        *ids
    ) & masks.causal(), lambda rows, at: _reference.segments(rows, *ids) & _reference.causal(at, case.S)


def _rope(**parameters: Any) -> Builder:
    def build(r: np.random.Generator, case: Case) -> Option:
        from wgattn import nn

        width = case.H // 2 * 2 if "rotary_dim" not in parameters else min(parameters["rotary_dim"], case.H // 2 * 2)
        return Option({"rope": nn.Rope(**{**parameters, "rotary_dim": width})} if width else {})

    return build


def _value(name: str, draw: Callable[[np.random.Generator, Case], Any]) -> Builder:
    return lambda r, case: Option({name: draw(r, case)})


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

OPTIONS: dict[str, Builder] = {
    "bias": _bias("BNTS"),
    "bias_ts": _bias("TS"),
    "bias_heads": _bias("NS"),
    "bias_keys": _bias("BS", DTYPES["f16"]),
    "bias_hides": _bias("BTS", DTYPES["bf16"], hidden=0.3),
    "mask": _mask("BNTS", 0.7),
    "mask_ts": _mask("TS", 0.5),
    "mask_keys": _mask("BS", 0.8),
    "mask_rows": _mask("BNT", 0.6),
    "causal": _value("is_causal", lambda r, c: True),
    "offset": _value("query_offset", lambda r, c: int(r.integers(-3, c.S + 3))),
    "offsets": _value("query_offset", lambda r, c: r.integers(-3, c.S + 3, c.B).astype(np.int32)),
    "window": _window,
    "window_skew": _skew_window,
    "window_int": _value("local_window_size", lambda r, c: int(r.integers(0, c.S))),
    "query_lengths": _lengths("query_seq_lengths", lambda c: c.T),
    "key_lengths": _lengths("key_value_seq_lengths", lambda c: c.S),
    "scale": _value("scale", lambda r, c: float(r.uniform(-0.5, 0.5))),
    "scale_array": _value("scale", lambda r, c: np.array(r.uniform(0.05, 0.5), np.float32)),
    "softcap": _value("softcap", lambda r, c: float(r.uniform(0.5, 5.0))),
    "sinks": _value("sinks", lambda r, c: r.standard_normal(c.N, np.float32)),
    "residual": lambda r, c: Option({"return_residual": True, "residual_dtype": DTYPES["f32"]}),
    "rope": _rope(),
    "rope_part": _rope(rotary_dim=8, style="interleaved", base=500.0),
    "rope_scaled": _rope(scaling=LLAMA3),
    "masks_causal": _keep(_masks_causal),
    "masks_local": _keep(_masks_local),
    "masks_prefix_lm": _keep(_masks_prefix_lm),
    "masks_chunked": _keep(_masks_chunked),
    "masks_segments": _keep(_masks_segments),
    "masks_mixed_segments": _keep(_masks_mixed_segments),
}
_ONE_OF = ("bias", "mask", "offset", "window", "scale", "rope")  # names that begin alike fill the same argument


def option_pairs() -> tuple[tuple[str, ...], ...]:
    """Every pair of options that may stand beside each other."""

    def argument(name: str) -> str:
        return next((start for start in _ONE_OF if name.startswith(start)), name)

    return tuple(pair for pair in itertools.combinations(OPTIONS, 2) if argument(pair[0]) != argument(pair[1]))


def _fit(case: Case) -> Case:
    """The case with what its layout needs."""
    return replace(case, T=case.S, Hv=case.H) if case.layout == "fused" else case


def _numbered(cases: Iterator[Case]) -> tuple[Case, ...]:
    return tuple(
        {case.name: case for seed, plain in enumerate(cases) for case in [_fit(replace(plain, seed=seed))]}.values()
    )


def _grid() -> Iterator[Case]:
    """Every pair of T and S, of H and Hv, of G and dtype and layout, of options; the rest of each turns through all."""
    turn = {name: itertools.cycle(values) for name, values in _TURNS.items()}

    def rest(*names: str) -> dict[str, Any]:
        return {name: next(turn[name]) for name in names}

    for T, S in itertools.product(EDGES, EDGES):
        yield Case(T=T, S=S, **rest("B", "G", "H", "Hv", "dtype", "layout", "options"))
    for H, Hv in itertools.product(HEAD_DIMS, HEAD_DIMS):
        yield Case(H=H, Hv=Hv, **rest("B", "T", "S", "G", "K", "dtype", "options"))
    for G, dtype, layout in itertools.product(GROUPS, DTYPES, LAYOUTS):
        for _ in range(4):
            yield Case(G=G, dtype=dtype, layout=layout, **rest("B", "T", "S", "K", "H", "Hv", "options"))
    for options, dtype in itertools.product(option_pairs(), DTYPES):
        yield Case(options=options, dtype=dtype, **rest("B", "T", "S", "K", "G", "H", "Hv", "layout"))


# Lengths of the cycles have few factors in common, so that what turns together does not stay together.
_TURNS: dict[str, tuple[Any, ...]] = {
    "B": (1, 2, 3, 2, 1),
    "T": (*EDGES, 5, 40, 100),
    "S": (*EDGES[::-1], 20, 48, 90, 200),
    "K": (1, 2, 3),
    "G": (*GROUPS, 2),
    "H": (*HEAD_DIMS, 24),
    "Hv": (64, 32, 8, 5, 128, 33, 80, 16, 96, 256, 1, 72, 40),
    "dtype": (*DTYPES, "f16"),
    "layout": (*LAYOUTS, "plain", "heads_first"),
    "options": (*((name,) for name in OPTIONS), (), ("causal", "window"), ("key_lengths", "residual")),
}


def _sample() -> Iterator[Case]:
    """About 150 small cases: each option alone, each edge, head dim, group and layout by turns, and some pairs."""
    dtypes, layouts = itertools.cycle(DTYPES), itertools.cycle(LAYOUTS[1:])
    for name, T in itertools.product(OPTIONS, (1, 33)):
        yield Case(B=2, T=T, S=35, K=2, G=2, H=16, Hv=16, dtype=next(dtypes), options=(name,))
    for T, S in zip(EDGES, EDGES[7:] + EDGES[:7], strict=True):
        yield Case(T=T, S=S, G=2, H=16, Hv=16, dtype=next(dtypes), options=("causal",))
    for H, Hv in zip(HEAD_DIMS, HEAD_DIMS[5:] + HEAD_DIMS[:5], strict=True):
        yield Case(T=9, S=17, H=H, Hv=Hv, dtype=next(dtypes))
    for G, T in itertools.product(GROUPS, (1, 5)):
        yield Case(T=T, S=40, K=2, G=G, H=32, Hv=32, dtype=next(dtypes))
    for layout, dtype in itertools.product(LAYOUTS, DTYPES):
        yield Case(B=2, T=19, S=19, K=2, G=2, H=8, Hv=8, dtype=dtype, layout=layout)
    pairs = option_pairs()
    for pair in pairs[:: len(pairs) // 24]:
        yield Case(B=2, T=12, S=21, K=2, G=2, H=32, Hv=32, dtype=next(dtypes), layout=next(layouts), options=pair)


SAMPLE = _numbered(_sample())
GRID = _numbered(_grid())
