"""How much `torchproof fix` cures in real models: a sweep over models of transformers.

    python benchmarks/fixes.py [NAME ...] [--effort quick] [--again] [--write]

For each factory of benchmarks/transformers_models.py it runs `torchproof fix`, and runs
it again with `--unsafe` where something is left and an edit was rejected as unsafe.
With `--write` each row goes to benchmarks/results/fixes-cpu.json as it ends. A model
that has a row is left out, so that a sweep that was cut off continues; with `--again` a
row of another commit is replaced. Exit code 1 when an accepted fix changed an output,
or when fewer breaks are removed than the targets below.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from torchproof.records.fixes import NEEDS_UNSAFE

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "fixes-cpu.json"
MODELS = HERE / "transformers_models.py"
TIERS = {"safe": (), "unsafe": ("--unsafe",)}
TARGETS = {"safe": 0.60, "unsafe": 0.75}
BREAKS = {"graph_break", "skipped_frame"}
RECOMPILES = {"recompile", "recompile_limit"}
VERDICTS = ("same", "rounding", "random", "wrong")  # on outputs, the best first
LIMIT_S = 1800

Row = dict[str, Any]


def names() -> list[str]:
    """The factories, asked of a process of their own: they load transformers."""
    code = "import transformers_models as models; print(*models.FACTORIES, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def fixed(name: str, tier: str, effort: str) -> Row:
    """What `torchproof fix` does to one model."""
    words = ["--format", "json", "--effort", effort, "-q", *TIERS[tier]]
    words += ["--train"] if name.endswith("_training") else []
    program = [sys.executable, "-m", "torchproof", "fix", f"{MODELS}:{name}"]
    known: Row = {
        "command": " ".join(
            ["torchproof fix", f"benchmarks/{MODELS.name}:{name}", *words]
        )
    }
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:  # where the run is saved
        try:
            done = subprocess.run(
                [*program, *words],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return known | {"error": f"it took longer than {LIMIT_S} s"}
    known["seconds"] = round(time.monotonic() - begin, 1)
    if not done.stdout.strip():
        return known | {"error": done.stderr.strip().splitlines()[-1]}
    return known | outcome(json.loads(done.stdout))


def outcome(run: Row) -> Row:
    """The part of a run that the table needs."""
    fixes, summary = run["fixes"], run["fixing"]
    before, after = run["findings"], summary["remaining"]
    accepted = [fix for fix in fixes if fix["status"] in {"verified", "applied"}]
    verdicts = [fix["receipt"]["outputs"] for fix in accepted if fix["receipt"]]
    return {
        "breaks": changed(before, after, accepted, BREAKS),
        "recompiles": changed(before, after, accepted, RECOMPILES),
        "counts": {"before": run["counts"], "after": summary["counts"]},
        "proofs": summary["proofs"],
        "outputs": max(verdicts, key=VERDICTS.index, default=None),
        "accepted": [
            {key: fix[key] for key in ("title", "tier", "codes", "file", "line")}
            | {"receipt": fix["receipt"]}
            for fix in map(portable, accepted)
        ],
        "rejected": [
            {key: fix[key] for key in ("title", "tier", "codes", "file", "line", "why")}
            for fix in map(portable, fixes)
            if fix["status"] == "rejected"
        ],
        "left": [
            {key: finding[key] for key in ("code", "kind", "file", "line", "source")}
            | {"why": summary["reasons"].get(finding["identity"], "")}
            for finding in map(portable, after)
        ],
    }


def changed(
    before: list[Row], after: list[Row], accepted: list[Row], kinds: set[str]
) -> dict[str, int]:
    """Distinct findings before and after, and those that edits uncovered.

    A skipped function hides the findings behind it. What an edit uncovers counts as
    there before: it is in `uncovered`, and in `after` unless it was cured as well.
    """

    def of(findings: list[Row]) -> set[str]:
        chosen = (f for f in findings if f["kind"] in kinds and f["status"] == "open")
        return {finding["identity"] for finding in chosen}

    first, last = of(before), of(after)
    families = {"GB"} if kinds == BREAKS else {"RC"}
    cured = {
        identity
        for fix in accepted
        if {code[:2] for code in fix["codes"]} & families
        for identity in fix["findings"]
    }
    return {
        "before": len(first),
        "uncovered": len((last | cured) - first),
        "after": len(last),
    }


def portable(record: Row) -> Row:
    """With the path that a library's file has in every environment."""
    path = (record.get("file") or "").rpartition("site-packages/")[2]
    source = (record.get("source") or "").strip()
    return {**record, "file": path or None, "source": source}


def swept(name: str, effort: str) -> Row:
    """A model in each tier; the second one only where it can differ."""
    safe = fixed(name, "safe", effort)
    row: Row = {"model": name, "commit": commit(), "safe": safe}
    withheld = any(NEEDS_UNSAFE in each["why"] for each in safe.get("rejected", ()))
    more = withheld and safe["left"]
    row["unsafe"] = fixed(name, "unsafe", effort) if more else safe
    return row


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def kept() -> dict[str, Row]:
    if not RESULTS.exists():
        return {}
    return {row["model"]: row for row in json.loads(RESULTS.read_text())["models"]}


def keep(rows: dict[str, Row], effort: str, order: list[str]) -> None:
    known = {
        "command": f"python benchmarks/fixes.py --effort {effort} --write",
        "machine": {"arch": platform.machine(), "cores": os.cpu_count()},
        "device": "cpu",
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "transformers": metadata.version("transformers"),
        "torchproof": metadata.version("torchproof"),
        "models": [rows[name] for name in order if name in rows],
    }
    written = RESULTS.with_suffix(".tmp")
    written.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    written.replace(RESULTS)


def removed(rows: list[Row], tier: str) -> tuple[int, int]:
    """Distinct breaks of all models that edits removed, and all of them."""
    found = [row[tier]["breaks"] for row in rows if "breaks" in row[tier]]
    every = sum(each["before"] + each["uncovered"] for each in found)
    return every - sum(each["after"] for each in found), every


def line(row: Row) -> str:
    cells = [f"{row['model']:32}"]
    for tier in TIERS:
        found = row[tier]
        if "error" in found:
            cells.append(re.sub(r"\s+", " ", found["error"])[:60])
            continue
        breaks, recompiles = found["breaks"], found["recompiles"]
        cells.append(
            f"{tier}: breaks {breaks['before']}+{breaks['uncovered']} ->"
            f" {breaks['after']}, recompiles {recompiles['before']} ->"
            f" {recompiles['after']}, {found['seconds']:.0f} s;"
        )
    return " ".join(cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--effort", default="quick", choices=("quick", "normal"))
    parser.add_argument(
        "--again", action="store_true", help="also rows of other commits"
    )
    parser.add_argument("--write", action="store_true", help="keep each row")
    given = parser.parse_args()
    order = names()
    rows = kept() if given.write else {}
    for name in given.names or order:
        known = rows.get(name)
        if known and not (given.again and known["commit"] != commit()):
            continue
        rows[name] = swept(name, given.effort)
        print(line(rows[name]), flush=True)
        if given.write:
            keep(rows, given.effort, order)
    return verdict(list(rows.values()))


def verdict(rows: list[Row]) -> int:
    wrong = [row["model"] for row in rows if row["unsafe"].get("outputs") == "wrong"]
    if wrong:
        print(f"outputs differ: {', '.join(wrong)}")
    missed = bool(wrong)
    for tier, target in TARGETS.items():
        gone, every = removed(rows, tier)
        share = gone / every if every else 1.0
        print(f"{tier}: {gone} of {every} breaks removed ({share:.0%})")
        missed |= share < target
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
