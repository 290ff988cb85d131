"""Renders open findings as a GitLab code-quality report (Code Climate JSON).

GitLab links each entry to a line of the repository. A finding in an installed package,
or in no file, is therefore put on the first line of the target, with its own place in
the text.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

from torchproof.records import SEVERITIES, CauseTree, Finding, Run, line
from torchproof.report import rank_sections, run_words, sarif

LEVELS = {"high": "critical", "medium": "major", "low": "minor"}

Plain = dict[str, Any]


def render(run: Run) -> str:
    still_open = [f for f in run.findings if f.status == "open"]
    tree = CauseTree(still_open)
    still_open.sort(key=lambda f: (tree.is_effect(f), SEVERITIES.index(f.severity)))
    before = Counter[str]()
    entries = []
    for finding in still_open:
        effect = tree.is_effect(finding)
        level = "info" if effect else LEVELS[tree.severity(finding)]
        entries.append(_entry(finding, run, level, before[finding.identity]))
        before[finding.identity] += 1
    entries += [_failure(text, run) for text in run_words.failures(run)]
    return json.dumps(entries, indent=1) + "\n"


def _failure(text: str, run: Run) -> Plain:
    """What the run could not do, on the first line of the target."""
    target = line(sarif.file_of(run.target) or run.target).removeprefix("./")
    known = hashlib.sha256(f"incomplete/{run.target}/{text}".encode(errors="replace"))
    return {
        "description": f"{line(text)}.",
        "check_name": "incomplete",
        "fingerprint": known.hexdigest(),
        "severity": "critical",
        "location": {"path": target or "-", "lines": {"begin": 1}},
    }


def _entry(finding: Finding, run: Run, level: str, number: int) -> Plain:
    path, row = _place(finding, run)
    return {
        "description": _description(finding, run, path),
        "check_name": line(finding.code) or "-",
        "fingerprint": _fingerprint(finding, number),
        "severity": level,
        "location": {"path": path, "lines": {"begin": row}},
    }


def _place(finding: Finding, run: Run) -> tuple[str, int]:
    file = line(finding.file or "").removeprefix("./")
    if file and not file.startswith(("<", "/")):
        return file, finding.line or 1
    target = line(sarif.file_of(run.target) or file or run.target)
    return target.removeprefix("./") or "-", 1


def _description(finding: Finding, run: Run, path: str) -> str:
    ranks = rank_sections.only_on(finding, run)
    message = f"{finding.message} ({ranks})" if ranks else finding.message
    own = line(finding.file or "").removeprefix("./")
    if own and own != path:
        message = f"{message} (at {own}:{finding.line or '-'})"
    texts = (message, f"Fix: {finding.fix}")
    return " ".join(f"{line(text).rstrip('.')}." for text in texts)


def _fingerprint(finding: Finding, number: int) -> str:
    """Of the finding, whatever its line; GitLab shows one entry per fingerprint."""
    text = f"{finding.identity}/{number}" if number else finding.identity
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
