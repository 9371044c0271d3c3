"""What a call needs on the device beyond its inputs and outputs, and what many calls leave behind."""

from wgattn import _runtime
from wgattn.bench import calls
from wgattn.bench.attention import Command, Told
from wgattn.bench.report import Row
from wgattn.bench.workload import Workload

CALLS = 20


def memory_row(command: Command, workload: Workload, done: Told = str) -> Row:
    """Bytes of scratch, textures, constants and parameters; their number a row of B·N·T; and growth over warm calls.

    `scores_bytes` is what a float32 T x S buffer would take.
    """
    make = {"forward": calls.forward, "backward": calls.backward, "decode": calls.decode}[command]
    arrays = workload.arrays()
    if command == "backward":
        arrays["cotangent"] = arrays["query"]
    ours = make(workload, arrays)
    executable = ours.program.executable()
    memory = executable.memory()
    beyond = sum(size for name, size in memory.items() if name not in ("inputs", "outputs"))
    for _ in range(3):
        ours.call()
    pool = _runtime.current.device().memory
    before = pool.reserved
    for number in range(CALLS):
        done(f"call {number + 1} of {CALLS}")
        ours.call()
    rows = workload.B * workload.N * workload.T
    figures = {
        "beyond_bytes": beyond,
        "a_row_bytes": beyond / rows,
        "grown_bytes": pool.reserved - before,
        "given_bytes": memory["inputs"] + memory["outputs"],
        "scores_bytes": 4 * rows * workload.S,
        "beyond_of_scores": beyond / (4 * rows * workload.S),
    }
    return Row("memory", f"{command}, memory", workload.name, ours.variant, figures=figures)
