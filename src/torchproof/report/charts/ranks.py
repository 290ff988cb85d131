"""The timeline of a run with ranks: a lane for each, with what it spent time on."""

from __future__ import annotations

from dataclasses import dataclass

from torchproof.records import Rank, RankRun
from torchproof.report import numbers, rank_sections
from torchproof.report.charts import axes
from torchproof.report.charts.axes import Axis, Place
from torchproof.report.rank_sections import Segment, SegmentKind

_MOST_RANKS = 64  # lanes of the timeline
_MOST_BANDS = 300  # in one lane, the longest of them
# The colour of each kind of segment.
_TONES: dict[SegmentKind, str] = {
    "compile": "p0",
    "recompile": "p3",
    "gc": "p2",
    "wait": "p9",
}


@dataclass(frozen=True)
class Band:
    tone: str
    x: float
    width: float
    title: str


@dataclass(frozen=True)
class Lane:
    """The time of one rank; positions are in percent."""

    name: str
    words: str
    begin: float
    width: float
    bands: tuple[Band, ...]
    outcome: str


@dataclass(frozen=True)
class Timeline:
    lanes: tuple[Lane, ...]
    x: Axis
    kinds: tuple[tuple[str, str], ...]
    hidden: int


def timeline(ranks: RankRun) -> Timeline | None:
    """None if no rank has a time."""
    begin_s, end_s = rank_sections.span_s(ranks)
    if end_s <= begin_s:
        return None
    since_first, x = axes.from_zero(end_s - begin_s, axes.seconds)

    def place(moment_s: float) -> float:
        return min(100.0, max(0.0, since_first(moment_s - begin_s)))

    shown = ranks.ranks[:_MOST_RANKS]
    every = {rank.rank: rank_sections.segments(rank, ranks) for rank in shown}
    kinds = {segment.kind for segments in every.values() for segment in segments}
    return Timeline(
        lanes=tuple(_lane(rank, every[rank.rank], place) for rank in shown),
        x=x,
        kinds=tuple(
            (_TONES[kind], name)
            for kind, (_, name) in rank_sections.LETTERS.items()
            if kind in kinds
        ),
        hidden=len(ranks.ranks) - len(shown),
    )


def _lane(rank: Rank, segments: list[Segment], place: Place) -> Lane:
    longest = sorted(segments, key=lambda s: s.begin_s - s.end_s)[:_MOST_BANDS]
    begin, end = (place(t or 0.0) for t in (rank.first_seen_s, rank.last_seen_s))
    totals = {
        kind: sum(s.end_s - s.begin_s for s in segments if s.kind == kind)
        for kind in rank_sections.LETTERS
    }
    phrases = [
        f"{name} {numbers.seconds(totals[kind])}"
        for kind, (_, name) in rank_sections.LETTERS.items()
        if totals[kind]
    ]
    return Lane(
        name=f"rank {rank.rank}",
        words=f"rank {rank.rank}: {', '.join(phrases) or 'running'}",
        begin=round(begin, 2),
        width=round(max(0.0, end - begin), 2),
        # A short one lies on top of one that contains it.
        bands=tuple(_band(s, place) for s in longest if place(s.end_s) > 0),
        outcome="" if rank.outcome == "finished" else rank.outcome,
    )


def _band(segment: Segment, place: Place) -> Band:
    x, until = place(segment.begin_s), place(segment.end_s)
    step = "" if segment.step is None else f", step {segment.step}"
    took = numbers.seconds(segment.end_s - segment.begin_s)
    return Band(
        tone=_TONES[segment.kind],
        x=round(x, 2),
        width=round(until - x, 2),
        title=f"{segment.text}: {took} from {numbers.seconds(segment.begin_s)}{step}",
    )
