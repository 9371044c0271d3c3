"""Problems and device profiles to choose for, without a device, made as the schedule makes them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from wgattn._dtypes import bfloat16, float8_e4m3fn, float8_e5m2, float16, float32, int8, short_name, uint8
from wgattn._kernels.attention.problem import AttentionProblem, Bound, Call, describe
from wgattn._kernels.kernel import Operand, natural_strides
from wgattn._kernels.rotation import Rope
from wgattn._runtime.profile import DeviceProfile, Limits

MINIMUM = DeviceProfile()
DISCRETE = DeviceProfile(
    name="a large discrete GPU",
    kind="discrete",
    subgroups=True,
    subgroup_least=32,
    f16=True,
    limits=Limits(
        storage_buffers=64,
        workgroup_bytes=49152,
        invocations=1024,
        binding_bytes=(1 << 31) - 4,
        buffer_bytes=1 << 37,
        texture_2d=32768,
    ),
)
MATRICES = replace(DISCRETE, provider="dawn", matrix=("f16-f32-16x16x16", "f16-f32-16x8x16"), subgroup_most=32)
CPU = DeviceProfile(
    name="a CPU adapter",
    kind="cpu",
    subgroups=True,
    subgroup_size=8,
    limits=Limits(workgroup_bytes=32768, invocations=1024, loop_turns=65535, texture_2d=16384),
)
PROFILES = {"minimum": MINIMUM, "discrete": DISCRETE, "cpu": CPU}

DIAGONAL = Bound("upper", "diagonal")
CALLS: dict[str, tuple[Call, tuple[str, ...]]] = {
    "full": (Call(), ()),
    "causal": (Call(clauses=((DIAGONAL,),), residual=float32), ()),
    "window": (Call(clauses=((Bound("lower", "diagonal", -7), DIAGONAL),)), ("query_offset", "key_value_lengths")),
    "prefix": (Call(clauses=((DIAGONAL,), (Bound("upper", "constant", 4, "prefix"),)), residual=float16), ("prefix",)),
    "chunked": (Call(clauses=((Bound("lower", "chunk", 16), Bound("upper", "chunk", 16)),)), ("query_lengths",)),
    "softcap": (Call(softcap=30.0, residual=float32), ("sinks", "scale")),
    "bias": (Call(clauses=((DIAGONAL,),)), ("bias", "sinks", "query_lengths")),
    "capped_bias_and_mask": (Call(softcap=30.0), ("bias", "mask")),
    "mask": (Call(residual=float32), ("mask",)),
    "segments": (Call(clauses=((DIAGONAL,),), residual=float32), ("query_segments", "key_segments")),
    "rope": (Call(rope=Rope(), clauses=((DIAGONAL,),)), ("query_offset",)),
    "rope_odd": (Call(rope=Rope(rotary_dim=6)), ()),
    "rope_interleaved": (Call(rope=Rope(style="interleaved")), ("bias",)),
}
LENGTHS = ("key_value_lengths", "query_offset")
CACHES: dict[str, tuple[Call, tuple[str, ...]]] = {
    "zero": (Call(clauses=((DIAGONAL,),), empty="zero", residual=float32), LENGTHS),
    "paged": (Call(clauses=((DIAGONAL,),), empty="zero", page_size=8), (*LENGTHS, "pages")),
    "ring": (Call(clauses=((Bound("lower", "diagonal", -7), DIAGONAL),), empty="zero", ring=2), LENGTHS),
    "paged_rope": (Call(rope=Rope(rotary_dim=6), empty="zero", page_size=8), (*LENGTHS, "pages", "mask")),
    "ring_rope": (Call(clauses=((DIAGONAL,),), rope=Rope(), empty="zero", ring=0), LENGTHS),
}
STORED = (float32, float16, float8_e4m3fn, float8_e5m2, int8, uint8)
DTYPES = {
    "f32": (float32, float32),
    "f16": (float16, float16),
    "bf16": (bfloat16, bfloat16),
    "f32_of_f16": (float32, float16),
}
DIMS = ((16, 16), (20, 52), (34, 7), (64, 64), (128, 128), (80, 256), (256, 256))


def problem_of(
    call: Call, beside: tuple[str, ...] = (), *, T: int = 300, G: int = 2, H: int = 64, Hv: int = 64, **dtypes: Any
) -> AttentionProblem:
    """The problem of a contiguous call with B = 2, S = 40, K = 2; `beside` names the operands that it has besides."""
    B, S, K = 2, 40, 2
    query_dtype, cache_dtype = dtypes.get("query", float32), dtypes.get("cache", float32)
    pitch = Hv + Hv % 2
    shapes = {"query": (1, B, T, K * G, H), "key": (1, B, S, K, H), "value": (1, B, S, K, Hv)}
    operands = {
        name: Operand(query_dtype if name == "query" else cache_dtype, shape, natural_strides(shape))
        for name, shape in shapes.items()
    }
    if cache_dtype in (int8, uint8):
        blocks = [-(-dim // 32) if cache_dtype == uint8 else 1 for dim in (H, Hv)]
        shape = (1, B, S, K, sum(blocks))
        operands["scales"] = Operand(float32, shape, natural_strides(shape))
        for name, count in zip(("key", "value"), blocks, strict=True):
            width = 16 * count if cache_dtype == uint8 else -(-shapes[name][-1] // 4) * 4
            held = width if cache_dtype == uint8 else shapes[name][-1]
            operands[name] = Operand(cache_dtype, (1, B, S, K, held), natural_strides((1, B, S, K, width)))
    out = (1, B, T, K * G, Hv)
    operands["out"] = Operand(query_dtype, out, natural_strides((*out[:-1], pitch)))
    for name in beside:
        shape = {
            "query_segments": (B, T), "key_segments": (B, S), "sinks": (K * G,), "scale": (), "pages": (B, S // 8)
        }.get(name, (B,))  # fmt: skip
        dtype = np.dtype(np.float32) if name in ("sinks", "scale") else np.dtype(np.int32)
        if name in ("bias", "mask"):
            shape, dtype = (1, B, K * G, T, S), (query_dtype if name == "bias" else np.dtype(np.bool_))
        operands[name] = Operand(dtype, shape, natural_strides(shape))
    return describe(call, operands)


def grid() -> Iterator[tuple[str, AttentionProblem]]:
    """Every call with each dtype and class of T, then every kind of cache, at head dims and groups dealt round."""
    for place, (word, (call, beside)) in enumerate(CALLS.items()):
        for step, (dtype, (query, cache)) in enumerate(DTYPES.items()):
            for T in (1, 7, 300 if step % 2 else 9000):
                H, Hv = DIMS[(place + 2 * step + T) % len(DIMS)]
                G = (1, 2, 5, 12)[(place + step) % 4]
                name = f"{word}-{dtype}-T{T}-G{G}-H{H}-{Hv}"
                yield name, problem_of(call, beside, T=T, G=G, H=H, Hv=Hv, query=query, cache=cache)
    for place, (word, (call, beside)) in enumerate(CACHES.items()):
        for step, dtype in enumerate(STORED):
            for T in (1, 7):
                H, Hv = DIMS[(place + step + T) % len(DIMS)]
                G = (1, 2, 5, 12)[(place + step) % 4]
                name = f"{word}-{short_name(dtype)}-T{T}-G{G}-H{H}-{Hv}"
                yield name, problem_of(call, beside, T=T, G=G, H=H, Hv=Hv, query=float32, cache=dtype)
