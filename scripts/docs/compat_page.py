"""The page on torch versions: the contract with private torch, and its tests."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from torchproof.torch_private.contract import Feature, contract

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "compat"
SUITES = ROOT / "benchmarks" / "results" / "test-runs"
PROBES = RESULTS / "probes"
INSTALLS = ROOT / "benchmarks" / "results" / "installs"


def _results(folder: Path = RESULTS) -> dict[str, Any]:
    """The results by versions of torch and Python, in their order."""
    paths = sorted(folder.glob("*.json"), key=lambda path: _numbers(path.stem))
    return {path.stem: json.loads(path.read_text()) for path in paths}


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _head(titles: str) -> list[str]:
    names = titles.split(", ")
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def _listed(failures: list[str]) -> list[str]:
    return ["", "Failed:", "", *failures] if failures else [""]


def versions() -> str:
    """The tests that ran on each version."""
    rows = _head(
        "torch, Python, machine, passed, failed, skipped, names missing, commit"
    )
    for result in _results().values():
        counts = result["counts"]
        cells = [
            result["torch"],
            result["python"],
            result.get("machine", "-"),
            *(str(counts.get(each, 0)) for each in ("passed", "failed", "skipped")),
            str(sum(map(len, result["missing"].values()))),
            result["commit"] + (" with changes" if result["modified"] else ""),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    failures = [
        f"- torch {result['torch']}, Python {result['python']}: `{name}`"
        for result in _results().values()
        for name in result["failed"]
    ]
    return "\n".join([*rows, *_listed(failures)])


def skips() -> str:
    """Why tests were skipped on each version, with their number."""
    rows = _head("torch, Python, tests, skipped because")
    for result in _results().values():
        reasons = Counter(
            "not a fault of this version"
            if why.startswith("not a fault on torch")
            else why.replace("|", "\\|")
            for why in result.get("skipped", {}).values()
        )
        rows += [
            f"| {result['torch']} | {result['python']} | {count} | {why} |"
            for why, count in sorted(reasons.items())
        ]
    return "\n".join(rows) if rows[2:] else "The reasons were not recorded."


def suites() -> str:
    """Whole suites that ran on other machines, with what failed there."""
    rows = _head("tests, torch, Python, device, passed, failed, skipped, commit")
    failures: list[str] = []
    for path in sorted(SUITES.glob("*.json")):
        result = json.loads(path.read_text())
        facts = [result[name] for name in ("torch", "python", "device")]
        counts = [str(result["counts"][n]) for n in ("passed", "failed", "skipped")]
        cells = [f"`{result['command']}`", *facts, *counts, result["commit"]]
        rows.append(f"| {' | '.join(cells)} |")
        failures += [f"- {result['device']}: `{name}`" for name in result["failed"]]
    return "\n".join([*rows, *_listed(failures)])


def installs() -> str:
    """How the wheel and the source distribution work in empty environments."""
    rows = _head(
        "installed, Python, torch, machine, contents, commands, passed, commit"
    )
    failures: list[str] = []
    for path in sorted(INSTALLS.glob("*.json"), key=lambda path: _numbers(path.stem)):
        result = json.loads(path.read_text())
        for each in result["distributions"]:
            commands, installed = each["commands"], each["installed"]
            cells = [
                f"`{each['file']}`",
                *(installed["python"], installed["torch"], result["machine"]),
                f"{len(each['differences'])} differences"
                if each["differences"]
                else "complete",
                *(str(len(commands)), str(sum(c["passed"] for c in commands))),
                result["commit"] + (" with changes" if result["modified"] else ""),
            ]
            rows.append(f"| {' | '.join(cells)} |")
            failures += [
                f"- `{each['file']}`, Python {installed['python']}: `{c['words']}`"
                for c in commands
                if not c["passed"]
            ]
    return "\n".join([*rows, *_listed(failures)])


def rules() -> str:
    """How many programs of each rule get their diagnosis on each version."""
    results = _results()
    codes = sorted({code for each in results.values() for code in each["rules"]})
    titles = [name.replace("-python", ", Python ") for name in results]
    rows = [f"| rule | {' | '.join(titles)} |", "|---" * (len(results) + 1) + "|"]
    for code in codes:
        cells = [_programs(each["rules"].get(code, {})) for each in results.values()]
        rows.append(f"| [{code}](rules.md#{code.lower()}) | {' | '.join(cells)} |")
    return "\n".join(rows)


def _programs(counts: dict[str, int]) -> str:
    passed, failed = counts.get("passed", 0), counts.get("failed", 0)
    if not passed + failed:
        return "-"
    return f"{passed} of {passed + failed}"


def features() -> str:
    """Every feature that needs private torch, and what happens without it."""
    rows = _head("feature, names, without them, lacking on torch, tests")
    for each in contract():
        count = sum(map(len, each.hooks.values()))
        cells = [
            each.name,
            str(count),
            each.without,
            _lacking(each),
            f"`{each.tests}`",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _lacking(feature: Feature) -> str:
    """The probed versions that lack a name of a feature."""
    names = {name for listed in feature.hooks.values() for name in listed}
    probed = {
        name.partition("-")[0]: feature.name in result["missing"]
        for name, result in _results(PROBES).items()
        if names <= set(result["probed"])
    }
    if not probed:
        return "not probed"
    return ", ".join(version for version, lacks in probed.items() if lacks) or "none"


def names() -> str:
    """The private names of each feature, with the parameters that are relied on."""
    return "\n\n".join(_feature(each) for each in contract())


def _feature(feature: Feature) -> str:
    rows = [f"**{feature.name}**", "", "| hook | names | seen in |", "|---|---|---|"]
    for hook, listed in feature.hooks.items():
        cells = [
            hook,
            "<br>".join(f"`{name}`" for name in listed),
            _seen(feature.name, listed),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _seen(feature: str, listed: tuple[str, ...]) -> str:
    """The versions that were probed for all names of a hook, and have them."""
    paths = [f"has no {name.partition('(')[0]}" for name in listed]
    versions = [
        name.partition("-")[0]
        for name, result in _results(PROBES).items()
        if set(listed) <= set(result["probed"])
        and not any(
            path in message
            for message in result["missing"].get(feature, ())
            for path in paths
        )
    ]
    return ", ".join(dict.fromkeys(versions)) or "-"


TABLES = {
    "versions": versions,
    "skips": skips,
    "suites": suites,
    "installs": installs,
    "rules": rules,
    "features": features,
    "names": names,
}
