"""The lines of code around a finding, with its own line and columns marked."""

from __future__ import annotations

from dataclasses import dataclass

from torchproof.records import Finding
from torchproof.report import source_columns

LONGEST = 400  # characters of a line; who wrote more can look it up
MOST = 24  # lines


@dataclass(frozen=True)
class Line:
    """`before`, `marked` and `after` are the line's text in three."""

    number: int
    before: str
    marked: str = ""
    after: str = ""
    here: bool = False


def lines(finding: Finding) -> list[Line]:
    """Empty where the run holds no source for the finding."""
    at = finding.line
    if at is None:
        return []
    texts, first = list(finding.context), finding.context_from
    if not texts or first is None or not first <= at < first + len(texts):
        texts, first = [finding.source or ""], at
    skipped = max(0, at - first - MOST // 2)
    texts, first = texts[skipped : skipped + MOST], first + skipped
    if not any(text.strip() for text in texts):
        return []
    indent = min(len(t) - len(t.lstrip()) for t in texts if t.strip())
    return [
        _line(finding, text, number, indent) for number, text in enumerate(texts, first)
    ]


def _line(finding: Finding, text: str, number: int, indent: int) -> Line:
    if number != finding.line:
        return Line(number, _short(text[indent:].rstrip()))
    start, end = (
        max(indent, column) for column in source_columns.marked(finding, text)
    )
    shown = text.rstrip()
    before, marked, after = shown[indent:start], shown[start:end], shown[end:]
    return Line(number, _short(before), _short(marked), _short(after), here=True)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."
