"""The tables, sentences and timelines of a run with ranks, shared by all reports.

Takes the `RankRun` of a run, returns `Table` records and plain text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torchproof.records import (
    CompiledFunctionRow,
    FunctionOnRank,
    Rank,
    RankEvent,
    RankRun,
    RankWait,
    ranks_in_words,
    shown_briefly,
)
from torchproof.report import numbers
from torchproof.report.document import Cell, Table, View

_BAR = 60  # characters of a timeline
_MOST_LINES = 16
_TORCH_BREAKS = (
    "Breaks in functions of torch itself, which have no file here, are no findings and"
    " not among the breaks counted above."
)
SegmentKind = Literal["compile", "recompile", "wait", "gc"]
LETTERS: dict[SegmentKind, tuple[str, str]] = {
    "compile": ("C", "compiling"),
    "recompile": ("R", "recompiling"),
    "gc": ("g", "garbage collection"),
    "wait": ("w", "waiting in a collective"),
}


def summary(ranks: RankRun) -> str:
    """`2 ranks: 1 finished, rank 1 killed (recompiling Net.forward)`."""
    finished = sum(rank.outcome == "finished" for rank in ranks.ranks)
    parts = [f"{finished} finished"] if finished else []
    parts += [_ending(rank) for rank in ranks.ranks if rank.outcome != "finished"]
    unseen = ranks.world_size - len(ranks.ranks)
    parts += [f"{unseen} left no events"] if unseen > 0 else []
    return f"{numbers.amount(ranks.world_size, 'rank')}: {', '.join(parts)}"


def _ending(rank: Rank) -> str:
    doing = f" while {rank.activity}" if rank.activity else ""
    return f"rank {rank.rank} {rank.outcome}{doing}"


# -- compiled functions ----------------------------------------------------------------


def functions(
    ranks: RankRun, most: int | None = None, views: View = View.READ
) -> Table:
    """One row per function, one column per rank; equal ranks share a column."""
    columns = _columns(ranks)
    shown = ranks.functions[:most]
    hidden = len(ranks.functions) - len(shown)
    rest = numbers.amount(hidden, "more function")
    notes = [f"{rest} without a difference shown (show -v)"] if hidden else []
    if any(row.file is None and cell.breaks for row in shown for cell in row.ranks):
        notes.append(_TORCH_BREAKS)
    return Table(
        "Compiled functions",
        ("function", *(ranks_in_words(column) for column in columns)),
        tuple(_row(row, columns) for row in shown),
        tuple(notes),
        style="ranked",
        views=views,
    )


def _columns(ranks: RankRun) -> list[tuple[int, ...]]:
    """The ranks, those that did the same for every function together."""
    alike: dict[object, list[int]] = {}
    for rank in ranks.ranks:
        did = tuple(_did(_cell(row, rank.rank)) for row in ranks.functions)
        alike.setdefault(did, []).append(rank.rank)
    return [tuple(members) for members in alike.values()]


def _cell(row: CompiledFunctionRow, rank: int) -> FunctionOnRank:
    own = (cell for cell in row.ranks if cell.rank == rank)
    return next(own, FunctionOnRank(rank))


def _did(cell: FunctionOnRank) -> tuple[object, ...]:
    """What is compared of a rank: not the seconds."""
    graphs = frozenset(cell.graphs)
    return cell.compiles, cell.recompiles, cell.breaks, cell.cached, graphs


def _row(
    row: CompiledFunctionRow, columns: Sequence[tuple[int, ...]]
) -> tuple[str | Cell, ...]:
    cells = [[_cell(row, rank) for rank in column] for column in columns]
    usual = _usual([cell for column in cells for cell in column])
    return (
        function_name(row),
        *(_marked(each, usual) if row.differs else cell_text(each) for each in cells),
    )


def _usual(cells: Sequence[FunctionOnRank]) -> FunctionOnRank:
    """What most ranks did; of equally many, those that compiled and broke least."""
    did = [_did(cell) for cell in cells]
    return min(
        cells,
        key=lambda cell: (-did.count(_did(cell)), cell.compiles, cell.breaks),
        default=FunctionOnRank(0),  # a saved run may have functions and no ranks
    )


def _marked(cells: Sequence[FunctionOnRank], usual: FunctionOnRank) -> str | Cell:
    first, text = cells[0], cell_text(cells)
    if _did(first) == _did(usual):
        return text
    same = (first.compiles, first.breaks) == (usual.compiles, usual.breaks)
    other = ", another graph" if same and first.graphs != usual.graphs else ""
    return Cell(f"{text}{other}", "differs", "differs")


def function_name(row: CompiledFunctionRow) -> str:
    """`Net.forward (model.py:12)`, with the line after a break at which it begins."""
    after = "" if row.resumed_at is None else f" from line {row.resumed_at} on"
    where = f" ({shown_briefly(row.file)}:{row.line})" if row.file else ""
    return f"{row.function}{after}{where}"


def cell_text(cells: Sequence[FunctionOnRank]) -> str:
    """What ranks that did the same did: `2 compiles, 1 break, 2.7 s`."""
    first = cells[0]
    if not first.compiles:
        return "not compiled"
    parts = [numbers.amount(first.compiles, "compile")]
    parts += [numbers.amount(first.breaks, "break")] if first.breaks else []
    parts += [f"{first.cached} cached"] if first.cached else []
    seconds = [cell.seconds for cell in cells if cell.seconds is not None]
    if any(cell.unfinished for cell in cells):
        parts.append("unfinished")
    elif seconds:
        parts.append(numbers.seconds(max(seconds)))
    return ", ".join(parts)


# -- waits -----------------------------------------------------------------------------


def waits(ranks: RankRun, most: int | None = None) -> Iterator[str]:
    """A sentence for each wait, the longest first."""
    for wait in ranks.waits[:most]:
        step = "" if wait.step is None else f" at step {wait.step}"
        yield (
            f"{ranks_in_words(wait.waiting)} waited {numbers.seconds(wait.seconds)} in"
            f" {wait.collective}{step} for rank {wait.late}: {wait_cause(wait)}"
        )
    if most and (hidden := ranks.waits[most:]):
        total = numbers.seconds(sum(wait.seconds for wait in hidden))
        yield f"{numbers.amount(len(hidden), 'shorter wait')}, {total} in all"


def wait_cause(wait: RankWait) -> str:
    if wait.cause in ("compile", "gc"):
        return wait.text
    words = {"slow": "slow", "ended": "it had ended", "unknown": numbers.UNKNOWN}
    return words[wait.cause]


def timeout(ranks: RankRun) -> str:
    """The collective that failed, and what the missing ranks did; empty if none did."""
    failed = ranks.timeout
    if failed is None:
        return ""
    where = f" ({shown_briefly(failed.file)}:{failed.line})" if failed.file else ""
    pairs = zip(failed.missing, failed.activities, strict=False)  # of a saved run
    doing = "; ".join(f"rank {rank} was {activity}" for rank, activity in pairs)
    return (
        f"{failed.collective}{where} failed on {ranks_in_words(failed.ranks)} after"
        f" {numbers.seconds(failed.seconds)}: {doing}"
    )


# -- the timeline ----------------------------------------------------------------------


@dataclass(frozen=True)
class Segment:
    """A part of a rank's time, with what it did then."""

    kind: SegmentKind
    begin_s: float
    end_s: float
    text: str
    step: int | None = None


