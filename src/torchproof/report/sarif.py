"""A run as SARIF 2.1.0, as GitHub's code scanning and editors read it.

Code scanning refuses a whole file if one result has no location, and shows every
result as a present one. So a finding without a line of its own is told as a
notification, and one that is resolved is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from torchproof import __version__
from torchproof.checking import by_code
from torchproof.records import Finding, Run, UserError, line, seen
from torchproof.report import commands

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
HOME = "https://pypi.org/project/torchproof/"
MOST = 5_000  # as many as code scanning shows of one run
LEVELS = {"high": "error", "medium": "warning", "low": "note"}
ROOT = "%SRCROOT%"
_LIMIT = 1_024  # letters of a description
_WHOLE = 2**31 - 1  # what readers take for a line or a column

Plain = dict[str, Any]


def render(run: Run) -> str:
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(run)]}
    return json.dumps(document, indent=1) + "\n"


def _run(run: Run) -> Plain:
    told = [f for f in run.findings if f.status != "resolved"]
    told.sort(key=_rank)
    placed = [f for f in told if location(f, run)]
    shown, placeless = placed[:MOST], [f for f in told if not location(f, run)]
    codes = sorted({f.code for f in (*shown, *placeless)})
    known = (run.baseline or {}).get("identities")
    notifications = [*_placeless(placeless, codes), *_left_out(placed)]
    return {
        "tool": {"driver": _driver(codes)},
        "automationDetails": {"id": f"torchproof/{line(run.target)}/{line(run.id)}"},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"description": _text("Where the run was made.")}},
        "invocations": [_invocation(run, notifications)],
        "results": [_result(f, run, codes, known) for f in shown],
        "properties": {"counts": dict(run.counts), "resolved": _resolved(run)},
    }


def _rank(finding: Finding) -> tuple[bool, int]:
    return finding.status != "open", list(LEVELS).index(finding.severity)


def _resolved(run: Run) -> int:
    return sum(f.status == "resolved" for f in run.findings)


def _text(text: str) -> Plain:
    return {"text": text}


# -- the tool and its rules ------------------------------------------------------------


def _driver(codes: Sequence[str]) -> Plain:
    return {
        "name": "torchproof",
        "semanticVersion": __version__,
        "informationUri": HOME,
        "rules": [_rule(code) for code in codes],
    }


def _rule(code: str) -> Plain:
    try:
        rule = by_code(code)
    except UserError:  # the rule of another version
        said = f"torchproof {__version__} has no rule {line(code)}."
        return {"id": line(code), **_described(said, said, said), **_settings([])}
    text = rule.documentation()
    return {
        "id": code,
        "name": type(rule).__name__,
        **_described(rule.summary(), rule.section("Why"), text),
        "helpUri": rule.page(),
        **_settings(["torch.compile", rule.kind]),
    }


def _described(short: str, full: str, text: str) -> Plain:
    return {
        "shortDescription": _text(short[:_LIMIT]),
        "fullDescription": _text(" ".join(full.split())[:_LIMIT]),
        "help": {"text": text, "markdown": text},
    }


def _settings(tags: list[str]) -> Plain:
    """Severity follows the run, so that a rule has only a middle one."""
    properties = {"tags": tags, "precision": "high", "problem.severity": "warning"}
    return {"defaultConfiguration": {"level": "warning"}, "properties": properties}


# -- the run ---------------------------------------------------------------------------


def _invocation(run: Run, notifications: list[Plain]) -> Plain:
    """Where and how; a run that did not end well says so."""
    whole = not run.error and run.ending == "finished"
    plain: Plain = {"executionSuccessful": whole}
    if run.command:
        plain["commandLine"] = seen(run.command)
    if not whole:
        why = run.error or f"the run was ended early ({run.ending})"
        notifications = [_notification("error", line(why)), *notifications]
    if notifications:
        plain["toolExecutionNotifications"] = notifications
    return plain


def _notification(level: str, text: str) -> Plain:
    return {"level": level, "message": _text(text)}


def _placeless(findings: Iterable[Finding], codes: Sequence[str]) -> Iterable[Plain]:
    for finding in findings:
        if finding.status == "open":
            rule = {"id": finding.code, "index": codes.index(finding.code)}
            plain = _notification(LEVELS[finding.severity], _message(finding))
            yield {**plain, "associatedRule": rule}


def _left_out(placed: Sequence[Finding]) -> Iterable[Plain]:
    if len(placed) > MOST:
        text = f"{len(placed) - MOST} of {len(placed)} findings are left out, the"
        yield _notification("warning", f"{text} least severe: {MOST} are shown.")


# -- the results -----------------------------------------------------------------------


def _result(
    finding: Finding, run: Run, codes: Sequence[str], known: Sequence[str] | None
) -> Plain:
    plain: Plain = {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": LEVELS[finding.severity],
        "message": _text(_message(finding)),
        "locations": [location(finding, run)],
        "partialFingerprints": {"torchproofIdentity/v1": finding.identity},
    }
    if known is not None:
        had = finding.identity in known
        plain["baselineState"] = "unchanged" if had else "new"
    if finding.status == "intentional":
        why = "The code says that this is wanted."
        plain["suppressions"] = [{"kind": "inSource", "justification": why}]
    return {**plain, "properties": _properties(finding)}


def _message(finding: Finding) -> str:
    """The first sentence is the title; then why, and what to do."""
    told = (finding.message, finding.cause, f"To fix it: {finding.fix}")
    return " ".join(f"{line(text).rstrip('.')}." for text in told)


def _properties(finding: Finding) -> Plain:
    facts: Plain = {
        "category": finding.category,
        "kind": finding.kind,
        "origin": finding.origin,
        "severity": finding.severity,
        "count": finding.count,
        "steps": finding.steps,
    }
    cost = finding.cost_us  # JSON has no number for what is not finite
    if cost is not None and cost == cost and abs(cost) != float("inf"):
        facts["cost_us"] = cost
    return {name: value for name, value in facts.items() if value is not None}


def location(finding: Finding, run: Run) -> Plain | None:
    """Its line; for what has none, the first of the target's own file, if it is one."""
    if finding.file and not finding.file.startswith("<"):
        physical = {"artifactLocation": artifact(finding.file)}
        physical |= _regions(finding)
    elif file := _file(run.target):
        region = {"startLine": 1, "endLine": 1, "startColumn": 1}
        physical = {"artifactLocation": artifact(file), "region": region}
    else:
        return None
    plain: Plain = {"physicalLocation": physical}
    if finding.function:
        name = {"fullyQualifiedName": line(finding.function), "kind": "function"}
        plain["logicalLocations"] = [name]
    return plain


