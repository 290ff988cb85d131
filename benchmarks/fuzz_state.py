"""Random programs that read state in every way of Python, against eager.

    python benchmarks/fuzz_state.py [--programs 600] [--seed 0] [--only TEXT] [--write]

Each program is called and changed in turn, as it is and by `torchproof.graph` or
`torchproof.compile`; answers, errors and state have to be the same. A program that
differs is made smaller and printed as a script. Exit code 1 when one differs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
sys.path[:0] = [str(TESTS / "state_fuzz"), str(TESTS / "cudagraph")]
# Processes are forked from one that has torch loaded, and looks there for modules.
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)

import torch  # noqa: E402
from state_runs import SUBJECTS  # noqa: E402
from state_search import Report, search  # noqa: E402

CHUNK = 50  # programs of one process
# Compiling takes longer than recording: so many programs for each of a graph.
SHARES = {"graph": 5.0, "torch.compile": 0.0}


def reports(programs: int, seed: int, only: str) -> Iterator[Report]:
    """One for each subject."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["state_search"])
    workers = min(4, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, context, max_tasks_per_child=1) as pool:
        for name in SUBJECTS:
            count = int(programs * SHARES.get(name, 1.0))
            if only not in name or not count:
                continue
            starts = range(seed, seed + count, CHUNK)
            begun = [
                pool.submit(
                    search, name, range(start, min(start + CHUNK, seed + count))
                )
                for start in starts
            ]
            whole = Report(name)
            for each in begun:
                whole.add(each.result())
            yield whole


def row(report: Report) -> dict[str, Any]:
    """What is kept of a report."""
    return {
        "programs": report.programs,
        "calls": report.calls,
        "changes": report.changes,
        "counts": dict(report.counts),
        "reasons": dict(report.reasons),
        "failures": [
            {"seed": each.seed, "mechanisms": each.mechanisms, "told": each.told}
            for each in report.failures
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--programs", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="subjects whose name has this text")
    parser.add_argument("--write", action="store_true", help="keep the numbers")
    arguments = parser.parse_args()
    begin, kept, failed = time.monotonic(), {}, 0
    for report in reports(arguments.programs, arguments.seed, arguments.only):
        kept[report.subject] = row(report) | {"seed": arguments.seed}
        for failure in report.failures:
            print(f"{failure.script}\n{'-' * 88}")
        failed += len(report.failures)
        print(
            f"{report.subject}: {report.programs} programs, {report.calls} calls,"
            f" {report.changes} changes, {len(report.failures)} differ;"
            f" {dict(report.counts)} {dict(report.reasons)}",
            flush=True,
        )
    print(f"{time.monotonic() - begin:.0f} s", file=sys.stderr)
    if arguments.write:
        write(kept)
    return 1 if failed else 0


def write(rows: dict[str, Any]) -> None:
    """Keeps what was run, beside what is kept of other subjects."""
    path = HERE / "results" / "fuzz-state-cpu.json"
    earlier = json.loads(path.read_text())["subjects"] if path.exists() else {}
    known = earlier | rows
    kept = {
        "machine": {"arch": platform.machine()},
        "torch": torch.__version__,
        "subjects": {name: known[name] for name in SUBJECTS if name in known},
    }
    path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
