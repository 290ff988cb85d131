"""The tables of docs/reference/fixes.md, from what benchmarks/fixes.py kept."""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.fixes import RESULTS, TIERS, VERDICTS, removed
from torchproof.report import markdown

Row = dict[str, Any]
_LONGEST = 120


def kept() -> Row:
    found: Row = json.loads(RESULTS.read_text())
    return found


def measured(rows: list[Row], tier: str = "safe") -> list[Row]:
    return [row for row in rows if "breaks" in row[tier]]


def last_run(row: Row) -> Row:
    """The run that was allowed the most."""
    found: Row = row["unsafe"] if "breaks" in row["unsafe"] else row["safe"]
    return found


def summary() -> str:
    """What was run, and what each tier removes of all models' findings."""
    every = kept()
    rows = every["models"]
    ran = measured(rows)
    machine = every["machine"]
    said = (
        f"{len(ran)} targets, {sum(_training(row) for row in ran)} of them in training:"
        f" transformers {every['transformers']}, torch {every['torch']}, CPU,"
        f" {machine['arch']}, {machine['cores']} cores; `{every['command']}`"
    )
    if count := machine.get("at_once"):
        said += f", {count} targets at a time, {machine['threads']} thread each"
    said += "."
    failed = [row for row in rows if row not in ran]
    if failed:
        named = "; ".join(f"`{row['model']}`: {_error(row)}" for row in failed)
        said += f" Not measured: {named}."
    columns = (
        "edits",
        "targets",
        "breaks",
        "removed",
        "targets with a break",
        "recompiles",
        "outputs with fixes",
        "seconds a target (median)",
    )
    table = markdown.table(columns, [_tier(rows, tier) for tier in TIERS])
    return f"{said}\n\n{table}"


def _error(row: Row) -> str:
    return str(row["safe"]["error"])


def _training(row: Row) -> bool:
    return bool(row["model"].endswith("_training"))


def _tier(every: list[Row], tier: str) -> tuple[str, ...]:
    rows = measured(every, tier)
    gone, found = removed(rows, tier)
    share = f"{gone} ({gone / found:.0%})" if found else "-"
    broken = sum(row[tier]["breaks"]["before"] > 0 for row in rows)
    left = sum(row[tier]["breaks"]["after"] > 0 for row in rows)
    recompiles = [row[tier]["recompiles"] for row in rows]
    before = sum(each["before"] + each["uncovered"] for each in recompiles)
    after = sum(each["after"] for each in recompiles)
    verdicts = Counter(row[tier]["outputs"] for row in rows)
    outputs = ", ".join(f"{verdicts[v]} {v}" for v in VERDICTS if verdicts[v]) or "-"
    return (
        "safe" if tier == "safe" else "safe and unsafe",
        str(len(rows)),
        str(found),
        share,
        f"{broken} -> {left}",
        f"{before} -> {after}",
        outputs,
        f"{statistics.median(row[tier]['seconds'] for row in rows):.0f}"
        if rows
        else "-",
    )


def models() -> str:
    """A row for each target with a finding; the others in one sentence."""
    rows = measured(kept()["models"])
    clean = [row for row in rows if not _findings(row)]
    columns = (
        "target",
        "breaks, safe",
        "breaks, unsafe",
        "recompiles, safe",
        "recompiles, unsafe",
        "fixes",
        "rejected",
        "seconds",
    )
    table = markdown.table(columns, [_model(row) for row in rows if _findings(row)])
    named = ", ".join(f"`{row['model']}`" for row in clean)
    return f"{table}\n\nNothing to fix in: {named}." if clean else table


def _findings(row: Row) -> int:
    found: int = sum(row["safe"][what]["before"] for what in ("breaks", "recompiles"))
    return found


def _model(row: Row) -> tuple[str, ...]:
    counts = [
        _change(row[tier][what]) if what in row[tier] else "-"
        for what in ("breaks", "recompiles")
        for tier in TIERS
    ]
    last = last_run(row)
    return (
        f"`{row['model']}`",
        *counts,
        str(len(last["accepted"])),
        str(len(last["rejected"])),
        " + ".join(f"{row[tier]['seconds']:.0f}" for tier in _tiers_run(row)),
    )


def _tiers_run(row: Row) -> list[str]:
    alone = "breaks" not in row["unsafe"]
    same = alone or row["safe"]["command"] == row["unsafe"]["command"]
    return ["safe"] if same else list(TIERS)


def _change(counts: dict[str, int]) -> str:
    hidden = f" (+{counts['uncovered']})" if counts["uncovered"] else ""
    return f"{counts['before']}{hidden} -> {counts['after']}"


def accepted() -> str:
    """Every edit that was accepted, with the targets it helps."""
    columns = ("code", "place", "edit", "tier", "targets")
    return _grouped("accepted", columns, lambda fix: (fix["title"], fix["tier"]))


def rejected() -> str:
    """Every edit that was rejected, with the reason."""
    columns = ("code", "place", "edit", "reason", "targets")
    return _grouped("rejected", columns, lambda fix: (fix["title"], fix["why"]))


def left() -> str:
    """Every finding that is left with all tiers, with the reason."""
    columns = ("code", "place", "line", "reason", "targets")
    return _grouped("left", columns, lambda each: (f"`{each['source']}`", each["why"]))


def _grouped(
    name: str, columns: tuple[str, ...], texts: Callable[[Row], tuple[str, str]]
) -> str:
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for row in measured(kept()["models"]):
        for each in last_run(row)[name]:
            code = each.get("code") or ", ".join(each["codes"])
            shown = (_short(text) for text in texts(each))
            targets = groups[code, _place(each), *shown]
            if row["model"] not in targets:
                targets.append(row["model"])
    return markdown.table(columns, _most_common(groups.items()))


def _most_common(
    groups: Iterable[tuple[tuple[str, ...], list[str]]],
) -> Iterator[tuple[str, ...]]:
    for key, targets in sorted(groups, key=lambda group: (-len(group[1]), group[0])):
        yield (*key, ", ".join(f"`{name}`" for name in targets))


def _place(each: Row) -> str:
    if not each["file"]:
        return "-"
    return f"{Path(each['file']).name}:{each['line']}"


def _short(text: str) -> str:
    flat = " ".join((text or "-").split())
    if len(flat) <= _LONGEST:
        return flat
    end = "...`" if flat.startswith("`") else "..."
    return f"{flat[:_LONGEST]}{end}"


TABLES = {
    "fixes-summary": summary,
    "fixes-models": models,
    "fixes-accepted": accepted,
    "fixes-rejected": rejected,
    "fixes-left": left,
}
