"""`wgattn info`: the adapters, and what the one in use can do."""

import platform
from typing import Any

from rich.table import Table

import wgattn
from wgattn import _runtime
from wgattn._cli import show

LIMIT_TEXTS = {
    "workgroup_bytes": "{:,} bytes of workgroup memory",
    "invocations": "{:,} invocations a workgroup",
    "workgroups_per_dimension": "{:,} workgroups a dimension",
    "binding_bytes": "{:,} bytes a binding",
    "buffer_bytes": "{:,} bytes a buffer",
    "storage_buffers": "{} storage buffers a kernel",
    "texture_2d": "{:,} texels a texture side",
    "loop_turns": "{:,} loop turns an invocation",
}


def info(as_json: bool) -> None:
    """Print the report of the adapter in use. Raises AdapterNotFoundError where there is none."""
    report = {"wgattn": wgattn.__version__, "system": system(), **_runtime.adapter_report()}
    if as_json:
        show.as_json(report)
        return
    adapters = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("adapter", "name", "kind", "backend", "driver"):
        adapters.add_column(column, overflow="fold")
    for adapter in report["adapters"]:
        adapters.add_row(*(str(adapter[field]) for field in ("index", "name", "kind", "backend", "driver")))
    show.console.print(adapters)
    show.heading("in use")
    show.lines(profile_lines(report))
    if note := software_note(report["profile"]["kind"]):
        show.console.print()
        show.lines({"note": note})


def profile_lines(report: dict[str, Any]) -> dict[str, str]:
    """The report's profile as labels and texts."""
    profile, limits = report["profile"], report["profile"]["limits"]
    subgroups = "not used" if not profile["subgroups"] else f"of {profile['subgroup_size'] or 'the pipeline’s size'}"
    features = {"f16": profile["f16"], "timestamps": profile["timestamps"], f"subgroups {subgroups}": True}
    return {
        "adapter": profile["name"],
        "kind": f"{profile['kind']}, {profile['backend']}, driver {profile['driver'] or 'not named'}",
        "wgattn": f"{report['wgattn']}, provider {report['library']}, on {report['system']}",
        "features": ", ".join(name for name, there in features.items() if there),
        "matrix units": ", ".join(profile["matrix"]) or "none that this provider can use",
        "limits": "\n".join(text.format(limits[name]) for name, text in LIMIT_TEXTS.items() if limits[name]),
        "tuned": ", ".join(f"{name} {value}" for name, value in profile["tuned"]) or "nothing: see `wgattn tune`",
        "choose": "WGATTN_ADAPTER takes an index or a part of a name, WGATTN_PROVIDER takes wgpu or dawn",
    }


def system() -> str:
    """The operating system and the Python, for reports."""
    return f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"


def software_note(kind: str) -> str:
    """What to do where kernels run on the CPU; empty on a GPU."""
    if kind != "cpu":
        return ""
    return f"this adapter is software: kernels run on the CPU. To use a GPU: {_runtime.gpu_driver()}"
