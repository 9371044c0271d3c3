"""The same work done by others: who they are by name, and which of them a command line asks for."""

from collections.abc import Callable
from functools import partial

import numpy as np

from wgattn.bench.contestants import Contestant
from wgattn.bench.peers import jax_nn, ncnn_layer, onnx_runtime, pytorch, tiny_grad
from wgattn.bench.workload import Workload

Build = Callable[[str, Workload, dict[str, np.ndarray]], Contestant]

PEERS: dict[str, Build] = {
    "jax": jax_nn.build,
    "jax-cudnn": partial(jax_nn.build, implementation="cudnn"),
    **{f"torch-{backend}": partial(pytorch.build, backend=backend) for backend in pytorch.BACKENDS},
    **{f"onnxruntime-{device}": partial(onnx_runtime.build, device=device) for device in onnx_runtime.PROVIDERS},
    "ncnn-cpu": partial(ncnn_layer.build, vulkan=False),
    "ncnn-vulkan": partial(ncnn_layer.build, vulkan=True),
    "tinygrad": tiny_grad.build,
}
ON_CPU = ("onnxruntime-cpu", "ncnn-cpu")  # whatever the adapter is


def chosen(text: str, on_cpu: bool) -> tuple[str, ...]:
    """The peers that `--peers` names: auto, none, or names and beginnings of names with commas between.

    auto is all, but beside a GPU (not `on_cpu`) those of CPUs: a call of theirs takes a thousand times as long there.
    Raises ValueError for a name that none has.
    """
    if text == "auto":
        return tuple(name for name in PEERS if on_cpu or name not in ON_CPU)
    if text == "none":
        return ()
    found: list[str] = []
    for word in text.split(","):
        names = [name for name in PEERS if name == word or name.startswith(f"{word}-")]
        if not names:
            raise ValueError(f"no peer is called {word!r}: auto, none, or some of {', '.join(PEERS)}")
        found += names
    return tuple(dict.fromkeys(found))
