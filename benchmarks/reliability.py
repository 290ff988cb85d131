"""The fault matrix: every fault in every situation, with what the hit call took.

    python -m benchmarks.reliability [--device cuda] [--quick] [--jobs N]

A row is a fault in a situation, run in a process of its own. Faults that take the
memory of a GPU come last, one at a time. --quick takes every fault once. Exit code 1
when a row fails.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.survey import ROOT, Options, Row, Survey, portable

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "runtime")]

import cells  # noqa: E402

GRACE_S = 2.0  # what may pass between the deadline and eager's answer
SEPARATOR = " / "


def rows(options: Options) -> list[str]:
    """All rows of a device; with --quick the first situation of each fault."""
    most = 1 if options.quick else None
    return [
        fault.name + SEPARATOR + situation
        for fault in cells.MATRICES[options.device].values()
        for situation in [*fault.situations][:most]
    ]


def measure(name: str, options: Options) -> Row:
    fault, situation = name.split(SEPARATOR)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)  # a row may belong to another user
        outcome = cells.run(
            fault, situation, Path(folder), grace_s=GRACE_S, device=options.device
        )
    return {
        "call_s": outcome.seconds,
        "wrong": [portable(text) for text in outcome.wrong],
        "skipped": outcome.skipped,
    }


def failures(found: dict[str, Row]) -> Iterator[str]:
    for name, row in found.items():
        for reason in row["wrong"]:
            yield f"{name}: {reason}"


def _is_alone(name: str) -> bool:
    fault = name.split(SEPARATOR)[0]
    return any(
        table[fault].alone for table in cells.MATRICES.values() if fault in table
    )


SURVEY = Survey(
    "reliability",
    rows,
    measure,
    failures,
    jobs=4,  # most rows wait for a deadline
    devices=tuple(cells.MATRICES),
    is_isolated=False,
    is_alone=_is_alone,
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
