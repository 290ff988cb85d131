"""Renders the checks of `torchproof doctor` as text, JSON or Markdown."""

from __future__ import annotations

import dataclasses
import itertools
import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from torchproof.packs import Redactor
from torchproof.records import Health, MachineCheck, line
from torchproof.report import markup

_SCHEMA = 1
_STATUSES: tuple[Health, ...] = ("ok", "degraded", "missing")
_INDENT = 12  # characters before a name


def render(
    checks: Sequence[MachineCheck], format: str, *, width: int = 80, verbose: bool
) -> str:
    if format == "json":
        return json.dumps(document(checks), indent=1) + "\n"
    if format == "md":
        return _markdown(redacted(checks))
    return "\n".join(_text(checks, max(width, 40), verbose)) + "\n"


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


def _text(checks: Sequence[MachineCheck], width: int, verbose: bool) -> Iterator[str]:
    for group, members in itertools.groupby(checks, key=lambda check: check.group):
        yield group
        for check in members:
            yield from _lines(check, width, verbose)
        yield ""
    yield from textwrap.wrap(summary(checks), width)


def _lines(check: MachineCheck, width: int, verbose: bool) -> Iterator[str]:
    indent = " " * _INDENT
    value = line(f"{check.name}: {check.value}" if check.value else check.name)
    yield from textwrap.wrap(
        value,
        width,
        initial_indent=f"  {check.status:{_INDENT - 2}}",
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
    )
    optional = " (optional)" if check.optional and check.status != "ok" else ""
    if check.status == "ok" and not verbose:
        return
    for label, text in (("means", check.means + optional), ("do", check.action)):
        if text:
            yield from textwrap.wrap(
                line(f"{label}: {text}"),
                width,
                initial_indent=indent + "  ",
                subsequent_indent=indent + "    ",
                break_on_hyphens=False,
            )


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


def _markdown(checks: Sequence[MachineCheck]) -> str:
    """A table to paste into a bug report."""
    rows = [
        (
            f"**{check.status}**" if check.is_problem else check.status,
            markup.inline(check.name),
            markup.code(check.value) if check.value else "",
            "" if check.status == "ok" else markup.inline(check.means),
        )
        for check in checks
    ]
    table = markup.table(("status", "what", "seen", "means"), rows)
    return f"## torchproof doctor\n\n{table}\n\n{markup.prose(summary(checks))}\n"
