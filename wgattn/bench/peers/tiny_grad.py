"""tinygrad's scaled_dot_product_attention on its WEBGPU device, which runs on a Dawn library of the user's."""

import numpy as np

from wgattn.bench.contestants import Absent, Contestant
from wgattn.bench.timing import by_wall
from wgattn.bench.workload import Workload

SCORES = 1 << 28  # of all heads, in one buffer that WebGPU has to bind


def build(command: str, workload: Workload, arrays: dict[str, np.ndarray]) -> Contestant:
    """The same work; it holds all scores. Raises Absent where its device does not start."""
    if command == "backward" or workload.dtype == "bf16":
        raise Absent("forward in float32 and float16 alone")
    if set(workload.options) - {"causal", f"{workload.cache} cache"}:
        raise Absent(f"not written for {', '.join(workload.options)}")
    if workload.B * workload.N * workload.T * workload.S > SCORES:
        raise Absent(f"it would hold {workload.B * workload.N * workload.T * workload.S:,} scores")
    try:
        from tinygrad import Device, Tensor, TinyJit
    except ImportError as error:
        raise Absent(f"tinygrad is not here ({error})") from None
    try:
        device = Device["WEBGPU"]
    except Exception:  # its own words are of paths on this machine
        raise Absent("its WEBGPU device does not start: is WEBGPU_PATH a Dawn library? dawn-python has one") from None
    group = workload.N // workload.K
    operands = []
    for number, array in enumerate(arrays.values()):
        full = np.broadcast_to(array, (workload.B, *array.shape[1:])).swapaxes(1, 2)
        heads = full.repeat(group, axis=1) if number and group > 1 else full
        operands.append(Tensor(np.ascontiguousarray(heads), device="WEBGPU").realize())

    @TinyJit
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return query.scaled_dot_product_attention(key, value, is_causal=workload.causal).realize()

    def run() -> Tensor:
        out = attend(*operands)
        device.synchronize()
        return out

    for _ in range(3):  # traced at the second call
        run()
    return Contestant("tinygrad WEBGPU", lambda: (run().numpy().swapaxes(1, 2),), by_wall(run))
