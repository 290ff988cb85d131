"""Renders the checks of `torchproof doctor` as text, JSON or Markdown."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from torchproof.packs import Redactor
from torchproof.records import Health, MachineCheck, line
from torchproof.report import markdown, text
from torchproof.report.document import (
    Block,
    Code,
    Items,
    Paragraph,
    Section,
    Table,
    View,
)

_SCHEMA = 1
_STATUSES: tuple[Health, ...] = ("ok", "degraded", "missing")


def render(
    checks: Sequence[MachineCheck], format: str, *, width: int = 80, verbose: bool
) -> str:
    if format == "json":
        return json.dumps(document(checks), indent=1) + "\n"
    if format == "md":
        return markdown.render(_blocks(redacted(checks), verbose=True))
    return text.render(_blocks(checks, verbose=verbose), width=width)


def document(checks: Sequence[MachineCheck]) -> dict[str, Any]:
    return {
        "schema": _SCHEMA,
        "healthy": not any(check.is_problem for check in checks),
        "counts": _counts(checks),
        "checks": [check.to_json() for check in checks],
    }


def _counts(checks: Sequence[MachineCheck]) -> dict[str, int]:
    counts = Counter(check.status for check in checks)
    return {status: counts[status] for status in _STATUSES}


def _blocks(checks: Sequence[MachineCheck], *, verbose: bool) -> Iterator[Block]:
    """A list for each group on a terminal, a table to paste into a bug report."""
    for group, members in itertools.groupby(checks, key=lambda check: check.group):
        lines = [text for check in members for text in _lines(check, verbose)]
        yield Items(tuple(lines), group, views=View.TERMINAL)
    rows = [
        (check.status, check.name, Code(check.value), _meaning(check))
        for check in checks
    ]
    table = Table("", ("status", "what", "seen", "means"), tuple(rows))
    yield Section("torchproof doctor", (table,), views=View.PAPER)
    yield Paragraph(summary(checks))


def _lines(check: MachineCheck, verbose: bool) -> Iterator[str]:
    value = f"{check.name}: {check.value}" if check.value else check.name
    yield f"{check.status:10}{line(value)}"
    optional = " (optional)" if check.optional and check.status != "ok" else ""
    if check.status == "ok" and not verbose:
        return
    for label, said in (("means", check.means + optional), ("do", check.action)):
        if said:
            yield f"{'':10}{line(f'{label}: {said}')}"


def _meaning(check: MachineCheck) -> str:
    return "" if check.status == "ok" else check.means


def summary(checks: Sequence[MachineCheck]) -> str:
    problems = [check.name for check in checks if check.is_problem]
    counts = ", ".join(f"{count} {name}" for name, count in _counts(checks).items())
    if not problems:
        return f"{counts}. torchproof works here."
    return f"{counts}. To look at first: {', '.join(problems)}."


def redacted(checks: Sequence[MachineCheck]) -> list[MachineCheck]:
    """For a public bug report: without the names of people, hosts and folders."""
    redact = Redactor.here().text
    return [
        dataclasses.replace(
            check,
            value=redact(check.value),
            means=redact(check.means),
            action=redact(check.action),
        )
        for check in checks
    ]
