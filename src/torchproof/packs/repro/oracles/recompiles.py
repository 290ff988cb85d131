"""Recompiles, the recompile limit, and sizes that are compiled in as constants."""

from __future__ import annotations

import collections
import json
import re

from torchproof.packs.repro.oracles.error_text import kind_of_guard
from torchproof.packs.repro.oracles.prelude import (
    NONE,
    OTHER,
    SAME,
    failure_in_eager,
    otherwise,
    run_compiled,
    traced,
)

_LIMIT = "Dynamo recompile limit exceeded"
_DECIDES = r"[=!<>]=|[<>]|\b(?:if|assert|for|while|range)\b|%"


def run_oracle(make, settings, expected, before_call=None):
    """Expected: `kind` of the guard, `times` or the `limit`; or `specialized`."""
    with traced() as trace:
        error = run_compiled(make, settings, before_call, backend="eager")
    if error is not None:
        limit = expected.get("limit") and "RecompileLimit" in type(error).__name__
        if not limit or failure_in_eager(make, settings, before_call) is not None:
            return otherwise(error, make, settings, before_call)
    if expected.get("specialized"):
        return judge_sizes(trace)
    counts = kinds_in(trace)
    if expected.get("limit"):
        return judge_limit(trace, counts, expected)
    return judge_times(counts, expected)


def judge_times(counts, expected):
    times = counts[expected["kind"]]
    if times >= expected["times"]:
        often = "once" if times == 1 else f"{times} times"
        return SAME, f"compiled again {often} because of: {expected['kind']}"
    if times:
        return OTHER, (
            f"compiled again {times} times because of: {expected['kind']},"
            f" {expected['times']} are stated"
        )
    if counts:
        return OTHER, f"compiled again for another reason: {', '.join(counts)}"
    return NONE, "nothing is compiled again"


def judge_limit(trace, counts, expected):
    hit = [
        metrics
        for _, metrics in trace.named("compilation_metrics")
        if str(metrics.get("fail_reason") or "").startswith(_LIMIT)
        or "RecompileLimit" in str(metrics.get("fail_type"))
    ]
    if not hit:
        told = f", compiled again {sum(counts.values())} times" if counts else ""
        return NONE, f"the recompile limit is not hit{told}"
    if expected.get("kind") and not counts[expected["kind"]]:
        return OTHER, f"the recompile limit is hit because of: {', '.join(counts)}"
    return SAME, f"the recompile limit is hit because of: {', '.join(counts)}"


def judge_sizes(trace):
    """An operator fixes sizes too, and rightly: what counts is a decision by a size."""
    lines = [
        (record.get("user_stack") or [{}])[-1].get("loc") or ""
        for _, record in trace.named("symbolic_shape_specialization")
    ]
    decisions = [line for line in lines if re.search(_DECIDES, line)]
    if decisions:
        return SAME, f"a size is compiled in as a constant by: {decisions[0].strip()}"
    return NONE, "no decision compiles a size in"


def kinds_in(trace):
    """How often each kind of guard failed and made torch compile again."""
    found: collections.Counter[str] = collections.Counter()
    for _, payload in trace.artifacts("recompile_reasons"):
        # A list in JSON, or the one reason as it is.
        reasons = json.loads(payload) if payload.startswith("[") else [payload]
        found.update({kind_of_guard(reason) for reason in reasons})
    return found
