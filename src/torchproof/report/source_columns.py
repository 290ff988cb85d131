"""Finds the columns of the source line that a finding is about."""

from __future__ import annotations

import re

from torchproof.records import Finding


def marked(finding: Finding, line: str) -> tuple[int, int]:
    """The recorded columns, else the code that the message quotes, else the line."""
    start, end = finding.column, finding.end_column
    if start and end and 0 < start < end <= len(line) + 1:
        return start - 1, end - 1
    for quoted in re.findall(r"`([^`]+)`", finding.message):
        match = re.search(rf"(?<!\w){re.escape(quoted)}(?!\w)", line)
        if match:
            return match.span()
    return len(line) - len(line.lstrip()), len(line.rstrip())
