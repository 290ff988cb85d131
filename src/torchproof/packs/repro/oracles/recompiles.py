"""Recognises recompiles, the recompile limit, and sizes that become constants."""

from __future__ import annotations

import collections
import json
import re

from torchproof.packs.repro.oracles.error_text import kind_of_guard
from torchproof.packs.repro.oracles.prelude import NONE, OTHER, SAME, collect_trace

_LIMIT = "Dynamo recompile limit exceeded"
_DECIDES = r"[=!<>]=|[<>]|\b(?:if|assert|for|while|range)\b|%"


def run_oracle(program, expected):
    """Expects the `kind` of guard and `times`, or the `limit`, or `specialized`."""
    with collect_trace() as trace:
        error = program.compiled_error(backend="eager")
    is_limit = expected.get("limit") and "RecompileLimit" in type(error).__name__
    if error is not None and not is_limit:
        raise error
    if expected.get("specialized"):
        return check_sizes(trace)
    counts = recompiles_by_kind(trace)
    if expected.get("limit"):
        return check_limit(trace, counts, expected)
    return check_times(counts, expected)


def check_times(counts, expected):
    times = counts[expected["kind"]]
    if times >= expected["times"]:
        often = "once" if times == 1 else f"{times} times"
        return SAME, f"it recompiles {often} because of: {expected['kind']}"
    if times:
        return OTHER, (
            f"it recompiles {times} times because of: {expected['kind']};"
            f" {expected['times']} are stated"
        )
    if counts:
        return OTHER, f"it recompiles for another reason: {', '.join(counts)}"
    return NONE, "it does not recompile"


def check_limit(trace, counts, expected):
    exceeded = [
        metrics
        for _, metrics in trace.named("compilation_metrics")
        if str(metrics.get("fail_reason") or "").startswith(_LIMIT)
        or "RecompileLimit" in str(metrics.get("fail_type"))
    ]
    if not exceeded:
        often = f"; it recompiles {sum(counts.values())} times" if counts else ""
        return NONE, f"it does not hit the recompile limit{often}"
    if expected.get("kind") and not counts[expected["kind"]]:
        return OTHER, f"it hits the recompile limit because of: {', '.join(counts)}"
    return SAME, f"it hits the recompile limit because of: {', '.join(counts)}"


def check_sizes(trace):
    """Looks for conditions on a size: operators may fix sizes too, and rightly so."""
    lines = [
        (record.get("user_stack") or [{}])[-1].get("loc") or ""
        for _, record in trace.named("symbolic_shape_specialization")
    ]
    conditions = [line for line in lines if re.search(_DECIDES, line)]
    if conditions:
        return SAME, f"a size becomes a constant because of: {conditions[0].strip()}"
    return NONE, "no condition turns a size into a constant"


def recompiles_by_kind(trace):
    """Counts how often each kind of guard failed and caused a recompile."""
    counts: collections.Counter[str] = collections.Counter()
    for _, payload in trace.artifacts("recompile_reasons"):
        # The payload is a JSON list, or one reason as plain text.
        reasons = json.loads(payload) if payload.startswith("[") else [payload]
        counts.update({kind_of_guard(reason) for reason in reasons})
    return counts
