"""Renders open findings as a GitLab code-quality report (Code Climate JSON).

GitLab links each entry to a line of the repository. A finding in an installed package,
or in no file, is therefore put on the first line of the target, with its own place in
the text.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from torchproof.records import Finding, line
from torchproof.report import sarif
from torchproof.report.annotations import annotations_of
from torchproof.report.document import Block
from torchproof.report.finding_block import FindingBlock

LEVELS = {"high": "critical", "medium": "major", "low": "minor"}

Plain = dict[str, Any]


def render(blocks: Iterable[Block]) -> str:
    found, before = annotations_of(blocks), Counter[str]()
    target, entries = found.title.target, []
    for block in found.findings:
        entries.append(_entry(block, target, before[block.finding.identity]))
        before[block.finding.identity] += 1
    entries += [_failure(text, target) for text in found.failures]
    return json.dumps(entries, indent=1) + "\n"


def _failure(text: str, target: str) -> Plain:
    """What the run could not do, on the first line of the target."""
    path = line(sarif.file_of(target) or target).removeprefix("./")
    known = hashlib.sha256(f"incomplete/{target}/{text}".encode(errors="replace"))
    return {
        "description": f"{line(text)}.",
        "check_name": "incomplete",
        "fingerprint": known.hexdigest(),
        "severity": "critical",
        "location": {"path": path or "-", "lines": {"begin": 1}},
    }


def _entry(block: FindingBlock, target: str, number: int) -> Plain:
    path, row = _place(block.finding, target)
    return {
        "description": _description(block, path),
        "check_name": line(block.finding.code) or "-",
        "fingerprint": _fingerprint(block.finding, number),
        "severity": "info" if block.is_effect else LEVELS[block.severity],
        "location": {"path": path, "lines": {"begin": row}},
    }


def _place(finding: Finding, target: str) -> tuple[str, int]:
    file = line(finding.file or "").removeprefix("./")
    if file and not file.startswith(("<", "/")):
        return file, finding.line or 1
    path = line(sarif.file_of(target) or file or target)
    return path.removeprefix("./") or "-", 1


def _description(block: FindingBlock, path: str) -> str:
    finding = block.finding
    message = f"{finding.message} ({block.ranks})" if block.ranks else finding.message
    own = line(finding.file or "").removeprefix("./")
    if own and own != path:
        message = f"{message} (at {own}:{finding.line or '-'})"
    texts = (message, f"Fix: {finding.fix}")
    return " ".join(f"{line(text).rstrip('.')}." for text in texts)


def _fingerprint(finding: Finding, number: int) -> str:
    """Of the finding, whatever its line; GitLab shows one entry per fingerprint."""
    text = f"{finding.identity}/{number}" if number else finding.identity
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
