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
_COLUMNS = (
    "row",
    "arm",
    "step (range)",
    "reserved",
    "first call",
    "error",
    "bound",
    "product",
)


def table() -> str:
    """One row for each arm that was asked for; dashes if it was not measured."""
    if not RESULTS.exists():
        return _NOTHING
    known = json.loads(RESULTS.read_text())
    said = (
        f"{known['device']}, torch {known['torch']}, commit"
        f" {known['commit'] or _NOTHING}; `{known['command']}`."
    )
    rows = [
        _cells(name, arm, known["rows"].get(name, {}).get(arm, {}))
        for name, arms in ROWS.items()
        if not name.startswith("tiny")
        for arm in arms
    ]
    return said + "\n\n" + markdown.table(_COLUMNS, rows)


def _cells(name: str, arm: str, row: Row) -> tuple[str, ...]:
    if "step_ms" not in row:
        reason = " ".join(str(row.get("failure", _NOTHING)).split())
        return (f"`{name}`", arm, reason, *[_NOTHING] * (len(_COLUMNS) - 3))
    step = f"{row['step_ms']:.1f} ms ({row['low_ms']:.1f} to {row['high_ms']:.1f})"
    if row.get("recordings") == 0:
        step += ", not recorded"
    return (
        f"`{name}`",
        arm,
        step,
        _NOTHING if row["reserved"] is None else f"{row['reserved'] >> 20:,} MiB",
        f"{row['first_call_s']:.1f} s",
        _decimals(row["error"]),
        _decimals(row.get("error_bound")),
        row.get("product", _NOTHING),
    )


def _decimals(error: float | None) -> str:
    return _NOTHING if error is None else f"{error:.3f}"


TABLES = {"fp8": table}
