"""The fault matrix: every fault in every situation, with what the hit call took.

    python benchmarks/reliability.py [--device cuda] [--only TEXT] [--jobs N] [--write]

Each cell runs in a process of its own. `--write` keeps each result as soon as its cell
ends. A file holds results of one commit, and changes that are not committed count as
another commit: `--resume` runs the cells that have no result yet, `--restart` throws
the results of another commit away. Faults that take the memory of a GPU come last, one
at a time. Exit code 1 when a cell fails, 2 when the file holds
results of another commit.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "runtime")]

import cells  # noqa: E402
from faults import SITUATIONS  # noqa: E402
from gpu_faults import COLUMNS  # noqa: E402

from benchmarks.result_files import (  # noqa: E402
    OtherCommit,
    assert_commit,
    commit_of,
    without_paths,
    write,
)

GRACE_S = 2.0  # what may pass between the deadline and eager's answer
JOBS = 4  # most cells wait for a deadline
NOT_RUN = {"seconds": None, "wrong": None, "commit": None}

Name = tuple[str, str]  # a fault and a situation


# -- one cell --------------------------------------------------------------------------


def run(fault: str, situation: str, device: str, shared: Path) -> cells.Outcome:
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        outcome = cells.run(
            fault, situation, Path(folder), grace_s=GRACE_S, device=device
        )
    print(f"{fault} / {situation}: {cell(outcome)}", file=sys.stderr, flush=True)
    for wrong in outcome.wrong:
        print(f"    {wrong}", file=sys.stderr, flush=True)
    return outcome


def cell(outcome: cells.Outcome) -> str:
    if outcome.skipped:
        return f"skipped: {outcome.skipped}"
    took = "" if outcome.seconds is None else f" {outcome.seconds:.1f} s"
    if cells.NOT_REACHED in outcome.wrong:
        return f"not reached{took}"
    return f"ok{took}" if outcome.ok else f"fails{took}"


def table(outcomes: list[cells.Outcome], device: str) -> str:
    found = {(item.fault, item.situation): cell(item) for item in outcomes}
    faults, columns = cells.MATRICES[device], situations(device)
    width = max(len(name) for name in faults) + 2
    lines = ["".join(["".ljust(width), *(f"{name:21}" for name in columns)])]
    for fault in (name for name in faults if any(name == key[0] for key in found)):
        row = [f"{found.get((fault, name), '-'):21}" for name in columns]
        lines.append("".join([fault.ljust(width), *row]))
    return "\n".join(line.rstrip() for line in lines)


def situations(device: str) -> tuple[str, ...]:
    return tuple(SITUATIONS) if device == "cpu" else COLUMNS


# -- results that are kept -------------------------------------------------------------


class Results:
    """The results in a file, all of one commit."""

    def __init__(
        self, path: Path, commit: str, *, restart: bool, device: str = "cpu"
    ) -> None:
        self._path, self._device = path, device
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
        if item.skipped:
            return  # it has not run
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
            "machine": _machine(self._device),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "grace_s": GRACE_S,
            "cells": [
                self._cells.get(
                    (fault, situation),
                    {"fault": fault, "situation": situation} | NOT_RUN,
                )
                for fault, situation in all_cells(self._device)
            ],
        }


def _machine(device: str) -> dict[str, Any]:
    machine: dict[str, Any] = {"arch": platform.machine(), "cores": os.cpu_count()}
    if device == "cuda":
        machine["gpu"] = _gpu_name()
    return machine


@functools.cache
def _gpu_name() -> str | None:
    """In another process: the cells are forks of this one's server, without CUDA."""
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    with contextlib.suppress(OSError):
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        return done.stdout.strip().split("\n")[0] or None
    return None


def all_cells(device: str = "cpu") -> list[Name]:
    return [
        (fault.name, situation)
        for fault in cells.MATRICES[device].values()
        for situation in fault.situations
    ]


# -- the command -----------------------------------------------------------------------


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--device", choices=tuple(cells.MATRICES), default="cpu")
    add("--only", default=[], action="append", help="cells whose name has this text")
    add("--jobs", type=int, default=JOBS, help="cells at once (default: %(default)s)")
    add("--write", action="store_true", help="keep each result as its cell ends")
    add("--resume", action="store_true", help="only cells without a result; --write")
    add("--restart", action="store_true", help="forget all results; --write")
    add("-o", "--output", type=Path, help="where results are kept")
    parsed = parser.parse_args(arguments)
    if parsed.output is None:
        parsed.output = HERE / "results" / f"reliability-{parsed.device}.json"
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
            results = Results(
                options.output,
                commit_of(ROOT),
                restart=options.restart,
                device=options.device,
            )
        except (OtherCommit, subprocess.CalledProcessError, OSError) as error:
            print(f"reliability.py: {error}", file=sys.stderr)
            return 2
    wanted = [
        name
        for name in all_cells(options.device)
        if not options.only or any(text in " / ".join(name) for text in options.only)
        if not (options.resume and results is not None and name in results)
    ]
    return _run_all(wanted, options, results)


def _run_all(
    wanted: list[Name], options: argparse.Namespace, results: Results | None
) -> int:
    begin = time.monotonic()
    outcomes: list[cells.Outcome] = []
    rows = cells.MATRICES[options.device]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)  # a cell may belong to another user
        for alone in (False, True):
            some = [name for name in wanted if rows[name[0]].alone is alone]
            work = [(*name, options.device, Path(folder)) for name in some]
            for outcome in _outcomes(work, options.jobs):
                outcomes.append(outcome)
                if results is not None:
                    results.keep(outcome)
    print(table(outcomes, options.device))
    failed = [item for item in outcomes if not item.ok]
    print(
        f"{len(outcomes) - len(failed)} of {len(outcomes)} cells hold,"
        f" {time.monotonic() - begin:.0f} s"
    )
    return 1 if failed else 0


def _outcomes(work: list[tuple[Any, ...]], jobs: int) -> Iterator[cells.Outcome]:
    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(run, *each) for each in work]
        try:
            for future in as_completed(running):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


if __name__ == "__main__":
    sys.exit(main())
