"""`wgattn demo`: one call, from what was written to how fast it runs."""

import inspect
from dataclasses import replace

import numpy as np

import wgattn
from wgattn import _runtime
from wgattn._cli import show
from wgattn._cli.bench import print_rows
from wgattn._cli.explain import as_lines, explanation
from wgattn._cli.info import software_note
from wgattn.bench.attention import Pace, attention_row
from wgattn.bench.ceilings import ceilings
from wgattn.bench.peers.jax_nn import jax_forward
from wgattn.bench.presets import default_workload, single


def attend(q, k, v):
    # q BTNH: 8 query heads; k, v BKSH, as others lay them out: 2 heads
    k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
    q, k = wgattn.nn.rope(q), wgattn.nn.rope(k)
    return wgattn.nn.dot_product_attention(q, k, v, is_causal=True)


def demo() -> None:
    """Record a call, show its graph, its kernel and the reason, check it, and time it. Raises ValidationError."""
    profile = _runtime.current_profile()
    workload = replace(default_workload(profile), rope=True)
    arrays = workload.arrays()
    q, k, v = arrays["query"], arrays["key"].swapaxes(1, 2).copy(), arrays["value"].swapaxes(1, 2).copy()

    show.heading("the adapter")
    show.lines({"name": profile.name, "kind": f"{profile.kind}, {profile.backend}, {profile.driver}"})
    show.heading("the function")
    show.verbatim(inspect.getsource(attend))
    show.heading("its graph")
    function = wgattn.jit(attend)
    show.verbatim(function.lower(q, k, v).as_text())
    show.heading("its kernel")
    show.lines(as_lines(explanation(workload, profile)))

    show.heading("the check")
    options = {"is_causal": True, "rope": wgattn.nn.Rope()}
    report = wgattn.validate(arrays["query"], arrays["key"], arrays["value"], **options)
    show.verbatim(str(report))
    out, allowed = np.asarray(function(q, k, v)), 2 * report.measures[0].allowed.most
    called = wgattn.nn.dot_product_attention(arrays["query"], arrays["key"], arrays["value"], **options)
    peer = jax_forward(workload, arrays)
    assert peer is not None, "jax.nn has this call"
    others = {
        "that call": np.asarray(called),
        "jax.nn.dot_product_attention, with RoPE written in jax.numpy": np.asarray(peer()),
    }
    differences = {name: float(np.abs(out - other).max()) for name, other in others.items()}
    told = ", and ".join(f"from {name} by {difference:.1e}" for name, difference in differences.items())
    show.lines({"traced": f"what the function above gives differs at most {told} ({allowed:.0e} is allowed)"})
    if not report.ok or max(differences.values()) > allowed:
        raise wgattn.ValidationError("the result is off, see above: `wgattn validate` checks the whole adapter")

    show.heading("the time")
    (case,) = single("forward", workload, plain=False)
    print_rows([attention_row(case, ceilings(profile, warm_up=0.1), ("jax",), Pace())])
    if note := software_note(profile.kind):
        show.console.print()
        show.lines({"note": note})
