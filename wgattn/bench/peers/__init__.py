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


def chosen(text: str) -> tuple[str, ...]:
    """The peers that `--peers` names: auto for all, none, or names and beginnings of names with commas between.

    Raises ValueError for a name that none has.
    """
    if text in ("auto", "none"):
        return tuple(PEERS) if text == "auto" else ()
    found: list[str] = []
    for word in text.split(","):
        names = [name for name in PEERS if name == word or name.startswith(f"{word}-")]
        if not names:
            raise ValueError(f"no peer is called {word!r}: auto, none, or some of {', '.join(PEERS)}")
        found += names
    return tuple(dict.fromkeys(found))
