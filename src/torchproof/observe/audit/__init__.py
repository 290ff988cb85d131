"""Part `lifetimes` of a check: the target run once more, with watchers around it.

Comes in: a target and how to run it. Goes out: events about CUDA graphs, the counts
that belong to them, and the status of the part. This file runs in the parent, without
torch; `running` is what the child process does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchproof.observe import capture
from torchproof.observe.audit import events as told
from torchproof.process import Conditions, Followed, follow
from torchproof.records import Event, Finding, Part
from torchproof.targets import Options, Target

CODES = ("CG", "HS")  # of the rules about what the watchers saw
_NOTHING = "nothing compiles with CUDA graphs"
_SIMULATED = "on the CPU, with the lifetimes that CUDA graphs would give"


@dataclass(frozen=True)
class AuditResult:
    """What the audit of a target gave."""

    status: Part
    events: tuple[Event, ...] = ()
    counts: dict[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    interrupted: bool = False

    def part(self, findings: Iterable[Finding]) -> Part:
        """The part's status: `found` where one of its own findings is open."""
        if self.status.status in {"passed", "failed"} and any(
            f.status == "open" and f.code.startswith(CODES) for f in findings
        ):
            return Part("found", self.status.why)
        return self.status


def audit(
    target: Target, options: Options, progress: Callable[[str], None]
) -> AuditResult:
    """Runs the target in a child of its own, real, under all watchers."""
    progress("lifetimes: running the target under watchers")
    under = Conditions(timeout_s=options.timeout_s, quiet=options.quiet)
    job = capture.job(target, options)
    child = follow("torchproof.observe.audit", job, lambda entry, seconds: None, under)
    return AuditResult(
        status=_status(child, target),
        events=told.events(child.entries),
        counts=told.counts(child.entries),
        environment=child.last("environment"),
        interrupted=child.ending == "interrupted",
    )


def skipped(why: str) -> AuditResult:
    return AuditResult(Part("skipped", why), counts=told.counts(()))


def _status(child: Followed, target: Target) -> Part:
    if unusable := child.last("unusable"):
        return Part("failed", unusable["message"])
    if why := child.failure(script=target.kind == "script"):
        return Part("failed", why)
    if child.ending != "finished":
        return Part("failed", f"ended by {child.ending}")
    requested = told.asked(child.entries)
    failures = child.of("call_failed")
    if failures and not child.of("dead_read"):
        first = failures[0]
        return Part("failed", f"call {first['call']}: {first['message']}")
    if not requested.graphs:
        return Part("skipped", _NOTHING)
    return Part("passed", _SIMULATED if requested.simulated else "")
