"""The tables of docs/reference/graph-coverage.md, from benchmarks/graph_coverage.py."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.graph_coverage import PREFIX, RESULTS, TRAINING, recorded_of
from torchproof.report import markdown

Row = dict[str, Any]
_NOTHING = "-"


def kept() -> Row:
    found: Row = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"models": []}
    return found


def measured() -> list[Row]:
    return [row for row in kept()["models"] if "error" not in row]


def summary() -> str:
    """What was run, and how much of it is recorded."""
    every, rows = kept(), measured()
    if not rows:
        return _NOTHING
    models = {_model(row) for row in rows}
    said = (
        f"{len(models)} models in {len(rows)} steps: transformers"
        f" {every['transformers']}, timm {every['timm']}, torch {every['torch']},"
        f" {rows[0]['gpu']}, commit {every['commit']}; `{every['command']}`,"
        f" {every['at_once']} models at a time."
    )
    failed = [row for row in every["models"] if "error" in row]
    if failed:
        named = "; ".join(f"`{row['model']}`: {_flat(row['error'])}" for row in failed)
        said += f" Not measured, because the model or its eager step fails: {named}."
    columns = (
        "steps",
        "number",
        "recorded",
        "host sync in eager",
        "recorded of the others",
        "outputs of replays",
    )
    kinds = {
        "inference": [row for row in rows if not row["model"].endswith(TRAINING)],
        "training": [row for row in rows if row["model"].endswith(TRAINING)],
        "all": rows,
    }
    table = markdown.table(columns, [_kind(name, kinds[name]) for name in kinds])
    return f"{said}\n\n{table}"


def _model(row: Row) -> str:
    return str(row["model"].removesuffix(TRAINING))


def _kind(name: str, rows: list[Row]) -> tuple[str, ...]:
    count, free = recorded_of(rows)
    verdicts = Counter(row["outputs"] or "-" for row in rows if row["recorded"])
    return (
        name,
        str(len(rows)),
        str(sum(row["recorded"] for row in rows)),
        str(len(rows) - free),
        f"{count} of {free} ({count / free:.0%})" if free else _NOTHING,
        ", ".join(f"{n} {verdict}" for verdict, n in verdicts.most_common())
        or _NOTHING,
    )


def reasons() -> str:
    """Every reason why a step is not recorded, with the steps."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in measured():
        if not row["recorded"]:
            stop = row["stop"] or {"reason": _NOTHING}
            waits = "yes" if row["host_sync"] else "no"
            groups[_flat(stop["reason"]), waits].append(f"`{row['model']}`")
    if not groups:
        return _NOTHING
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return markdown.table(
        ("reason", "host sync in eager", "number", "steps"),
        [(*key, str(len(names)), ", ".join(names)) for key, names in ordered],
    )


def steps() -> str:
    """A row for each step."""
    if not (rows := measured()):
        return _NOTHING
    columns = (
        "step",
        "recorded",
        "outputs",
        "host sync in eager",
        "first reason at",
    )
    order = sorted(rows, key=lambda row: row["model"].startswith(PREFIX))
    return markdown.table(columns, map(_step, order))


def _step(row: Row) -> tuple[str, ...]:
    stop = row["stop"] or {}
    return (
        f"`{row['model']}`",
        "yes" if row["recorded"] else "no",
        (row["recorded"] and row["outputs"]) or _NOTHING,
        _place(row["host_sync"]),
        _place(stop.get("place")),
    )


def _place(place: str | None) -> str:
    return f"`{Path(place).name}`" if place else _NOTHING


def _flat(text: str) -> str:
    return " ".join(text.split())


TABLES = {
    "graph-coverage-summary": summary,
    "graph-coverage-reasons": reasons,
    "graph-coverage-steps": steps,
}
