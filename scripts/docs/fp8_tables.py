"""The table of FP8 weights in docs/reference/workloads.md, from benchmarks/fp8.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.fp8 import RESULTS, ROWS
from torchproof.report import markdown

Row = dict[str, Any]
_NOTHING = "-"
_COLUMNS = ("row", "arm", "reserved", "error", "bound", "product")
_REFERENCE = ("small-bf16", "40b-bf16")  # in eager; others are compared with these


def table() -> str:
    """One row for each arm whose outputs were compared, and for the references."""
    if not RESULTS.exists():
        return _NOTHING
    known = json.loads(RESULTS.read_text())
    said = (
        f"{known['device']}, torch {known['torch']}, commit"
        f" {known['commit'] or _NOTHING}; `{known['command']}`."
    )
    rows = [
        _cells(name, arm, row)
        for name, arms in ROWS.items()
        for arm in arms
        if is_compared(name, arm, row := known["rows"].get(name, {}).get(arm, {}))
    ]
    return said + "\n\n" + markdown.table(_COLUMNS, rows)


def is_compared(name: str, arm: str, row: Row) -> bool:
    if name in _REFERENCE and arm == "eager":
        return bool(row)
    return not name.startswith("tiny") and row.get("error") is not None


def _cells(name: str, arm: str, row: Row) -> tuple[str, ...]:
    return (
        f"`{name}`",
        arm if row.get("recordings") != 0 else f"{arm}, not recorded",
        _NOTHING if row["reserved"] is None else f"{row['reserved'] >> 20:,} MiB",
        _decimals(row["error"]),
        _decimals(row.get("error_bound")),
        row.get("product", _NOTHING),
    )


def _decimals(error: float | None) -> str:
    return _NOTHING if error is None else f"{error:.3f}"


TABLES = {"fp8": table}
