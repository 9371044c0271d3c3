"""ncnn's SDPA layer on the CPU or through Vulkan. Arrays come from the host and results go back to it."""

from typing import Any

import numpy as np

from wgattn._dtypes import float32
from wgattn.bench.contestants import Absent, Contestant
from wgattn.bench.timing import by_wall
from wgattn.bench.workload import Workload

NET = """7767517
{count} {count}
Input q 0 1 q
Input k 0 1 k
Input v 0 1 v
{mask}SDPA attention {inputs} 1 q k v {name}o 5={masked}
"""
MASKED = -1e30


def build(command: str, workload: Workload, arrays: dict[str, np.ndarray], vulkan: bool) -> Contestant:
    """The same work in float32, or with float16 storage through Vulkan. Raises Absent for batches and gradients."""
    if command == "backward" or workload.B > 1 or workload.dtype == "bf16" or (workload.dtype == "f16" and not vulkan):
        raise Absent("for one sequence, forward, float32 (through Vulkan float16 too)")
    if set(workload.options) - {"causal", f"{workload.cache} cache"}:
        raise Absent(f"not written for {', '.join(workload.options)}")
    if command == "decode" and vulkan:
        raise Absent("its arrays come from the host: the whole cache would go up at every call")
    try:
        import ncnn
    except ImportError as error:
        raise Absent(f"ncnn is not here ({error})") from None
    if vulkan and not ncnn.get_gpu_count():
        raise Absent("ncnn sees no Vulkan device")
    net = _net(ncnn, workload, vulkan)
    given = {"qkv"[n]: np.ascontiguousarray(x[0].swapaxes(0, 1), float32) for n, x in enumerate(arrays.values())}
    if workload.causal:
        kept = np.tri(workload.T, workload.S, dtype=bool)
        given["m"] = np.where(kept, np.float32(0), np.float32(MASKED))

    def run() -> np.ndarray:
        extractor = net.create_extractor()
        for name, array in given.items():
            extractor.input(name, ncnn.Mat(array))
        return np.array(extractor.extract("o")[1])

    if run().shape != (workload.N, workload.T, workload.Hv):
        raise Absent("it gave nothing")
    name = "ncnn Vulkan, from the host" if vulkan else "ncnn CPU"
    return Contestant(name, lambda: (run().swapaxes(0, 1)[None],), by_wall(run))


def _net(ncnn: Any, workload: Workload, vulkan: bool) -> Any:
    net = ncnn.Net()
    half = workload.dtype == "f16"
    net.opt.use_vulkan_compute = vulkan
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = half
    net.opt.use_fp16_arithmetic = net.opt.use_bf16_storage = False
    causal = workload.causal
    text = NET.format(
        count=4 + causal,
        inputs=3 + causal,
        mask="Input m 0 1 m\n" * causal,
        name="m " * causal,
        masked=int(causal),
    )
    if net.load_param_mem(text):
        raise Absent("this ncnn has no SDPA layer")
    net.load_model_mem(b"")
    return net
