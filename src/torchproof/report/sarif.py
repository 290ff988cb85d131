"""Renders a run as SARIF 2.1.0, for GitHub code scanning and editors.

Code scanning rejects a whole file if one result has no location, and shows every
result as a current one. So a finding without a location becomes a notification, and
resolved findings are omitted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from torchproof import __version__
from torchproof.records import (
    SEVERITIES,
    Finding,
    Replacement,
    Run,
    line,
    seen,
    shown,
    to_plain,
)
from torchproof.report import commands, finding_block, run_words
from torchproof.report.finding_block import FindingBlock

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
HOME = "https://pypi.org/project/torchproof/"
MOST = 5_000  # the most results that code scanning shows for one run
LEVELS = {"high": "error", "medium": "warning", "low": "note"}
ROOT = "%SRCROOT%"
_LIMIT = 1_024  # characters of a description
_WHOLE = 2**31 - 1  # the largest line or column that readers accept

Plain = dict[str, Any]


def render(run: Run) -> str:
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(run)]}
    return json.dumps(document, indent=1) + "\n"


def _run(run: Run) -> Plain:
    every = finding_block.everything(finding_block.blocks(run))
    blocks = [each for each in every if each.finding.status != "resolved"]
    blocks.sort(key=_order)
    placed = [each for each in blocks if location(each.finding, run)]
    placeless = [each for each in blocks if not location(each.finding, run)]
    reported = placed[:MOST]
    codes = sorted({each.finding.code for each in (*reported, *placeless)})
    known = _identities(run)
    fixes = _fixes(run)
    notifications = [*_placeless(placeless, codes), *_left_out(placed)]
    return {
        "tool": {"driver": _driver(codes, run)},
        "automationDetails": {"id": f"torchproof/{line(run.target)}/{line(run.id)}"},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"description": _text("Directory of the run.")}},
        "invocations": [_invocation(run, notifications)],
        "results": [
            _with_links(_result(each, codes, known=known, fixes=fixes), each)
            for each in reported
        ],
        "properties": {
            "counts": dict(run.counts),
            "resolved": len(run.findings) - len(blocks),
        },
    }


def _order(block: FindingBlock) -> tuple[bool, bool, int]:
    finding = block.finding
    is_closed, severity = finding.status != "open", finding.severity
    return is_closed, block.is_effect, SEVERITIES.index(severity)


def _identities(run: Run) -> frozenset[str] | None:
    """The findings of the earlier run, if its record has them."""
    identities = run.baseline.identities if run.baseline else None
    return None if identities is None else frozenset(identities)


def _text(text: str) -> Plain:
    return {"text": text}


# -- the tool and its rules ------------------------------------------------------------


def _driver(codes: Sequence[str], run: Run) -> Plain:
    return {
        "name": "torchproof",
        "semanticVersion": __version__,
        "informationUri": HOME,
        "rules": [_rule(code, run) for code in codes],
    }


def _rule(code: str, run: Run) -> Plain:
    rule = run.rules.get(code)
    if rule is None:  # a run of an older version
        text = f"Run `torchproof rule {line(code)}`."
        return {"id": line(code), **_described(text, text, text), **_settings([])}
    return {
        "id": line(code),
        "name": line(rule.name),
        **_described(rule.summary, rule.section("Why"), rule.text),
        **({"helpUri": rule.link} if rule.link else {}),
        **_settings(["torch.compile", line(rule.kind)]),
    }


def _described(short: str, full: str, text: str) -> Plain:
    return {
        "shortDescription": _text(short[:_LIMIT]),
        "fullDescription": _text(" ".join(full.split())[:_LIMIT]),
        "help": {"text": text, "markdown": text},
    }


def _settings(tags: list[str]) -> Plain:
    """The run decides the severity of each finding, so a rule has a default level."""
    properties = {"tags": tags, "precision": "high", "problem.severity": "warning"}
    return {"defaultConfiguration": {"level": "warning"}, "properties": properties}


# -- the run ---------------------------------------------------------------------------


def _invocation(run: Run, notifications: list[Plain]) -> Plain:
    """The command, whether it completed, and the notifications."""
    failures = run_words.failures(run)
    plain: Plain = {"executionSuccessful": not failures}
    if run.command:
        plain["commandLine"] = seen(run.command)
    errors = [_notification("error", line(text)) for text in failures]
    if notifications := [*errors, *notifications]:
        plain["toolExecutionNotifications"] = notifications
    return plain


def _notification(level: str, text: str) -> Plain:
    return {"level": level, "message": _text(text)}


def _placeless(blocks: Iterable[FindingBlock], codes: Sequence[str]) -> Iterable[Plain]:
    for block in blocks:
        finding = block.finding
        if finding.status == "open":
            rule = {"id": finding.code, "index": codes.index(finding.code)}
            plain = _notification(LEVELS[finding.severity], _message(block))
            yield {**plain, "associatedRule": rule}


def _left_out(placed: Sequence[FindingBlock]) -> Iterable[Plain]:
    if len(placed) > MOST:
        text = f"{len(placed) - MOST} of {len(placed)} findings are omitted, the least"
        yield _notification("warning", f"{text} severe ones: the limit is {MOST}.")


# -- the results -----------------------------------------------------------------------


def _result(
    block: FindingBlock,
    codes: Sequence[str],
    *,
    known: frozenset[str] | None,
    fixes: Mapping[str, Sequence[Plain]],
) -> Plain:
    finding = block.finding
    plain: Plain = {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": LEVELS[finding.severity],
        "message": _text(_message(block)),
        "locations": [location(finding, block.run)],
        "partialFingerprints": {"torchproofIdentity/v2": finding.identity},
    }
    if known is not None:
        had = finding.identity in known
        plain["baselineState"] = "unchanged" if had else "new"
    title = f"{finding.fix} [{block.draft}, not proved]"
    is_shown = block.draft and _is_plain(block.changes)
    drafts = [_fix(title, block.changes)] if is_shown else []
    if proposed := fixes.get(finding.identity, drafts):
        plain["fixes"] = list(proposed)
    if finding.status == "intentional":
        why = "The code marks this as intentional."
        plain["suppressions"] = [{"kind": "inSource", "justification": why}]
    return {**plain, "properties": _properties(finding)}


def _with_links(plain: Plain, block: FindingBlock) -> Plain:
    """A result with its place among causes and effects; an effect is only a note."""
    text, links = plain["message"]["text"], plain["properties"]
    if block.effects:
        text = f"{text} It {line(block.explains)}."
        links["consequences"] = [each.finding.identity for each in block.effects]
    if not block.is_effect:
        return {**plain, "message": _text(text)}
    causes = block.tree.causes_of(block.finding)
    places = [at for cause in causes if (at := location(cause, block.run))]
    links["cause_of"] = [finding.identity for finding in causes]
    links["certainty"] = block.finding.certainty
    follows = line(f"{block.causes} ({block.finding.certainty})")
    return {
        **plain,
        "level": "note",
        "message": _text(f"{text} It follows from {follows}."),
        **({"relatedLocations": places} if places else {}),
    }


def _fixes(run: Run) -> dict[str, list[Plain]]:
    """The fixes that are verified and fit the file as it is, by identity."""
    fixes: dict[str, list[Plain]] = {}
    for fix in run.fixes:
        fits = fix.replacements and all(e.at is not None for e in fix.replacements)
        fits = fits and _is_plain(fix.replacements)
        if fix.status == "verified" and fits:
            proved = f" ({fix.receipt.text})" if fix.receipt else ""
            title = f"{fix.title} [{fix.tier}]{proved}"
            for identity in fix.findings:
                found = _fix(title, fix.replacements)
                fixes.setdefault(identity, []).append(found)
    return fixes


def _is_plain(edits: Iterable[Replacement]) -> bool:
    """Whether no new line has a character that must not be shown as it is."""
    bodies = (text.rstrip("\r\n") for each in edits for text in each.new)
    return all(seen(body) == body for body in bodies)


def _fix(title: str, edits: Iterable[Replacement]) -> Plain:
    """The lines to delete and to insert, in the file as it was read."""
    changes: dict[str, list[Plain]] = {}
    for each in edits:
        start = each.at or each.line
        region = {"startLine": start, "startColumn": 1}
        region |= {"endLine": start + len(each.old), "endColumn": 1}
        replacement: Plain = {"deletedRegion": region}
        if each.new:
            replacement["insertedContent"] = _text("".join(each.new))
        changes.setdefault(shown(each.file), []).append(replacement)
    return {
        "description": _text(line(title)),
        "artifactChanges": [
            {"artifactLocation": artifact(file), "replacements": replacements}
            for file, replacements in changes.items()
        ],
    }


def _message(block: FindingBlock) -> str:
    """Message, cause and fix; readers show the first sentence as the title."""
    finding = block.finding
    message = f"{finding.message} ({block.ranks})" if block.ranks else finding.message
    texts = (message, finding.cause, f"Fix: {finding.fix}")
    return " ".join(f"{line(text).rstrip('.')}." for text in texts)


def _properties(finding: Finding) -> Plain:
    facts: Plain = {
        "category": finding.category,
        "kind": finding.kind,
        "origin": finding.origin,
        "severity": finding.severity,
        "count": finding.count,
        "steps": finding.steps,
        "cost_us": to_plain(finding.cost_us),
        "ranks": list(finding.ranks) or None,
        "step": finding.step,
        "waited_s": to_plain(finding.waited_s),
    }
    return {name: value for name, value in facts.items() if value is not None}


def location(finding: Finding, run: Run) -> Plain | None:
    """The finding's line, else the first line of the target's file, else None."""
    if finding.file and not finding.file.startswith("<"):
        physical = {"artifactLocation": artifact(finding.file)}
        physical |= _regions(finding)
    elif file := file_of(run.target):
        region = {"startLine": 1, "endLine": 1, "startColumn": 1}
        physical = {"artifactLocation": artifact(file), "region": region}
    else:
        return None
    plain: Plain = {"physicalLocation": physical}
    if finding.function:
        name = {"fullyQualifiedName": line(finding.function), "kind": "function"}
        plain["logicalLocations"] = [name]
    return plain


def file_of(target: str) -> str | None:
    """The file of a script or factory target."""
    form = commands.kind(target)
    file = target.rpartition(":")[0] if form == "factory" else target
    return file if form in {"factory", "script"} and file.endswith(".py") else None


def artifact(file: str) -> Plain:
    """A path relative to the run's directory, or an absolute file URI."""
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
    """The finding's columns, else the whole line, without an end if it is unknown."""
    start, end = finding.column, finding.end_column
    if start and end and start < end <= _WHOLE:
        return {"startColumn": start, "endColumn": end}
    text = (finding.source or "").rstrip()
    if not text.strip():
        return {"startColumn": 1}
    indent = len(text) - len(text.lstrip())
    return {"startColumn": indent + 1, "endColumn": len(text) + 1}
