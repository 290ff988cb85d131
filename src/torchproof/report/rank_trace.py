"""Writes the timeline of ranks as trace events, one process with one track per rank.

All times count from the first moment that a rank was observed.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.records import Rank, RankRun, Run
from torchproof.report import rank_sections
from torchproof.report.rank_sections import Segment
from torchproof.report.trace_events import (
    Event,
    Slice,
    complete,
    document,
    lanes,
    named,
    ordered,
)

_PROCESS = 1


def render(run: Run) -> str:
    """One JSON object in the Trace Event Format; without ranks it has no events."""
    ranks = run.ranks or RankRun(0)
    about = {
        "run": run.id,
        "target": run.target,
        "command": run.command,
        "ranks": rank_sections.summary(ranks),
    }
    return document(_events(ranks), about)


def _events(ranks: RankRun) -> Iterator[Event]:
    yield named("process_name", "ranks", _PROCESS)
    thread = 0
    for rank in ranks.ranks:
        # Compiles, collections and waits of one rank may overlap: backward graphs are
        # compiled while an earlier collective still runs.
        for name, slices in lanes(_slices(rank, ranks), nest=True):
            thread += 1
            yield named("thread_name", name, _PROCESS, thread)
            yield ordered("thread_sort_index", thread, _PROCESS, thread)
            yield from (complete(each, _PROCESS, thread) for each in slices)


def _slices(rank: Rank, ranks: RankRun) -> Iterator[Slice]:
    track = f"rank {rank.rank}"
    begin_s, end_s = rank.first_seen_s or 0.0, rank.last_seen_s or 0.0
    facts = {"outcome": rank.outcome, "host": rank.host, "pid": rank.pid}
    yield Slice(track, "rank", begin_s, end_s, "rank", facts)
    for segment in rank_sections.segments(rank, ranks):
        yield _slice(segment, track)


def _slice(segment: Segment, track: str) -> Slice:
    return Slice(
        track,
        segment.text,
        segment.begin_s,
        segment.end_s,
        segment.kind,
        {"step": segment.step},
    )
