"""The table of docs/reference/first-seconds.md: benchmarks/first_seconds.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.first_seconds import ARMS, RESULTS
from torchproof.report import markdown

Row = dict[str, Any]
_NOTHING = "-"


def table() -> str:
    """One row for each step: our arm beside eager and reduce-overhead."""
    if not RESULTS.exists():
        return _NOTHING
    known = json.loads(RESULTS.read_text())
    seconds = f"{known['seconds']:g}"
    columns = (
        "step",
        "first answer: eager, reduce-overhead, ours",
        f"steps in {seconds} s: reduce-overhead, ours",
        "longest pause",
        "p99 / median while compiling",
        "reserved: reduce-overhead, ours",
        "stages",
    )
    rows = [_cells(name, row["arms"]) for name, row in known["rows"].items()]
    said = (
        f"{known['device']}, torch {known['torch']}, commit {known['commit']};"
        f" `{known['command']}`."
    )
    return said + "\n\n" + markdown.table(columns, rows)


def _cells(name: str, arms: Row) -> tuple[str, ...]:
    eager, theirs, ours = (arms.get(arm, {}) for arm in ARMS)
    return (
        f"`{name}`",
        ", ".join(_number(arm.get("first_s"), "s") for arm in (eager, theirs, ours)),
        ", ".join(str(arm.get("steps", _NOTHING)) for arm in (theirs, ours)),
        _number(ours["longest_pause_s"], "s"),
        _ratio(ours.get("p99_ms"), ours.get("median_ms")),
        ", ".join(_reserved(arm) for arm in (theirs, ours)),
        "; ".join(map(_stage, ours["stages"])),
    )


def _number(value: float | None, unit: str) -> str:
    return _NOTHING if value is None else f"{value:.3g} {unit}"


def _reserved(arm: Row) -> str:
    return f"{arm['reserved_bytes'] >> 20} MiB" if arm else _NOTHING


def _ratio(one: float | None, other: float | None) -> str:
    return _NOTHING if one is None or not other else f"{one / other:.2f}"


def _stage(stage: Row) -> str:
    begin = "" if stage["at_s"] is None else f" from {stage['at_s']:.1f} s"
    return f"{stage['strategy']} {stage['state']}{begin}"


TABLES = {"first-seconds": table}
