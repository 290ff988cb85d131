"""The fault matrix: every fault in every situation, with what the hit call took.

    python benchmarks/reliability.py [--only TEXT] [--jobs N] [--write]

Each cell runs in a process of its own. `--write` keeps each result as soon as its cell
ends. A file holds results of one commit, and changes that are not committed count as
another commit: `--resume` runs the cells that have no result yet, `--restart` throws
the results of another commit away. Exit code 1 when a cell fails, 2 when the file holds
results of another commit.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "runtime")]

import cells  # noqa: E402
from faults import FAULTS, SITUATIONS  # noqa: E402

from benchmarks.result_files import (  # noqa: E402
    OtherCommit,
    assert_commit,
    commit_of,
    without_paths,
    write,
)

GRACE_S = 2.0  # what may pass between the deadline and eager's answer
JOBS = 4  # most cells wait for a deadline
RESULTS = HERE / "results" / "reliability-cpu.json"
NOT_RUN = {"seconds": None, "wrong": None, "commit": None}

Name = tuple[str, str]  # a fault and a situation


# -- one cell --------------------------------------------------------------------------


def run(fault: str, situation: str) -> cells.Outcome:
    with tempfile.TemporaryDirectory() as folder:
        outcome = cells.run(fault, situation, Path(folder), grace_s=GRACE_S)
    print(f"{fault} / {situation}: {cell(outcome)}", file=sys.stderr, flush=True)
    for wrong in outcome.wrong:
        print(f"    {wrong}", file=sys.stderr, flush=True)
    return outcome


def cell(outcome: cells.Outcome) -> str:
    took = "" if outcome.seconds is None else f" {outcome.seconds:.1f} s"
    if cells.NOT_REACHED in outcome.wrong:
        return f"not reached{took}"
    return f"ok{took}" if outcome.ok else f"fails{took}"


def table(outcomes: list[cells.Outcome]) -> str:
    found = {(item.fault, item.situation): cell(item) for item in outcomes}
    width = max(len(name) for name in FAULTS) + 2
    lines = ["".join(["".ljust(width), *(f"{name:21}" for name in SITUATIONS)])]
    for fault in (name for name in FAULTS if any(name == key[0] for key in found)):
        row = [f"{found.get((fault, name), '-'):21}" for name in SITUATIONS]
        lines.append("".join([fault.ljust(width), *row]))
    return "\n".join(line.rstrip() for line in lines)


# -- results that are kept -------------------------------------------------------------


class Results:
    """The results in a file, all of one commit."""

    def __init__(self, path: Path, commit: str, *, restart: bool) -> None:
        self._path = path
        self._commit = commit
        self._cells: dict[Name, dict[str, Any]] = {}
        if path.exists() and not restart:
            kept = json.loads(path.read_text(encoding="utf-8"))["cells"]
            done = [cell for cell in kept if cell["commit"] is not None]
            assert_commit(path, (cell["commit"] for cell in done), commit)
            self._cells = {(cell["fault"], cell["situation"]): cell for cell in done}

    def __contains__(self, name: Name) -> bool:
        return name in self._cells

    def keep(self, item: cells.Outcome) -> None:
        self._cells[item.fault, item.situation] = {
            "fault": item.fault,
            "situation": item.situation,
            "seconds": item.seconds,
            "wrong": [without_paths(text) for text in item.wrong],
            "commit": self._commit,
        }
        write(self._path, self._to_json())

    def _to_json(self) -> dict[str, Any]:
        import torch

        return {
            "machine": {"arch": platform.machine(), "cores": os.cpu_count()},
            "python": platform.python_version(),
            "torch": torch.__version__,
            "grace_s": GRACE_S,
            "cells": [
                self._cells.get(
                    (fault, situation),
                    {"fault": fault, "situation": situation} | NOT_RUN,
                )
                for fault, situation in all_cells()
            ],
        }


def all_cells() -> list[Name]:
    return [
        (fault.name, situation)
        for fault in FAULTS.values()
        for situation in fault.situations
    ]


# -- the command -----------------------------------------------------------------------


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--only", default=[], action="append", help="cells whose name has this text")
    add("--jobs", type=int, default=JOBS, help="cells at once (default: %(default)s)")
    add("--write", action="store_true", help="keep each result as its cell ends")
    add("--resume", action="store_true", help="only cells without a result; --write")
    add("--restart", action="store_true", help="forget all results; --write")
    add("-o", "--output", type=Path, default=RESULTS, help="where results are kept")
    parsed = parser.parse_args(arguments)
    if parsed.jobs < 1:
        parser.error("--jobs: give at least 1")
    if parsed.resume and parsed.restart:
        parser.error("--resume and --restart exclude each other")
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    results = None
    if options.write or options.resume or options.restart:
        try:
            results = Results(options.output, commit_of(ROOT), restart=options.restart)
        except (OtherCommit, subprocess.CalledProcessError, OSError) as error:
            print(f"reliability.py: {error}", file=sys.stderr)
            return 2
    wanted = [
        name
        for name in all_cells()
        if not options.only or any(text in " / ".join(name) for text in options.only)
        if not (options.resume and results is not None and name in results)
    ]
    return _run_all(wanted, options.jobs, results)


def _run_all(wanted: list[Name], jobs: int, results: Results | None) -> int:
    begin = time.monotonic()
    outcomes: list[cells.Outcome] = []
    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(functools.partial(run, *name)) for name in wanted]
        try:
            for future in as_completed(running):
                outcomes.append(future.result())
                if results is not None:
                    results.keep(outcomes[-1])
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    print(table(outcomes))
    failed = [item for item in outcomes if not item.ok]
    print(
        f"{len(outcomes) - len(failed)} of {len(outcomes)} cells hold,"
        f" {time.monotonic() - begin:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
