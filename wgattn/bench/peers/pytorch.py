"""PyTorch's scaled_dot_product_attention, one backend of it, on CUDA where there is a device, else on the CPU."""

from collections.abc import Callable
from typing import Any

import numpy as np

from wgattn._dtypes import bfloat16
from wgattn.bench.contestants import Absent, Contestant
from wgattn.bench.timing import Sampler, by_wall
from wgattn.bench.workload import Workload

ON_CPU = ("flash", "math")
BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}


def build(command: str, workload: Workload, arrays: dict[str, np.ndarray], backend: str) -> Contestant:
    """The same work in the layout that PyTorch likes, BNTH. Raises Absent for what the backend does not do."""
    try:
        import torch
    except ImportError as error:
        raise Absent(f"PyTorch is not here ({error})") from None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if workload.options and set(workload.options) - {"causal", f"{workload.cache} cache"}:
        raise Absent(f"not written for {', '.join(workload.options)}")
    if device == "cpu" and backend not in ON_CPU:
        raise Absent("needs CUDA")
    placed = [_placed(array, workload.B, device) for array in arrays.values()]
    if workload.causal and workload.T != workload.S:
        raise Absent("causal with T ≠ S means something else there")
    reasons = []
    for grouped in (True, False) if workload.K < workload.N else (False,):
        run = _call(command, workload, placed, backend, grouped)
        try:
            run()
        except RuntimeError as error:
            reasons.append(str(error).splitlines()[0].strip())
            continue
        name = f"PyTorch {backend} {device}"
        return Contestant(name, lambda run=run: tuple(_array(x) for x in run()), _sampler(run, device))
    raise Absent(reasons[-1])


def _call(
    command: str, workload: Workload, placed: list[Any], backend: str, grouped: bool
) -> Callable[[], tuple[Any, ...]]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = getattr(SDPBackend, BACKENDS[backend])
    query, key, value, *cotangent = placed
    if workload.K < workload.N and not grouped:  # what a user of that backend does
        key, value = (x.repeat_interleave(workload.N // workload.K, dim=1) for x in (key, value))
    options: dict[str, Any] = {"is_causal": workload.causal, "enable_gqa": workload.K < workload.N and grouped}
    attend = torch.nn.functional.scaled_dot_product_attention

    def forward() -> tuple[Any, ...]:
        with sdpa_kernel(chosen), torch.no_grad():
            return (attend(query, key, value, **options),)

    def backward() -> tuple[Any, ...]:
        with sdpa_kernel(chosen):
            out = attend(*operands, **options)
            return torch.autograd.grad(out, operands, cotangent)

    if command != "backward":
        return forward
    if workload.K < workload.N and not grouped:
        raise Absent("needs heads repeated, whose gradients it then has to sum")
    operands = [x.detach().requires_grad_() for x in (query, key, value)]
    return backward


def _sampler(run: Callable[[], Any], device: str) -> Sampler:
    import torch

    if device == "cpu":
        return by_wall(run)

    def seconds(count: int) -> float:
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3

    return seconds


def _placed(array: np.ndarray, B: int, device: str) -> Any:
    import torch

    if array.dtype == bfloat16:
        found = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        found = torch.from_numpy(array)
    found = found.to(device).transpose(1, 2)
    return found.expand(B, -1, -1, -1).contiguous()


def _array(x: Any) -> np.ndarray:
    import torch

    x = x.detach().transpose(1, 2)
    return (x.float() if x.dtype == torch.bfloat16 else x).cpu().numpy()
