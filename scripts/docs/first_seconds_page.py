"""The tables of docs/reference/first-seconds.md: benchmarks/first_seconds.py,
benchmarks/first_calls.py and benchmarks/start_memory.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import start_memory
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


def memory() -> str:
    """The peak of each arm until it is recorded, and its ratio to reduce-overhead."""
    if not start_memory.RESULTS.exists():
        return _NOTHING
    known = json.loads(start_memory.RESULTS.read_text())
    rows = [
        (f"`{name}`", *_peaks(row["arms"]), f"`{row['commit']}`")
        for name, row in known["rows"].items()
    ]
    said = f"{known['device']}, torch {known['torch']}; `{known['command']}`."
    columns = ("step", *start_memory.ARMS, "commit")
    return said + "\n\n" + markdown.table(columns, rows)


def _peaks(arms: Row) -> list[str]:
    theirs = arms["reduce-overhead"]["reserved"]
    cells = []
    for name in start_memory.ARMS:
        peak = arms.get(name, {}).get("reserved")
        cell = f"{peak >> 20} MiB ({_ratio(peak, theirs)}x)" if peak else _NOTHING
        cells.append(cell)
    return cells


def first_calls() -> str:
    """The first call of each arm, against reduce-overhead, and its largest parts."""
    known = json.loads((RESULTS.parent / "first-calls-cuda.json").read_text())
    rows = []
    for name, row in known["rows"].items():
        theirs = _fastest(row["arms"]["reduce-overhead"])["first_s"]
        for arm, starts in row["arms"].items():
            start = _fastest(starts)
            phases = sorted(start["phases"].items(), key=lambda each: -each[1])
            rows.append(
                (
                    f"`{name}`",
                    arm,
                    ", ".join(_number(each["first_s"], "s") for each in starts),
                    f"{_ratio(start['first_s'], theirs)}x",
                    ", ".join(f"{phase} {s:.1f} s" for phase, s in phases[:4]),
                )
            )
    said = (
        f"{known['device']}, torch {known['versions']['torch']}, commit"
        f" {known['commit']}; `{known['command']}`."
    )
    columns = ("step", "start", "first calls", "ratio", "largest parts")
    return said + "\n\n" + markdown.table(columns, rows)


def _fastest(starts: list[Row]) -> Row:
    """The start that waited least for the disk and for other work."""
    return min(starts, key=lambda each: float(each["first_s"]))


TABLES = {"first-seconds": table, "first-calls": first_calls, "start-memory": memory}
