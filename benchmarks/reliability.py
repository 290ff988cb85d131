"""The fault matrix: every fault in every situation, with what the hit call took.

    python benchmarks/reliability.py [--only TEXT] [--write]

Each cell is a process of its own, several at a time: most wait for a deadline. Exit
code 1 when a cell fails.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "runtime")]

import cells  # noqa: E402
from faults import FAULTS, SITUATIONS  # noqa: E402

GRACE_S = 2.0  # what may pass between the deadline and eager's answer
AT_ONCE = 4
NOT_RUN = {"seconds": None, "wrong": None, "commit": None}


def run(fault: str, situation: str) -> cells.Outcome:
    with tempfile.TemporaryDirectory() as folder:
        outcome = cells.run(fault, situation, Path(folder), grace_s=GRACE_S)
    print(f"{fault} / {situation}: {cell(outcome)}", file=sys.stderr, flush=True)
    for wrong in outcome.wrong:
        print(f"    {wrong}", file=sys.stderr, flush=True)
    return outcome


def cell(outcome: cells.Outcome) -> str:
    took = "" if outcome.seconds is None else f" {outcome.seconds:.1f} s"
    return f"ok{took}" if outcome.ok else f"fails{took}"


def table(outcomes: list[cells.Outcome]) -> str:
    found = {(item.fault, item.situation): cell(item) for item in outcomes}
    width = max(len(name) for name in FAULTS) + 2
    lines = ["".join(["".ljust(width), *(f"{name:21}" for name in SITUATIONS)])]
    for fault in dict.fromkeys(item.fault for item in outcomes):
        row = [f"{found.get((fault, name), '-'):21}" for name in SITUATIONS]
        lines.append("".join([fault.ljust(width), *row]))
    return "\n".join(line.rstrip() for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--only", default=[], action="append", help="cells whose name has this text"
    )
    parser.add_argument("--write", action="store_true", help="keep the table")
    arguments = parser.parse_args()
    wanted = [
        (fault.name, situation)
        for fault in FAULTS.values()
        for situation in fault.situations
        if not arguments.only
        or any(text in f"{fault.name} / {situation}" for text in arguments.only)
    ]
    begin, outcomes = time.monotonic(), []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for outcome in pool.map(lambda names: run(*names), wanted):
            outcomes.append(outcome)
            if arguments.write:
                write(outcome)
    print(table(outcomes))
    failed = [item for item in outcomes if not item.ok]
    print(
        f"{len(outcomes) - len(failed)} of {len(outcomes)} cells hold,"
        f" {time.monotonic() - begin:.0f} s"
    )
    return 1 if failed else 0


def write(item: cells.Outcome) -> None:
    """Keeps what was run, beside what is kept of other cells."""
    import torch

    path = HERE / "results" / "reliability-cpu.json"
    earlier = json.loads(path.read_text())["cells"] if path.exists() else []
    known = {(cell["fault"], cell["situation"]): cell for cell in earlier}
    known[item.fault, item.situation] = {
        "fault": item.fault,
        "situation": item.situation,
        "seconds": item.seconds,
        "wrong": item.wrong,
        "commit": commit(),
    }
    kept = {
        "machine": {"arch": platform.machine()},
        "torch": torch.__version__,
        "grace_s": GRACE_S,
        "cells": [
            known.get((fault.name, situation), {"fault": fault.name} | NOT_RUN)
            | {"situation": situation}
            for fault in FAULTS.values()
            for situation in fault.situations
        ],
    }
    path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


@functools.cache
def commit() -> str | None:
    """What was run, so that cells of different code are not taken for one run."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None


if __name__ == "__main__":
    sys.exit(main())
