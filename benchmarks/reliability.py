"""The fault matrix: every fault in every situation, with what the hit call took.

    python benchmarks/reliability.py [--only TEXT] [--write]

Each cell is a process of its own, several at a time: most wait for a deadline. Exit
code 1 when a cell fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
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
    begin = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(lambda names: run(*names), wanted))
    print(table(outcomes))
    failed = [item for item in outcomes if not item.ok]
    print(
        f"{len(outcomes) - len(failed)} of {len(outcomes)} cells hold,"
        f" {time.monotonic() - begin:.0f} s"
    )
    if arguments.write:
        write(outcomes)
    return 1 if failed else 0


def write(outcomes: list[cells.Outcome]) -> None:
    """Keeps what was run, beside what is kept of other cells."""
    import torch

    path = HERE / "results" / "reliability-cpu.json"
    earlier = json.loads(path.read_text())["cells"] if path.exists() else []
    known = {(cell["fault"], cell["situation"]): cell for cell in earlier}
    for item in outcomes:
        told = dataclasses.asdict(item)
        known[item.fault, item.situation] = {
            name: told[name] for name in ("fault", "situation", "seconds", "wrong")
        }
    kept = {
        "machine": {"arch": platform.machine()},
        "torch": torch.__version__,
        "grace_s": GRACE_S,
        "cells": [
            known[fault.name, situation]
            for fault in FAULTS.values()
            for situation in fault.situations
            if (fault.name, situation) in known
        ],
    }
    path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    print(f"written to {path}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
