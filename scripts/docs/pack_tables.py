"""The table of docs/load.md, read from benchmarks/results."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from torchproof.report import markdown

KEPT = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
_STARTS: tuple[str, ...] = ("target", "device", "cold", "from the pack", "share")
_STARTS += ("imports", "share without imports", "graphs hit")


def starts() -> str:
    """A row for each target whose starts are measured."""
    kept = sorted((KEPT / "warm-start").glob("*.json"))
    found = [json.loads(file.read_text()) for file in kept]
    return markdown.table(_STARTS, map(_start, found))


def _start(row: dict[str, Any]) -> tuple[str, ...]:
    times = {
        arm: [s["seconds"] for s in row["starts"] if s["arm"] == arm]
        for arm in ("cold", "pack", "imports")
    }
    shown = {arm: f"{statistics.median(seen):.1f} s" for arm, seen in times.items()}
    last = row["starts"][-1]["environment"]
    packed = [s for s in row["starts"] if s["arm"] == "pack"]
    device = last.get("gpu") or f"CPU, {last['machine']}, {last['cores']} cores"
    return (
        row["row"],
        f"{device}, torch {last['torch']}",
        shown["cold"],
        shown["pack"],
        f"{row['ratio']:.2f}",
        shown["imports"],
        f"{row['ratio_without_imports']:.2f}",
        f"{min(s['graphs'] for s in packed)} of {packed[0]['of']}",
    )
