"""The programs under tests/rules/CG30x, run in this process under the watcher."""

from __future__ import annotations

import ast
import json
import warnings
from pathlib import Path
from typing import Any

import torch

from torchproof.checking import rules
from torchproof.observe.audit import events, running
from torchproof.observe.audit.lifetimes import Lifetimes
from torchproof.records.run import Finding, Observation
from torchproof.targets import calls
from torchproof.targets.job import Job
from torchproof.targets.options import Options
from torchproof.targets.target import parse

FOLDER = Path(__file__).resolve().parent.parent / "rules"
PROGRAMS = sorted(FOLDER.glob("CG30*/*.py"))

Entries = list[dict[str, Any]]


def settings(program: Path) -> dict[str, Any]:
    """The constants of a program, read without running it."""
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(program.read_text()).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in {"EXPECT", "COMPILE", "AS_WRITTEN"}
    }


def expected(program: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = settings(program)["EXPECT"]
    return found


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
    return rules.check(Observation(events.events(entries), {}))


def audited(program: Path, *, may_fail: bool = False) -> list[Finding]:
    """The findings; with `may_fail`, torch may end a call that read dead memory."""
    told = settings(program)
    entries = watched(
        f"{program}:make",
        compile=told.get("COMPILE", {}),
        as_written=told.get("AS_WRITTEN", False),
    )
    asked = [entry for entry in entries if entry["kind"] == "graph_asked"]
    assert asked, "nothing asked for CUDA graphs"
    kinds = [entry["kind"] for entry in entries]
    if not (may_fail and "dead_read" in kinds):
        assert "call_failed" not in kinds, entries
    return findings_of(entries)


def fits(finding: Finding, wanted: dict[str, Any], program: Path) -> bool:
    """Whether a finding is the one a program announces."""
    lines = program.read_text().splitlines()
    line = lines[finding.line - 1] if finding.line else ""
    return (
        (finding.code, finding.kind) == (wanted["code"], wanted["kind"])
        and finding.severity == wanted["severity"]
        and wanted["line"] in line
        and any(word in finding.fix for word in wanted["fix"])
        and wanted.get("holder", "") in finding.message
    )


def describe(findings: list[Finding]) -> str:
    return "\n".join(
        f"{f.code} {f.severity} {f.line}: {f.message} | {f.fix}\n  "
        + "\n  ".join(f.evidence)
        for f in findings
    )
