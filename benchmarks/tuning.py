"""`torchproof tune` against exhaustive search over the same space, row by row.

    python -m benchmarks.tuning [--rows NAME,...] [--out FOLDER] [--seconds N]
        [--budget TIME] [--tuned-budget TIME] [--again] [--list]

Each row is searched twice, in processes and caches of their own: `--effort full`, which
tries all that applies, and as users do. Each search ends as one run,
FOLDER/ROW-exhaustive.json and FOLDER/ROW-tuned.json; one that is there is not made
again, so that a second start goes on where the first ended. A search that is cut off
goes on with its trials at the next start.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.side_by_side import Step
from benchmarks.whole_step import STEPS

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "h200" / "tuning"
SEARCHES = {"tuned": "normal", "exhaustive": "full"}
# What is searched: `--strategies` of both. Tuning kernels for minutes is left out.
SPACE = (
    "full",
    "regional",
    "nested",
    "eager+graph",
    "full+graph",
    "regional+graph",
    "nested+graph",
    "full:reduce-overhead",
)


class Work(NamedTuple):
    step: Step
    search: str

    def path(self, folder: Path) -> Path:
        return folder / f"{self.step.name}-{self.search}.json"


def main() -> int:
    options = _options()
    works = [*_works(options)]
    if options.list:
        print("\n".join(f"{w.step.name} {w.search}" for w in works))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    for work in works:
        left = options.seconds - (time.monotonic() - begin)
        if left < options.least:
            print(f"{left:.0f} s are left: the rest is for the next start")
            break
        _search(work, options, left)
    return 0


def _works(options: argparse.Namespace) -> Iterator[Work]:
    known = {step.name: step for step in STEPS}
    for name in [name for name in options.rows.split(",") if name] or known:
        for search in SEARCHES:
            work = Work(known[name], search)
            if options.again or not work.path(options.out).exists():
                yield work


def _search(work: Work, options: argparse.Namespace, left: float) -> None:
    """One search, in a folder that a later start finds again."""
    folder = options.work / f"{work.step.name}-{work.search}"
    folder.mkdir(parents=True, exist_ok=True)
    budget = options.budget if work.search == "exhaustive" else options.tuned_budget
    found = folder / "found.json"
    found.unlink(missing_ok=True)
    target, _, factory = work.step.target.rpartition(":")
    command = ["tune", f"{ROOT / target}:{factory}", "--effort", SEARCHES[work.search]]
    command += ["--budget", f"{min(budget, left - 20):.0f}s", "--recipe", "found.toml"]
    command += ["--strategies", ",".join(SPACE), "--overwrite", "--resume"]
    command += ["--train"] * work.step.train + ["--format", "json", "-o", str(found)]
    begin = time.monotonic()
    print(f"{work.step.name}: {work.search}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "torchproof", *command],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT / "src")),
        },
        timeout=left,
    )
    print(f"  exit {done.returncode}, {time.monotonic() - begin:.0f} s", flush=True)
    if found.exists() and done.returncode in (0, 1):
        # Where this machine keeps its checkout is nobody's business.
        text = found.read_text().replace(f"{ROOT}/", "").replace(f"{folder}/", "")
        work.path(options.out).write_text(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="names of rows; all by default")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "torchproof-tuning"
    )
    parser.add_argument("--seconds", type=float, default=3600.0, help="of all searches")
    parser.add_argument("--least", type=float, default=90.0, help="left to begin one")
    parser.add_argument("--budget", type=float, default=900.0, help="exhaustive")
    parser.add_argument("--tuned-budget", type=float, default=300.0)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
