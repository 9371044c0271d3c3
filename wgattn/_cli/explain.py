"""`wgattn explain`: which kernel serves a call or makes its gradients, and why, on this adapter or by a report."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import wgattn
from wgattn import _runtime, _schedule
from wgattn._cli import show
from wgattn._graph.graph import Aval, Graph
from wgattn._graph.operations import Attention
from wgattn._graph.rewrite import fuse
from wgattn._graph.text import key_ranges
from wgattn._kernels.kernel import Variant
from wgattn._runtime.profile import DeviceProfile
from wgattn._runtime.program import Command, CopyBuffer, CopyToTexture, Dispatch
from wgattn.bench.workload import DTYPES, Workload


@dataclass(frozen=True, slots=True)
class Explanation:
    """A call's variant on a device, every command that the device is told, and the shaders by name.

    Of gradients `variant` is the backward kernel's, `forward` the one before it. `ranges`: the keys j that row i keeps,
    as text; `kept`: the share of the T·S scores that is.
    """

    variant: Variant
    forward: Variant | None
    ranges: str
    kept: float
    profile: DeviceProfile
    commands: tuple[Command, ...]
    shaders: dict[str, str]


def explain(workload: Workload, backward: bool, profile: Path | None, wgsl: bool, as_json: bool) -> None:
    """Print the explanation. Raises AdapterNotFoundError where it needs an adapter, UnsupportedError, ValueError."""
    found = explanation(workload, _runtime.current_profile() if profile is None else read_profile(profile), backward)
    if as_json:
        show.as_json(as_values(found, wgsl))
    elif wgsl:
        show.verbatim("\n\n".join(source.strip() for source in found.shaders.values()))  # each starts with its name
    else:
        show.lines(as_lines(found))


def read_profile(path: Path) -> DeviceProfile:
    """The profile in a file that `wgattn info --json` wrote. Raises ValueError for another file."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        told = f"--profile {path} cannot be read ({error.strerror}): `wgattn info --json > {path}` makes such a file"
        raise ValueError(told) from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}): give what `wgattn info --json` printed") from error
    if not isinstance(report, dict) or not {"profile", "limits"} & set(report):
        raise ValueError(f"{path} holds no device profile: give what `wgattn info --json` printed")
    return DeviceProfile.from_json(report.get("profile", report))


def explanation(workload: Workload, profile: DeviceProfile, backward: bool = False) -> Explanation:
    """How the call is served on a device of this profile, or its gradients by query, key and value.

    Needs no device. Raises UnsupportedError, ValueError.
    """
    schedule = _schedule.compile(fuse(_recorded(workload, backward)), profile)
    if not schedule.chosen:
        raise ValueError(f"{workload.name} has an empty axis: no kernel runs, the result is made on the host")
    first, last = schedule.chosen[0], schedule.chosen[-1]
    attention = schedule.graph.nodes[first.node].operation
    assert isinstance(attention, Attention)
    if workload.cache is not None:  # a full one: its last token is the last query's
        offset = workload.S - workload.T if workload.offset is None else workload.offset
        workload = replace(workload, causal=True, offset=offset)
    return Explanation(
        last.variant,
        first.variant if backward else None,
        key_ranges(attention.call.clauses),
        workload.kept(),
        profile,
        schedule.program.commands,
        schedule.shaders,
    )


def _recorded(workload: Workload, backward: bool) -> Graph:
    """The graph of the call."""
    static = workload.static
    avals = {name: Aval(shape, dtype) for name, (shape, dtype) in workload.operands.items()}

    def attend(**arrays: Any) -> Any:
        return wgattn.nn.dot_product_attention(**arrays, **static)

    def gradients(given: Any, query: Any, key: Any, value: Any, **others: Any) -> Any:
        return wgattn.vjp(lambda q, k, v: attend(query=q, key=k, value=v, **others), query, key, value)[1](given)

    def attend_cached(cache: wgattn.KVCache, **arrays: Any) -> Any:
        return wgattn.nn.cached_attention(cache=cache, **arrays, **static)

    if backward:
        given = Aval((workload.B, workload.T, workload.N, workload.Hv), DTYPES[workload.dtype])
        return wgattn.make_graph(gradients)(given, **avals).graph
    if workload.cache is None:
        return wgattn.make_graph(attend)(**avals).graph
    cache = wgattn.KVCache.create(workload.B, workload.S, workload.K, workload.H, workload.Hv, dtype=workload.cache)
    arrays = {name: aval for name, aval in avals.items() if name not in ("key", "value")}
    return wgattn.make_graph(attend_cached)(cache, **arrays).graph


def as_lines(found: Explanation) -> dict[str, str]:
    """Labels and texts for a person."""
    variant, limits = found.variant, found.profile.limits
    return {
        "variant": variant.name,
        **({} if found.forward is None else {"forward": found.forward.name}),
        "adapter": f"{found.profile.name} ({found.profile.kind}, {found.profile.backend}, {found.profile.provider})",
        "because": because(found),
        "passed over": "\n".join(f"{family} ({reason})" for family, reason in variant.passed) or "none is faster",
        "constants": "  ".join(f"{name} {value}" for name, value in scalars(variant).items()),
        "memory": f"{variant.workgroup_bytes:,} of {limits.workgroup_bytes:,} bytes of workgroup memory",
        "launch": "\n".join(counted(command_line(command, variant.name) for command in found.commands)),
    }


def because(found: Explanation) -> str:
    """Why this variant, and what of the scores it leaves out."""
    if found.kept == 1:
        return found.variant.reason
    return f"{found.variant.reason}; {found.kept:.0%} of the scores are kept, tiles outside {found.ranges} are skipped"


def as_values(found: Explanation, wgsl: bool) -> dict[str, Any]:
    """The same for programs."""
    variant = found.variant
    launches = [command for command in found.commands if isinstance(command, Dispatch)]
    return {
        "variant": variant.name,
        "family": variant.family,
        **({} if found.forward is None else {"forward": found.forward.name}),
        "adapter": found.profile.name,
        "reason": variant.reason,
        "keys": found.ranges,
        "kept": found.kept,
        "passed": [{"family": family, "reason": reason} for family, reason in variant.passed],
        "constants": scalars(variant),
        "workgroup_bytes": variant.workgroup_bytes,
        "launches": [{"shader": one.shader.name, "workgroups": list(one.workgroups)} for one in launches],
        **({"wgsl": found.shaders} if wgsl else {}),
    }


def scalars(variant: Variant) -> dict[str, Any]:
    """The constants that become WGSL consts."""
    return {
        name: value for name, value in variant.constants if name.isupper() and isinstance(value, bool | int | float)
    }


def counted(texts: Iterable[str]) -> list[str]:
    """Each run of one text as that text with its number: six copies are a line."""
    runs = [(text, len(list(run))) for text, run in groupby(texts)]
    return [text if number == 1 else f"{number} × {text}" for text, number in runs]


def command_line(command: Command, main: str) -> str:
    """One command as a line; the shader is named where it is not `main`."""
    if isinstance(command, Dispatch):
        x, y, z = command.workgroups
        return f"{x} × {y} × {z} workgroups" + (f" of {command.shader.name}" if command.shader.name != main else "")
    if isinstance(command, CopyToTexture):
        return f"copy to a texture of {command.width} × {command.height}"
    assert isinstance(command, CopyBuffer)
    return f"copy of {command.source.nbytes:,} bytes"
