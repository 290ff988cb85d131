"""Graph breaks and skipped frames: the reason that is stated, at any place."""

from __future__ import annotations

from torchproof.packs.repro.oracles.error_text import is_same_reason, reason_of
from torchproof.packs.repro.oracles.prelude import (
    NONE,
    OTHER,
    SAME,
    failure_in_eager,
    otherwise,
    run_compiled,
    traced,
)

_SKIPS = (
    "Skipping the function and falling back to eager",
    "which results in a skip",
)
_SOFT = ("Unsupported", "UserError", "SkipFrame")


def run_oracle(make, settings, expected, before_call=None):
    """Expected: `type`, `id` and `names` of the reason, and whether it `skips`."""
    with traced() as trace:
        error = run_compiled(make, settings, before_call, backend="eager")
    seen = breaks_in(trace)
    alike = [item for item in seen if is_same_reason(item, expected)]
    same = [item for item in alike if item["skips"] == expected["skips"]]
    what = "skipped frame" if expected["skips"] else "graph break"
    if error is not None and not same:
        return otherwise(error, make, settings, before_call)
    if same:
        own = failure_in_eager(make, settings, before_call) if error else None
        if own is not None:
            return OTHER, f"it fails in eager: {own}"
        return SAME, f"{what}, {told(same[0])}"
    if alike:
        there = "a graph break" if expected["skips"] else "a skipped frame"
        return OTHER, f"the same reason makes {there}: {told(alike[0])}"
    if seen:
        return OTHER, f"no {what} for this reason, but {told(seen[0])}"
    return NONE, "it compiles without a graph break"


def breaks_in(trace):
    """Every break, and every frame that Dynamo gave up, with its reason."""
    failed = {
        number: metrics
        for number, metrics in trace.named("compilation_metrics")
        if metrics.get("fail_type") in _SOFT
    }
    found, last = [], {}
    for number, payload in trace.artifacts("dynamo_graph_break_reason"):
        reason = reason_of(stated(payload))
        reason["skips"] = any(mark in payload for mark in _SKIPS)
        found.append(reason)
        last[number] = reason
    for number, metrics in failed.items():
        if number in last:
            last[number]["skips"] = True
        else:
            reason = reason_of(metrics.get("fail_reason") or "")
            found.append({**reason, "skips": True})
    return found


def stated(payload):
    """The reason in a record, without the stacks around it."""
    above = payload.split("\nTraceback (most recent call last):")[0]
    if "Graph Break Reason:" in above:
        told = above.split("Graph Break Reason:", 1)[1]
        return told.split("User code traceback:")[0]
    return payload.rsplit("Unsupported: ", 1)[-1]


def told(reason):
    number = f"{reason['id']} " if reason["id"] else ""
    named = f" ({', '.join(reason['names'])})" if reason["names"] else ""
    return f"{number}{reason['type']}{named}"
