"""What the rows of the survey say, for the program that keeps them and for its page.

Needs no torch: the page is made of the file alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results" / "zoo" / "cpu.json"
BREAKS = ("graph_break", "skipped_frame", "no_op", "compile_error")
RECOMPILES = ("recompile", "recompile_limit", "specialization")

Row = dict[str, Any]


def why_not_checked(row: Row) -> str | None:
    """Why a row says nothing about its model, or only a part; None: it is complete."""
    check = row["check"]
    if check is None:
        return "not run"
    part = check.get("parts", {}).get("breaks", {})
    if not check["error"] and part.get("status") == "failed":
        return f"not checked: only a part of the calls ran, {part['why']}"
    return f"not checked: {check['error']}" if check["error"] else None


def findings(row: Row, *kinds: str) -> list[Row]:
    """The findings of a check, of these kinds."""
    return [f for f in row["check"].get("findings", ()) if f["kind"] in kinds]


def settles(finding: Row) -> bool:
    """A recompile that happens once, and then the graph is dynamic."""
    return bool(finding["kind"] == "recompile" and finding["severity"] == "low")


def again(row: Row) -> list[Row]:
    """The recompiles that do not settle after one.

    A size that the code makes a constant may be one that does not change here: it
    counts only where the model was recompiled more than once.
    """
    is_again = row["check"].get("counts", {}).get("recompiles", 0) > 1
    return [
        finding
        for finding in findings(row, *RECOMPILES)
        if not settles(finding) and (is_again or finding["kind"] != "specialization")
    ]


def is_fixed(row: Row) -> bool:
    """Whether `fix` ran to its end."""
    return bool(row["fix"] and not row["fix"]["error"])


def breaks_found(row: Row) -> int:
    """The breaks that the check found, and those that an edit uncovered."""
    return len(findings(row, *BREAKS)) + int(row["fix"]["breaks"]["uncovered"])


def breaks_left(row: Row) -> int:
    """The breaks that the fixes that were proved leave."""
    return sum(finding["kind"] in BREAKS for finding in row["fix"]["left"])


def is_to_fix(row: Row) -> bool:
    """Whether `fix` has not run, and there is a finding that it may remove."""
    return row["fix"] is None and any(
        finding["status"] == "open" and not settles(finding)
        for finding in findings(row, *BREAKS, *RECOMPILES)
    )
