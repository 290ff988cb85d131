"""The tables of docs/pack.md and docs/load.md, read from benchmarks/results."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchproof.report import markdown

KEPT = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
_COLUMNS = (
    "program",
    "failure",
    "form",
    "reduced",
    "output with torch alone",
)
_LONGEST = 110


def repros() -> str:
    """A row for each failing program that is packed."""
    kept = json.loads((KEPT / "repro-packs-cpu.json").read_text())
    packs = kept["packs"]
    same = sum(pack["same"] for pack in packs)
    machine = kept["machine"]
    said = (
        f"{same} of {len(packs)} packs fail as stated with torch alone"
        f" (torch {kept['torch']}, CPU, {machine['arch']}, {machine['cores']} cores)."
    )
    return f"{said}\n\n{markdown.table(_COLUMNS, _rows(packs))}"


def _rows(packs: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for pack in packs:
        size = pack["size"]
        change = f"{size['first']} to {size['last']} {size['unit']}" if size else "-"
        flag = " with `--minify`" if pack["minified"] else ""
        yield (
            f"{pack['about']}{flag}",
            pack["kind"],
            pack["form"] or "-",
            change if size and size["first"] != size["last"] else "-",
            f"`{_short(pack['verdict'])}`" if pack["same"] else "**not packed**",
        )


def _short(verdict: str) -> str:
    told = verdict.removeprefix("FAILS AS STATED: ").replace("`", "'")
    return told if len(told) <= _LONGEST else f"{told[:_LONGEST]}..."


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
