"""Part `lifetimes` of a check: runs the target once more, under watchers.

Takes a target and its options. Returns events about CUDA graphs, their counts, and the
status of the part. This file runs in the parent, without torch. The child process runs
`running.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from torchproof.observe import timeline
from torchproof.observe.audit import events as entry_events
from torchproof.process import Conditions, Followed, follow
from torchproof.records import Event, Part, shapes
from torchproof.targets import Job, Options, Target

_NO_GRAPHS = "nothing compiles with CUDA graphs"
_SIMULATED = "simulated on the CPU, with the tensor lifetimes of CUDA graphs"


@dataclass(frozen=True)
class AuditResult:
    """The events, counts and status of one audit."""

    status: Part
    events: tuple[Event, ...] = ()
    counts: dict[str, float | None] = field(default_factory=dict)
    environment: shapes.Environment = field(default_factory=shapes.Environment)
    interrupted: bool = False


def audit(
    target: Target, options: Options, progress: Callable[[str], None]
) -> AuditResult:
    """Runs the target in a child process under all watchers."""
    progress("lifetimes: running the target under watchers")
    conditions = Conditions(timeout_s=options.timeout_s, quiet=options.quiet)
    return audit_job(Job.of(target, options), conditions)


def audit_job(job: Job, conditions: Conditions) -> AuditResult:
    """Runs a target, perhaps with edits, in a child process under all watchers."""
    child = follow(
        "torchproof.observe.audit.running",
        json.dumps(job.to_json()),
        lambda entry, seconds: None,
        conditions,
    )
    timeline.process_ended(child.pid)
    return AuditResult(
        status=_status(child, job.target),
        events=entry_events.events(child),
        counts=entry_events.counts(child),
        environment=cast(shapes.Environment, child.last("environment")),
        interrupted=child.ending == "interrupted",
    )


def skipped(why: str) -> AuditResult:
    return AuditResult(Part("skipped", why), counts=dict.fromkeys(entry_events.COUNTS))


def _status(child: Followed, target: Target) -> Part:
    if lacks := child.last("missing_hook"):
        return Part("skipped", lacks["message"])
    if unusable := child.last("unusable"):
        return Part("failed", unusable["message"])
    if why := child.failure(script=target.kind == "script"):
        return Part("failed", why)
    if child.ending != "finished":
        return Part("failed", f"ended by {child.ending}")
    requested = child.of("graph_asked")
    failures = child.of("call_failed")
    if failures and not child.of("dead_read"):
        first = failures[0]
        return Part("failed", f"call {first['call']}: {first['message']}")
    if not requested:
        return Part("skipped", _NO_GRAPHS)
    return Part("passed", _SIMULATED if any(r["simulated"] for r in requested) else "")
