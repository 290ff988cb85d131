"""The tables of docs/ranks.md, read from benchmarks/results.

A table without a kept result has no rows: what was not measured is not shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchproof.report import markdown

KEPT = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
_NOT_MEASURED = "Not measured yet."
_FAULTS = {  # names of tests/runtime/test_rank_faults.py
    "compiler_hangs_with_collectives": "the compiler of a rank hangs",
    "verification_fails": "the verification of a rank fails",
    "rank_dies": "a rank is killed while it compiles",
}


def observed() -> str:
    """What observing adds to the CPU seconds of a rank."""
    header = ["machine", "torch", "first step", "other steps", "all", "pairs", "limit"]
    return _table(header, map(_observed, _kept("observed-rank")))


def _observed(kept: dict[str, Any]) -> tuple[str, ...]:
    ratio = kept["ratio"]
    names = ("first_step_cpu_s", "other_steps_cpu_s", "cpu_s")
    return (
        _machine(kept),
        kept["versions"]["torch"],
        *(f"{ratio[name]:.2f}x" for name in names),
        f"{kept['pairs']} of {kept['steps']} steps",
        f"{kept['limit']:g}x",
    )


def added() -> str:
    """What decisions of several ranks add to a call."""
    header = ["machine", "torch", "call alone", "added (middle half)", "pairs", "limit"]
    return _table(header, map(_added, _kept("agreement-overhead")))


def _added(kept: dict[str, Any]) -> tuple[str, ...]:
    call = kept["call"]
    more = call["added_us"]
    spread = f"{more['low_quarter']:.2f} to {more['high_quarter']:.2f}"
    return (
        _machine(kept),
        kept["versions"]["torch"],
        f"{call['bare_us']:.2f} us",
        f"{more['quiet']:.2f} us ({spread})",
        str(call["pairs"]),
        f"{kept['limit_us']:g} us",
    )


def faults() -> str:
    """How long the call with the fault took, on each rank that survives it."""
    header = ["fault on rank 1", "rank", "deadline", "call", "kept from running"]
    rows = (row for kept in _kept("agreement-faults") for row in _faults(kept))
    return _table(header, rows)


def _faults(kept: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for call in kept["calls"]:
        yield (
            _FAULTS[call["fault"]],
            str(call["rank"]),
            f"{call['deadline_s']:.1f} s",
            f"{call['seconds']:.1f} s",
            f"{call['starved_s']:.1f} s",
        )


def _table(header: list[str], rows: Iterator[tuple[str, ...]]) -> str:
    measured = list(rows)
    return markdown.table(header, measured) if measured else _NOT_MEASURED


def _kept(name: str) -> Iterator[dict[str, Any]]:
    for path in sorted(KEPT.glob(f"{name}-*.json")):
        yield json.loads(path.read_text(encoding="utf-8"))


def _machine(kept: dict[str, Any]) -> str:
    machine = f"{kept['machine']['arch']}, {kept['machine']['cores']} cores"
    return machine + (", real-time priority" if kept.get("real_time") else "")


TABLES: dict[str, Callable[[], str]] = {
    "observed-rank": observed,
    "agreement-overhead": added,
    "agreement-faults": faults,
}
