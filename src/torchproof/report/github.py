"""Renders a document as GitHub annotations (workflow commands), worst first.

GitHub shows ten annotations of each level per step, so the order decides which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from torchproof.records import SEVERITIES, document, line, shown
from torchproof.report.annotations import Annotations, annotations_of
from torchproof.report.document import Block, FixBlock
from torchproof.report.finding_block import FindingBlock

LEVELS = {"high": "error", "medium": "warning", "low": "notice"}


def render(blocks: Iterable[Block]) -> str:
    found = annotations_of(blocks)
    target = line(found.title.target)
    failed = [
        f"::error title=torchproof::{_data(f'{line(text)}, in {target}')}"
        for text in found.failures
    ]
    fixes = [_fix(block) for block in found.fixes if block.fix.file]
    lines = fixes if found.fixes else [_annotation(each) for each in found.findings]
    return "\n".join([*failed, *lines, _summary(found)]) + "\n"


def _annotation(block: FindingBlock) -> str:
    """A cause at the level of the worst it explains; an effect as a notice."""
    finding = block.finding
    properties = ",".join(f"{k}={_property(v)}" for k, v in _properties(block))
    why, fix = (line(text).rstrip(".") for text in (finding.cause, finding.fix))
    where = f" ({block.ranks})" if block.ranks else ""
    label = f"Fix ({block.draft}, not proved)" if block.draft else "Fix"
    text = f"{line(finding.message)}{where}\nWhy: {why}.\n{label}: {fix}."
    text += f"\n{document(block.diff.text).rstrip()}" if block.draft else ""
    level = LEVELS["low" if block.is_effect else block.severity]
    text += f"\nIt {line(block.explains)}." if block.effects else ""
    if block.is_effect:
        text += f"\nIt follows from {line(f'{block.causes} ({finding.certainty})')}."
    return f"::{level} {properties}::{_data(text)}"


def _fix(block: FixBlock) -> str:
    """A fix where it belongs, with its diff."""
    fix = block.fix
    place = [("file", line(shown(fix.file or ""))), ("line", fix.line or 1)]
    title = ("title", f"{', '.join(fix.codes)} {fix.tier}, {fix.status}")
    properties = ",".join(f"{k}={_property(v)}" for k, v in (*place, title))
    proved = f"proved: {block.proof}" if fix.receipt else ""
    parts = [line(fix.title), document(fix.diff), proved]
    return f"::notice {properties}::{_data(chr(10).join(filter(None, parts)))}"


def _properties(block: FindingBlock) -> Iterator[tuple[str, object]]:
    finding = block.finding
    if finding.file:
        yield "file", line(finding.file)
        if finding.line:
            yield "line", finding.line
            if finding.column and finding.end_column:
                yield "endLine", finding.line
                yield "col", finding.column
                yield "endColumn", finding.end_column
    yield "title", f"{finding.code} {finding.category}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: object) -> str:
    return _data(str(value)).replace(":", "%3A").replace(",", "%2C")


def _summary(found: Annotations) -> str:
    """One line that GitHub cannot read as a command, whatever the target's name."""
    title = found.title
    severities = Counter(block.severity for block in found.findings)
    tally = ", ".join(f"{n} {each}" for each in SEVERITIES if (n := severities[each]))
    what = f"{title.verb} of {line(title.target)}"
    what += f" ({tally})" if tally else ""
    what += f", run {line(title.run)}" if title.run else ""
    return f"torchproof: {what}: {line(found.result)}"
