"""Runs targets in this process under the watcher of CUDA graph lifetimes."""

from __future__ import annotations

import json
import warnings
from typing import Any

import torch
from rule_programs import Program, programs, too_long

from torchproof.checking import rules
from torchproof.observe.audit import events, running
from torchproof.observe.audit.lifetimes import Lifetimes
from torchproof.process import Followed
from torchproof.records.events import Observation
from torchproof.records.options import Options
from torchproof.records.run import Finding
from torchproof.targets import calls
from torchproof.targets.job import Job
from torchproof.targets.target import parse

PROGRAMS = programs("CG30*")

Entries = list[dict[str, Any]]


def watched(target: str, **options: Any) -> Entries:
    """What the watcher writes while a target's calls run in this process."""
    torch._dynamo.reset()  # its marks and graphs are those of the program before
    entries: Entries = []

    def write(kind: str, **fields: Any) -> None:
        entries.append(json.loads(json.dumps({"kind": kind, **fields}, default=str)))

    job = calls.resolved(Job.of(parse(target), Options(**options)))
    # The program's own warnings are not what is tested.
    with warnings.catch_warnings(), Lifetimes(write) as watcher:
        warnings.simplefilter("ignore")
        running.run(job, write, [watcher])
    return entries


def findings_of(entries: Entries) -> list[Finding]:
    return rules.check(Observation(events.events(Followed(entries)), {}))


def audited(program: Program, *, may_fail: bool = False) -> list[Finding]:
    """The findings; with `may_fail`, torch may end a call that read dead memory."""
    entries = watched(program.target, **program.options)
    kinds = [entry["kind"] for entry in entries]
    assert "graph_asked" in kinds, "nothing asked for CUDA graphs"
    if not (may_fail and "dead_read" in kinds):
        assert "call_failed" not in kinds, entries
    return findings_of(entries)


def assert_expected(program: Program, findings: list[Finding]) -> None:
    found = {(f.code, f.line) for f in findings}
    assert found == program.expected, describe(findings)
    assert not too_long(findings, "CG30")


def describe(findings: list[Finding]) -> str:
    return "\n".join(f"{f.code} {f.severity} {f.line}: {f.message}" for f in findings)
