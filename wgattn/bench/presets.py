"""The calls that a benchmark makes: the goals' rows for CPU adapters and for GPUs, and small ones for a first look."""

from dataclasses import replace
from typing import Literal

from wgattn._runtime import DeviceProfile
from wgattn.bench.attention import Case, Command
from wgattn.bench.workload import Workload

Preset = Literal["cpu", "gpu", "quick"]

SMALL = Workload(B=1, T=256, N=8, H=64, S=256, K=2, Hv=64, causal=True)
HEAVY = Workload(B=1, T=512, N=8, H=128, S=512, K=2, Hv=128, causal=True)
LAYER = Workload(B=4, T=4096, N=16, H=64, S=4096, K=16, Hv=64, causal=True)
BYTES = ("int8", "float8_e4m3fn", "float8_e5m2")  # caches of one byte an element


def cases(command: Command, preset: Preset) -> tuple[Case, ...]:
    """The rows of a command, the goals first."""
    return {"forward": _forward, "backward": _backward, "decode": _decode}[command](preset)


def memory(preset: Preset) -> tuple[tuple[Command, Workload], ...]:
    """The calls whose memory is counted."""
    if preset == "quick":
        return ("forward", SMALL), ("backward", replace(SMALL, T=64, S=64))
    size = replace(_square(4096 if preset == "gpu" else 2048), B=2 if preset == "gpu" else 1)
    return ("forward", size), ("backward", size), ("decode", _decode(preset)[0].workload)


def bridged(preset: Preset) -> Workload:
    """The call that is timed inside a JAX program."""
    return SMALL if preset == "quick" else _square(2048)


def copied_bytes(preset: Preset) -> int:
    """The bytes of the copies that are timed."""
    return {"quick": 8 << 20, "cpu": 64 << 20, "gpu": 256 << 20}[preset]


def default_workload(profile: DeviceProfile) -> Workload:
    """A causal call with grouped heads that takes milliseconds on the adapter."""
    return _square(512 if profile.is_cpu else 2048)


def preset_for(profile: DeviceProfile) -> Preset:
    """The preset of a device that is not told."""
    return "cpu" if profile.is_cpu else "gpu"


def single(command: Command, workload: Workload, plain: bool) -> tuple[Case, ...]:
    """The one row of a call that somebody gave. Raises ValueError for decode of more than one token."""
    if command == "decode" and workload.T != 1:
        raise ValueError(f"decode is timed with one query a sequence, T = 1; got T = {workload.T}: see bench forward")
    beside = (("wgattn plain", replace(workload, implementation="plain")),) if plain else ()
    return (Case(command, f"{command}, as given", workload, beside),)


def _forward(preset: Preset) -> tuple[Case, ...]:
    if preset == "quick":
        return _cases("forward", SMALL, replace(SMALL, dtype="f16")) + _cases(
            "forward", replace(SMALL, T=64, S=64), plain=True
        )
    if preset == "cpu":
        wide = replace(_square(512), K=8)
        grouped = _square(2048)
        full = replace(grouped, K=8, causal=False)
        long = replace(_square(8192), K=8)
        narrow = [replace(each, dtype=dtype) for each in (wide, grouped) for dtype in ("f16", "bf16")]
        masked = replace(wide, causal=False, mask="TS")
        return _cases("forward", wide, grouped, full, long, _square(1024), *narrow, masked)
    deep = replace(LAYER, H=128, Hv=128)
    f16 = [replace(each, dtype="f16") for each in (LAYER, deep)]
    portable = replace(LAYER, B=1, T=2048, S=2048)  # what other portable routes take too
    goals = _cases("forward", *f16, LAYER, deep, portable, plain=True)
    lengths = [replace(f16[1], T=T, S=T, B=B) for T, B in ((1024, 16), (16384, 1))]
    prompt = replace(f16[1], B=1, T=512, S=512, N=32, K=8)
    return goals + _cases("forward", *lengths, prompt)


def _backward(preset: Preset) -> tuple[Case, ...]:
    if preset == "quick":
        return _cases("backward", replace(SMALL, T=128, S=128))
    if preset == "cpu":
        return _cases("backward", replace(_square(2048), K=8), _square(2048), replace(_square(512), K=8))
    deep = replace(LAYER, H=128, Hv=128)
    return _cases("backward", *(replace(each, dtype="f16") for each in (LAYER, deep)), LAYER, deep)


def _decode(preset: Preset) -> tuple[Case, ...]:
    if preset == "quick":
        few = Workload(B=2, T=1, N=8, H=64, S=1024, K=2, Hv=64)
        return tuple(_stored(few, dtype) for dtype in ("float32", "int8"))
    if preset == "cpu":
        some = Workload(B=1, T=1, N=32, H=128, S=4096, K=8, Hv=128)
        return tuple(_stored(some, dtype) for dtype in ("float32", "float16", *BYTES))
    many = Workload(B=16, T=1, N=32, H=128, S=32768, K=8, Hv=128)
    floats = tuple(_stored(replace(many, B=B), dtype) for dtype in ("float16", "float32") for B in (16, 1))
    return floats + tuple(_stored(many, dtype) for dtype in BYTES)


def _stored(workload: Workload, dtype: str) -> Case:
    """Decode over a cache of `dtype`, and where that is narrow over one of floats too."""
    wide = "float32" if dtype == "float32" else "float16"
    made = replace(workload, cache=dtype, dtype="f32" if dtype == "float32" else "f16")
    beside = () if dtype == wide else ((f"wgattn, {wide} cache", replace(made, cache=wide)),)
    return Case("decode", f"decode B{made.B} S{made.S} {dtype} cache", made, beside, dtype == wide)


def _cases(command: Command, *workloads: Workload, plain: bool = False) -> tuple[Case, ...]:
    return tuple(
        Case(
            command,
            f"{command} T{each.T} K{each.K} H{each.H} {each.dtype} {'causal' if each.causal else 'full'}",
            each,
            (("wgattn plain", replace(each, implementation="plain")),) if plain else (),
        )
        for each in workloads
    )


def _square(T: int) -> Workload:
    """As many queries as keys, causal, eight heads that share two."""
    return Workload(B=1, T=T, N=8, H=64, S=T, K=2, Hv=64, causal=True)
