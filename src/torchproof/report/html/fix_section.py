"""The fix section of the page: diffs with receipts, settings, and what is left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchproof.records import Fix, Run, document
from torchproof.report import fix_words

_TONES = {"safe": "is-passed", "unsafe": "medium", "suggested": ""}
_KINDS = {"+": "added", "-": "removed", "@": "hunk"}


@dataclass(frozen=True)
class ShownFix:
    fix: Fix
    place: str
    tone: str
    lines: tuple[tuple[str, str], ...]  # of the diff: the CSS class and the text
    proof: str
    written: str


def content(run: Run) -> dict[str, Any]:
    """The variables of fixes.html."""
    return {
        "shown": list(_fixes(run)),
        "code": fix_words.code(run),
        "next": list(fix_words.next_steps(run)),
        "left": fix_words.left(run),
        "rejected": fix_words.rejected(run),
    }


def _fixes(run: Run) -> Iterator[ShownFix]:
    before: Fix | None = None
    for fix in fix_words.helpful(run):
        yield ShownFix(
            fix,
            fix_words.place(fix),
            _TONES.get(fix.tier, ""),
            tuple(_lines(fix.diff)),
            fix_words.proof(fix, before) if fix.receipt else "",
            fix_words.written(fix),
        )
        before = fix


def _lines(diff: str) -> Iterator[tuple[str, str]]:
    for line in document(diff).rstrip("\n").split("\n") if diff else ():
        head = line.startswith(("--- ", "+++ "))
        yield "file" if head else _KINDS.get(line[:1], "same"), line
