"""The tables of docs/reference/precision.md: judged findings, training scripts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def judged(name: str = "precision.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return found


def overview() -> str:
    """Runs next to readings: how many findings were judged, and how many are right."""
    others, ran = judged("precision-others.json"), judged("compile_users.json")
    packages = {target["package"] for target in ran["targets"]}
    lines = [
        "| what was judged | findings | right | wrong |",
        "|---|---|---|---|",
        _counted("static, transformers", judged()["sample"]),
        _counted(f"static, {len(others['packages'])} other packages", others["sample"]),
        _counted(
            f"dynamic, {len(ran['targets'])} programs with {len(packages)} packages,"
            " all findings above `low`",
            ran["findings"],
        ),
    ]
    return "\n".join(lines)


def _counted(what: str, rows: list[dict[str, Any]]) -> str:
    verdicts = Counter(row["verdict"] for row in rows)
    return f"| {what} | {len(rows)} | {verdicts['right']} | {verdicts['wrong']} |"


def others() -> str:
    """The findings in other packages, in short, and the wrong ones."""
    every = judged("precision-others.json")
    lines = [
        f"{len(every['packages'])} packages: {every['files']} files, {every['found']}"
        f" findings above `low`, of which {len(every['sample'])} were drawn"
        f" (seed {every['seed']}).",
        "",
        "| code | found | in the sample | right |",
        "|---|---|---|---|",
        *_codes(every),
        "",
        *(
            f"Wrong: {row['code']} at `{row['file']}:{row['line']}`: {row['why']}."
            for row in every["sample"]
            if row["verdict"] == "wrong"
        ),
    ]
    return "\n".join(lines)


def users() -> str:
    """Programs that compile packages of others: what was found, and what was wrong."""
    every = judged("compile_users.json")
    lines = [
        f"torch {every['torch']}, Python {every['python']}; torch's log confirms"
        f" {sum(row['logged'] for row in every['findings'])} of"
        f" {len(every['findings'])} findings as far as they say what happened:",
        "",
        "| code | findings | right | fix fits |",
        "|---|---|---|---|",
    ]
    for code in sorted({row["code"] for row in every["findings"]}):
        mine = [row for row in every["findings"] if row["code"] == code]
        right = sum(row["verdict"] == "right" for row in mine)
        fits = sum(bool(row["fits"]) for row in mine)
        lines.append(f"| {code} | {len(mine)} | {right} | {fits} |")
    lines += ["", "| wrong | program | place | why |", "|---|---|---|---|"]
    lines += [
        f"| {row['code']} | {row['target']} | `{row['place']}` | {row['why']} |"
        for row in every["findings"]
        if row["verdict"] == "wrong"
    ]
    return "\n".join(lines)


def programs() -> str:
    """Every program: breaks and recompiles in torch's log and in check's counts."""
    lines = [
        "| program | package | findings | breaks in torch's log without a finding |"
        " recompiles: torch, check |",
        "|---|---|---|---|---|",
    ]
    for each in judged("compile_users.json")["targets"]:
        logged, counted = each["recompiles"]
        lines.append(
            f"| {each['name']} | {each['package']} {each['version'] or ''} |"
            f" {each['loud']} | {len(each['unreported'])} | {logged}, {counted} |"
        )
    return "\n".join(lines)


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
    return "\n".join([*lines, *_codes(every)])


def _codes(every: dict[str, Any]) -> list[str]:
    """For each rule, how much was found, sampled and right."""
    lines = []
    for code, count in every["codes"].items():
        mine = [row for row in every["sample"] if row["code"] == code]
        right = sum(row["verdict"] == "right" for row in mine)
        lines.append(f"| {code} | {count} | {len(mine)} | {right if mine else '-'} |")
    return lines


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
    "precision overview": overview,
    "other packages": others,
    "compile users": users,
    "compile programs": programs,
    "precision summary": summary,
    "precision sample": sample,
    "library scripts": scripts,
}
