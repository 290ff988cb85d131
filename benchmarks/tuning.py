"""`torchproof tune` against exhaustive search over the same space, row by row.

    python -m benchmarks.tuning [--rows NAME,...] [--training] [--forms]
        [--out FOLDER] [--seconds N] [--work FOLDER] [--earlier FOLDER]
        [--budget TIME] [--tuned-budget TIME] [--again] [--list]

Each row is searched twice, in processes and caches of their own: `--effort full`, which
tries all that applies, and as users do. With `--forms`, both leave out switches of the
compiler, which an exhaustive search would try on every form. Each search ends as one
run, FOLDER/ROW-exhaustive.json and FOLDER/ROW-tuned.json; one that is there is not made
again, so that a second start goes on where the first ended.

A search that `--seconds` cut off goes on with its trials at the next start, also on
another machine of the same kind: `--earlier` is the `--work` folder of that start. Its
run counts the seconds of all starts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
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


# The command line of `tune` without switches.
FORMS = """
import sys
from torchproof.cli import main
from torchproof.tuning import space
space.SWITCHES = ()
sys.exit(main())
"""


_FINALS_S = 20.0  # a search may end that much after its budget


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
    if options.earlier and options.earlier.exists():
        shutil.copytree(options.earlier, options.work, dirs_exist_ok=True)
    begin = time.monotonic()
    for work in works:
        left = options.seconds - (time.monotonic() - begin)
        if left < max(options.least, 2 * _FINALS_S):
            print(f"{left:.0f} s are left: the rest is for the next start")
            break
        _search(work, options, left)
    return 0


def _works(options: argparse.Namespace) -> Iterator[Work]:
    known = {step.name: step for step in STEPS if step.train or not options.training}
    for name in [name for name in options.rows.split(",") if name] or known:
        for search in SEARCHES:
            work = Work(known[name], search)
            if options.again or not work.path(options.out).exists():
                yield work


def _search(work: Work, options: argparse.Namespace, left: float) -> None:
    """One search, in a folder that a later start finds again."""
    folder = options.work / f"{work.step.name}-{work.search}"
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    print(f"{work.step.name}: {work.search}", flush=True)
    code = _tune(work, options, left, folder)
    spent_s = time.monotonic() - begin
    print(f"  exit {code}, {spent_s:.0f} s", flush=True)
    for caches in folder.rglob("caches"):
        shutil.rmtree(caches, ignore_errors=True)
    before = folder / "spent.json"
    spent_s += json.loads(before.read_text()) if before.exists() else 0.0
    before.write_text(json.dumps(spent_s))
    found = folder / "found.json"
    if not found.exists() or code not in (0, 1):
        return
    # Where this machine keeps its checkout is nobody's business.
    text = found.read_text().replace(f"{ROOT}/", "").replace(f"{folder}/", "")
    run = json.loads(text)
    if "budget" in run["tuning"]["stopped"] and left < _budget(work, options):
        print(f"  cut off: {run['tuning']['stopped']}", flush=True)
        return
    if run["tuning"]["resumed"]:
        run["tuning"]["spent_s"] = spent_s
    work.path(options.out).write_text(json.dumps(run, indent=1) + "\n")


def _budget(work: Work, options: argparse.Namespace) -> float:
    both = {"exhaustive": options.budget, "tuned": options.tuned_budget}
    return float(both[work.search])


def _tune(
    work: Work, options: argparse.Namespace, left: float, folder: Path
) -> int | None:
    """The exit code of the search; None if it did not end in time."""
    found = folder / "found.json"
    found.unlink(missing_ok=True)
    budget = min(_budget(work, options), left - _FINALS_S)
    target, _, factory = work.step.target.rpartition(":")
    command = ["tune", f"{ROOT / target}:{factory}", "--effort", SEARCHES[work.search]]
    command += ["--budget", f"{budget:.0f}s", "--recipe", "found.toml"]
    command += ["--strategies", ",".join(SPACE), "--overwrite", "--resume"]
    command += ["--train"] * work.step.train + ["--format", "json", "-o", str(found)]
    begun = ["-c", FORMS] if options.forms else ["-m", "torchproof"]
    process = subprocess.Popen(
        [sys.executable, *begun, *command],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT / "src")),
        },
    )
    try:
        return process.wait(left)
    except subprocess.TimeoutExpired:
        process.terminate()  # it ends its own processes, and keeps its trials
        process.wait()
        return None


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="names of rows; all by default")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "torchproof-tuning"
    )
    parser.add_argument("--earlier", type=Path, help="trials to go on with")
    parser.add_argument("--training", action="store_true", help="rows of training only")
    parser.add_argument("--forms", action="store_true", help="without switches")
    parser.add_argument("--seconds", type=float, default=3600.0, help="of all searches")
    parser.add_argument("--least", type=float, default=90.0, help="left to begin one")
    parser.add_argument("--budget", type=float, default=900.0, help="exhaustive")
    parser.add_argument("--tuned-budget", type=float, default=300.0)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
