"""ONNX Runtime's attention on its CPU or WebGPU provider. Arrays come from the host and results go back to it."""

from typing import Any

import numpy as np

from wgattn.bench.contestants import Absent, Contestant
from wgattn.bench.timing import by_wall
from wgattn.bench.workload import Workload

PROVIDERS = {"cpu": "CPUExecutionProvider", "webgpu": "WebGpuExecutionProvider"}
ELEMENTS = {"f32": 1, "f16": 10}  # onnx.TensorProto's


def build(command: str, workload: Workload, arrays: dict[str, np.ndarray], device: str) -> Contestant:
    """The same work by the standard's Attention, else by com.microsoft's. Raises Absent where neither runs."""
    if command == "backward" or workload.dtype not in ELEMENTS:
        raise Absent(f"not for {command} in {workload.dtype}")
    if set(workload.options) - {"causal", f"{workload.cache} cache"}:
        raise Absent(f"not written for {', '.join(workload.options)}")
    if command == "decode" and device != "cpu":
        raise Absent("its arrays come from the host: the whole cache would go up at every call")
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError as error:
        raise Absent(f"ONNX Runtime, or onnx, is not here ({error})") from None
    provider = PROVIDERS[device]
    if provider not in onnxruntime.get_available_providers():
        raise Absent(f"this build of ONNX Runtime has no {provider}")
    reasons = []
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if device != "cpu":  # where it finds no adapter or lacks an operator it would use the CPU, and say nothing
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    for standard in (True, False):
        try:
            model = _model(workload, standard)
            session = onnxruntime.InferenceSession(model, options, providers=[provider], enable_fallback=False)
            given = _given(workload, arrays, repeated=not standard)
            session.run(None, given)
        except Exception as error:
            reasons.append(str(error).splitlines()[0].rpartition(" was false. ")[2])  # without the failed condition
            continue

        def run(session: Any = session, given: dict[str, np.ndarray] = given) -> np.ndarray:
            return session.run(None, given)[0].reshape(workload.B, workload.T, workload.N, workload.Hv)

        name = "ONNX Runtime CPU" if device == "cpu" else "ONNX Runtime WebGPU, from the host"
        return Contestant(name, lambda: (run(),), by_wall(run))
    raise Absent(reasons[-1])


def _model(workload: Workload, standard: bool) -> bytes:
    """A model of one node over B, T, N·H arrays."""
    from onnx import helper

    B, T, S, N, H, Hv = workload.B, workload.T, workload.S, workload.N, workload.H, workload.Hv
    causal = int(workload.causal)
    if standard:
        K = workload.K
        node = helper.make_node("Attention", ["q", "k", "v"], ["o"], is_causal=causal, q_num_heads=N, kv_num_heads=K)
        opsets = [helper.make_opsetid("", 23)]
    else:
        K, domain = N, "com.microsoft"
        node = helper.make_node(
            "MultiHeadAttention", ["q", "k", "v"], ["o"], domain=domain, num_heads=N, unidirectional=causal
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    element = ELEMENTS[workload.dtype]
    shapes = {"q": [B, T, N * H], "k": [B, S, K * H], "v": [B, S, K * Hv], "o": [B, T, N * Hv]}
    infos = {name: helper.make_tensor_value_info(name, element, shape) for name, shape in shapes.items()}
    graph = helper.make_graph([node], "attention", [infos[name] for name in "qkv"], [infos["o"]])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def _given(workload: Workload, arrays: dict[str, np.ndarray], repeated: bool) -> dict[str, np.ndarray]:
    found = {}
    for name, array in zip("qkv", (arrays[name] for name in ("query", "key", "value")), strict=True):
        if repeated and name != "q":
            array = array.repeat(workload.N // workload.K, axis=2)
        full = np.broadcast_to(array, (workload.B, *array.shape[1:]))
        found[name] = np.ascontiguousarray(full.reshape(*full.shape[:2], -1))
    return found