def _file(target: str) -> str | None:
    """The file of a target that is a file, or a factory in one."""
    form = commands.kind(target)
    file = target.rpartition(":")[0] if form == "factory" else target
    return file if form in {"factory", "script"} and file.endswith(".py") else None


def artifact(file: str) -> Plain:
    """Relative to where the run was made; a file elsewhere by its whole address."""
    path = quote(seen(file))
    if path.startswith("/"):
        return {"uri": f"file://{path}"}
    return {"uri": path.removeprefix("./"), "uriBaseId": ROOT}


def _regions(finding: Finding) -> Plain:
    row = min(finding.line or 1, _WHOLE)
    region: Plain = {"startLine": row, "endLine": row, **_columns(finding)}
    if finding.source:
        region["snippet"] = _text(seen(finding.source))
    first, lines = finding.context_from, finding.context
    if not first or not lines or not first <= row < first + len(lines):
        return {"region": region}
    around: Plain = {"startLine": first, "endLine": first + len(lines) - 1}
    around["snippet"] = _text(seen("\n".join(lines)))
    return {"region": region, "contextRegion": around}


def _columns(finding: Finding) -> Plain:
    """Those on record, else the whole line; its end is left out if it is not known."""
    start, end = finding.column, finding.end_column
    if start and end and start < end <= _WHOLE:
        return {"startColumn": start, "endColumn": end}
    text = (finding.source or "").rstrip()
    if not text.strip():
        return {"startColumn": 1}
    indent = len(text) - len(text.lstrip())
    return {"startColumn": indent + 1, "endColumn": len(text) + 1}
