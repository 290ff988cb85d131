"""Ranks and their events, made up, for tests of what compares them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torchproof.checking import rules
from torchproof.checking.ranks import check_ranks
from torchproof.records import COUNTS, Part, Rank, RankEvent, RankRun, Run

FILE = "/home/me/train.py"
SIZE = "0/0: tensor 'x' size mismatch at index 0. expected {}, actual {}"


def compiled(step: int = 0, **more: Any) -> RankEvent:
    """A compile of `Net.forward`, which begins 0.1 s after its step."""
    plain: dict[str, Any] = {
        "start_s": step + 0.1,
        "seconds": 0.5,
        "step": step,
        "call": step,
        "function": "Net.forward",
        "file": FILE,
        "line": 12,
        "nth": 1,
        "compile_id": "0/0",
        "graph": "one",
    }
    return RankEvent("compile", **{**plain, **more})


def recompiled(step: int, before: int = 8, after: int = 3, **more: Any) -> RankEvent:
    plain = {"nth": 2, "compile_id": "0/1", "reason": SIZE.format(before, after)}
    return compiled(step, **{**plain, **more})


def broken(**more: Any) -> RankEvent:
    plain: dict[str, Any] = {
        "start_s": 0.3,
        "step": 0,
        "call": 0,
        "function": "Net.forward",
        "file": FILE,
        "line": 14,
        "compile_id": "0/0",
        "reason": "Failed to trace builtin operator `print`",
    }
    return RankEvent("break", **{**plain, **more})


def all_reduce(
    nth: int, start_s: float, seconds: float | None = 0.01, **more: Any
) -> RankEvent:
    plain: dict[str, Any] = {
        "step": nth - 1,
        "function": "all_reduce",
        "file": FILE,
        "line": 30,
        "group": "default_pg",
    }
    return RankEvent(
        "collective", start_s=start_s, seconds=seconds, nth=nth, **{**plain, **more}
    )


def rank(number: int, *events: RankEvent, **more: Any) -> Rank:
    """A rank that made 20 steps of a second, each with a call of compiled code."""
    plain: dict[str, Any] = {
        "first_seen_s": 0.0,
        "last_seen_s": 20.0,
        "steps": 20,
        "calls": 20,
        "compiled_calls": 20,
        "exit_code": 0,
    }
    ordered = tuple(sorted(events, key=lambda event: event.start_s))
    return Rank(number, events=ordered, **{**plain, **more})


def ranks(*each: Iterable[RankEvent], **more: Any) -> RankRun:
    """A run whose ranks did these events."""
    every = tuple(rank(number, *events, **more) for number, events in enumerate(each))
    return RankRun(len(every), launcher="python -m torch.distributed.run", ranks=every)


def with_rank(run: RankRun, number: int, **changes: Any) -> RankRun:
    every = list(run.ranks)
    every[number] = replace(every[number], **changes)
    return replace(run, ranks=tuple(every))


def short_last_batch() -> RankRun:
    """Rank 1 of 2 recompiles at step 17 for 2.2 s, and rank 0 waits."""
    return ranks(
        [compiled(sizes={"x": "8x4"}), all_reduce(18, 17.2, 2.3)],
        [
            compiled(sizes={"x": "8x4"}),
            recompiled(17, seconds=2.2, dynamic=("x.size(0)",)),
            RankEvent("gc", start_s=8.0, seconds=0.4, step=8, reason="generation 2"),
            all_reduce(18, 19.4),
        ],
    )


def checked(run: RankRun, **more: Any) -> Run:
    """A run of `check` whose ranks did this."""
    result = check_ranks(run, {})
    plain: dict[str, Any] = {
        "id": "20260102-0304-train",
        "target": "train.py",
        "strategy": "as-written",
        "environment": {"torch": "2.13.0", "device": "cpu"},
        "counts": dict.fromkeys(COUNTS),
        "findings": tuple(each.finding for each in result.found),
        "parts": {"breaks": Part("found")},
        "ranks": result.ranks,
        "command": "torchproof check train.py --ranks 2",
        "started": "2026-01-02T03:04:05",
    }
    return rules.with_texts(Run(**{**plain, **more}))