def span_s(ranks: RankRun) -> tuple[float, float]:
    """From the first compile on, since ranks load torch and data before it."""
    compiles = [
        event.start_s
        for rank in ranks.ranks
        for event in rank.events
        if event.kind == "compile"
    ]
    end_s = max((rank.last_seen_s or 0.0 for rank in ranks.ranks), default=0.0)
    return min(compiles, default=0.0), end_s


def segments(rank: Rank, ranks: RankRun) -> list[Segment]:
    """What a rank spent time on besides running, in the order of begin."""
    every = [*_own(rank), *_waited(rank, ranks)]
    return sorted(every, key=lambda segment: segment.begin_s)


def _own(rank: Rank) -> Iterator[Segment]:
    for event in rank.events:
        if event.kind not in ("compile", "gc"):
            continue
        kind: SegmentKind = "gc"
        text = f"garbage collection {event.reason or ''}".strip()
        if event.kind == "compile":
            kind = "compile" if event.reason is None else "recompile"
            text = f"{LETTERS[kind][1]} {event.function}"
            text += f": {event.reason}" if event.reason else ""
        yield Segment(kind, event.start_s, _end(event, rank), text, event.step)


def _end(event: RankEvent, rank: Rank) -> float:
    if event.seconds is not None:
        return event.start_s + event.seconds
    return max(event.start_s, rank.last_seen_s or 0.0)


def _waited(rank: Rank, ranks: RankRun) -> Iterator[Segment]:
    begins = {
        (event.group, event.nth): event.start_s
        for event in rank.events
        if event.kind == "collective"
    }
    for wait in ranks.waits:
        begin = begins.get((wait.group, wait.nth))
        if rank.rank in wait.waiting and begin is not None:
            text = f"waiting in {wait.collective} for rank {wait.late}"
            text += f": {wait_cause(wait)}"
            end = max(begin, wait.start_s + wait.seconds)
            yield Segment("wait", begin, end, text, wait.step)


def timeline(ranks: RankRun) -> list[str]:
    """A line of letters for each rank, and a legend; empty if nothing was timed."""
    begin, end = span_s(ranks)
    if end <= begin or not any(segments(rank, ranks) for rank in ranks.ranks):
        return []
    alike: dict[str, list[int]] = {}
    for rank in ranks.ranks:
        alike.setdefault(_letters(rank, ranks), []).append(rank.rank)
    names = {letters: ranks_in_words(each) for letters, each in alike.items()}
    shown = sorted(alike, key=lambda letters: -_recompiling(letters))[:_MOST_LINES]
    width = max(len(names[letters]) for letters in shown)
    lines = [f"{names[each]:<{width}} {each}" for each in alike if each in shown]
    hidden = sum(len(each) for letters, each in alike.items() if letters not in shown)
    legend = [f"{letter} {name}" for letter, name in LETTERS.values()]
    legend.append(f"{numbers.seconds((end - begin) / _BAR)} per character")
    legend += [f"{numbers.amount(hidden, 'rank')} not shown"] if hidden else []
    return [*lines, ", ".join(legend)]


def _recompiling(letters: str) -> int:
    return letters.count(LETTERS["recompile"][0])


def _letters(rank: Rank, ranks: RankRun) -> str:
    """`.` is running; what is shorter than a character still has one."""
    begin, end = span_s(ranks)

    def position(moment_s: float) -> int:
        place = int((moment_s - begin) / (end - begin) * _BAR)
        return min(_BAR - 1, max(0, place))

    first = position(rank.first_seen_s or 0.0)
    last = position(rank.last_seen_s or 0.0)
    letters = ["." if first <= place <= last else " " for place in range(_BAR)]
    # The last to be drawn is what matters most where several fall on one character.
    order = list(LETTERS)[::-1]
    for segment in sorted(segments(rank, ranks), key=lambda s: order.index(s.kind)):
        if segment.end_s < begin:
            continue
        at, until = position(segment.begin_s), position(segment.end_s) + 1
        letters[at:until] = LETTERS[segment.kind][0] * (until - at)
    return "".join(letters).rstrip()
