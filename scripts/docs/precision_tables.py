"""The tables of docs/reference/precision.md: the judged sample, training scripts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def judged() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / "precision.json").read_text())
    return found


def summary() -> str:
    """What was read, how much was found, and how much of the sample is right."""
    every = judged()
    sample = every["sample"]
    verdicts = Counter(row["verdict"] for row in sample)
    lines = [
        f"transformers {every['transformers']}: {every['files']} files read in"
        f" {every['seconds']:g} s on {every['cores']} cores, {every['found']} findings."
        f" Of {len(sample)} drawn at random (seed {every['seed']}),"
        f" **{verdicts['right']} are right** and {verdicts['wrong']} wrong.",
        "",
        "| code | found | in the sample | right |",
        "|---|---|---|---|",
    ]
    for code, count in every["codes"].items():
        mine = [row for row in sample if row["code"] == code]
        right = sum(row["verdict"] == "right" for row in mine)
        lines.append(f"| {code} | {count} | {len(mine)} | {right if mine else '-'} |")
    return "\n".join(lines)


def sample() -> str:
    """Every judged finding, with why."""
    lines = ["| verdict | code | place | line | why |", "|---|---|---|---|---|"]
    for row in judged()["sample"]:
        place = f"{row['file'].removeprefix('transformers/')}:{row['line']}"
        code = row["source"].replace("|", "\\|").replace("`", "'")
        lines.append(
            f"| {row['verdict']} | {row['code']} | {place} | `{code[:90]}` |"
            f" {row['why'].replace('|', chr(92) + '|')} |"
        )
    return "\n".join(lines)


def scripts() -> str:
    """Training scripts of library models: what torch logs, and whether check agrees."""
    every = json.loads((RESULTS / "library_scripts.json").read_text())
    lines = [
        f"torch {every['torch']}, transformers {every['transformers']}:",
        "",
        "| model, how it is compiled | breaks that torch logs | recompiles | check |",
        "|---|---|---|---|",
    ]
    for name, row in every["rows"].items():
        places = ", ".join(f"`{file}:{n}`" for file, n in row["places"]) or "-"
        agrees = "; ".join(row["disagreements"]) or "agrees"
        lines.append(f"| {name} | {places} | {row['recompiles']} | {agrees} |")
    return "\n".join(lines)


TABLES = {
    "precision summary": summary,
    "precision sample": sample,
    "library scripts": scripts,
}
