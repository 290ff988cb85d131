"""The tables of docs/ranks.md, and one of docs/decide.md, read from benchmarks/results.

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


def ddp_order() -> str:
    """Graphs, overlap and speed of compiling inside and around DDP."""
    header = ["optimize_ddp", "order", "graphs", "reasons of graph breaks"]
    header += ["first bucket sent after", "time of a step, wrap first = 1"]
    rows = (row for kept in _kept("ddp-order") for row in _orders(kept))
    return _table(header, rows)


def _orders(kept: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    names = {"inside": "compile first", "around": "wrap first"}
    names |= {"blocks": "compile each block first"}
    for row in kept["counts"]:
        if row["order"] not in names or not row["graphs"]:
            continue
        sent = row["first_bucket_after"]
        yield (
            row["setting"],
            names[row["order"]],
            _range(row["graphs"], "d"),
            _range([len(each) for each in row["graph_breaks"]], "d"),
            f"{_range(sent, '.0%')} of backward" if sent else "-",
            _relative(kept["ratios"][row["setting"]], row["order"]),
        )


def _range(values: list[Any], form: str) -> str:
    low, high = (format(each, form) for each in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _relative(ratios: list[dict[str, Any]], order: str) -> str:
    """The ratio with its interval; `-` where too few launches give none."""
    if order == "around":
        return "1"
    [ratio] = [each for each in ratios if each["of"] == f"{order} / around"]
    if "mean" not in ratio:
        return "-"
    text = f"{ratio['mean']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
    return text if ratio["significant"] else f"{text}, not significant"


def ddp_conditions() -> str:
    """How the orders were measured."""
    texts = []
    for kept in _kept("ddp-order"):
        model = kept["model"]
        launches = len(next(iter(kept["launches"].values())))
        spread = f"Intervals are over {launches} launches; a"
        spread = spread if launches >= 3 else "One launch gives counts, no ratio; a"
        texts.append(
            f"Measured with `{kept['command']}`: {kept['device']}, torch"
            f" {kept['torch']}, {model['blocks']} blocks of width {model['width']},"
            f" `bucket_cap_mb={model['bucket_cap_mb']}`. {spread} load average of"
            f" {kept['load_average']:.0f} made the times noisy; counts do not depend"
            " on it."
        )
    return "\n\n".join(texts) or _NOT_MEASURED


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
ORDERS: dict[str, Callable[[], str]] = {
    "ddp-order": ddp_order,
    "ddp-order conditions": ddp_conditions,
}
