"""Recognises graph breaks and skipped frames by torch's reason, at any line."""

from __future__ import annotations

from torchproof.packs.repro.oracles.error_text import is_same_reason, reason_of
from torchproof.packs.repro.oracles.prelude import NONE, OTHER, SAME, collect_trace

_SKIPS = (
    "Skipping the function and falling back to eager",
    "which results in a skip",
)
_SKIPPING_ERRORS = ("Unsupported", "UserError", "SkipFrame")


def run_oracle(program, expected):
    """Expects `type`, `id` and `names` of the reason, and whether the frame `skips`."""
    with collect_trace() as trace:
        error = program.compiled_error(backend="eager")
    breaks = breaks_in(trace)
    alike = [item for item in breaks if is_same_reason(item, expected)]
    same = [item for item in alike if item["skips"] == expected["skips"]]
    what = "skipped frame" if expected["skips"] else "graph break"
    if error is not None and not same:
        raise error
    if same:
        return SAME, f"{what}, {describe(same[0])}"
    if alike:
        instead = "a graph break" if expected["skips"] else "a skipped frame"
        return OTHER, f"the same reason causes {instead}: {describe(alike[0])}"
    if breaks:
        return OTHER, f"no {what} for this reason, but {describe(breaks[0])}"
    return NONE, "it compiles without a graph break"


def breaks_in(trace):
    """Returns the reason of each graph break and of each frame that Dynamo skips."""
    failed = {
        number: metrics
        for number, metrics in trace.named("compilation_metrics")
        if metrics.get("fail_type") in _SKIPPING_ERRORS
    }
    breaks, last = [], {}
    for number, payload in trace.artifacts("dynamo_graph_break_reason"):
        reason = reason_of(reason_text(payload))
        reason["skips"] = any(mark in payload for mark in _SKIPS)
        breaks.append(reason)
        last[number] = reason
    for number, metrics in failed.items():
        if number in last:
            last[number]["skips"] = True
        else:
            reason = reason_of(metrics.get("fail_reason") or "")
            breaks.append({**reason, "skips": True})
    return breaks


def reason_text(payload):
    """Returns the reason in a record without the stacks around it."""
    above = payload.split("\nTraceback (most recent call last):")[0]
    if "Graph Break Reason:" in above:
        reason = above.split("Graph Break Reason:", 1)[1]
        return reason.split("User code traceback:")[0]
    return payload.rsplit("Unsupported: ", 1)[-1]


def describe(reason):
    number = f"{reason['id']} " if reason["id"] else ""
    named = f" ({', '.join(reason['names'])})" if reason["names"] else ""
    return f"{number}{reason['type']}{named}"
