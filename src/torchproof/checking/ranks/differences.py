"""Finds what some ranks compiled and others did not, and the table of functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from torchproof.checking.ranks.alignment import (
    Code,
    Moment,
    code_of,
    compiles_by_function,
    is_first,
    minority,
    moments,
    reached,
)
from torchproof.records import (
    CompiledFunctionRow,
    DifferenceKind,
    FunctionOnRank,
    Rank,
    RankDifference,
    RankEvent,
)

_Compile = tuple[int, str | None]  # a rank, and the compile id


def find_differences(ranks: Sequence[Rank]) -> list[RankDifference]:
    """The differences between ranks, in the order of their steps.

    A difference that follows from another is left out: the graphs differ after a break
    on one rank only, and a rank that compiles alone may also break there.
    """
    every = list(moments(ranks))
    eager = _eager(ranks)
    idle = {rank for difference in eager for rank in difference.ranks}
    lone = [d for d in (_lone(moment, ranks, idle) for moment in every) if d]
    alone = {pair for each in lone for pair in _compiles(each)}
    breaks = list(_breaks(ranks, alone))
    broken = {pair for each in breaks for pair in _compiles(each)}
    unequal = [
        difference
        for moment in every
        for difference in _unequal(moment)
        if difference.kind == "cache" or broken.isdisjoint(_pairs(moment))
    ]
    found = [*eager, *lone, *breaks, *unequal]
    return sorted(found, key=lambda each: -1 if each.step is None else each.step)


def _compiles(difference: RankDifference) -> set[_Compile]:
    return set(zip(difference.ranks, difference.compile_ids, strict=True))


def _pairs(moment: Moment) -> set[_Compile]:
    return {(rank, event.compile_id) for rank, event in moment.compiles.items()}


# -- ranks that run no compiled code ---------------------------------------------------


def _eager(ranks: Sequence[Rank]) -> list[RankDifference]:
    """Ranks without compiled code, if other ranks have it."""
    idle = tuple(rank.rank for rank in ranks if _runs_eagerly(rank))
    others = tuple(rank.rank for rank in ranks if _ran_compiled(rank))
    if not idle or not others:
        return []
    return [RankDifference("eager", idle, others, compile_ids=(None,) * len(idle))]


def _runs_eagerly(rank: Rank) -> bool:
    """Whether a rank ran to its end, or made calls, and ran no compiled code."""
    if rank.compiled_calls is not None:
        ran = rank.outcome == "finished" or bool(rank.calls)
        return ran and rank.compiled_calls == 0
    return rank.outcome == "finished" and not _ran_compiled(rank)


def _ran_compiled(rank: Rank) -> bool:
    if rank.compiled_calls is not None:
        return rank.compiled_calls > 0
    return any(event.kind == "compile" for event in rank.events)


# -- compiles --------------------------------------------------------------------------


def _lone(
    moment: Moment, ranks: Sequence[Rank], idle: set[int]
) -> RankDifference | None:
    """A function that only some ranks compiled in a step that all of them made."""
    others = tuple(rank for rank in moment.absent if rank not in idle)
    # A backward graph goes with its forward. Alone it is compiled late, at its first
    # use, where the others had it from a cache.
    if not others or moment.first.backward:
        return None
    if moment.first.resumed_at is not None and moment.is_first_compile:
        return None  # it follows from a break on these ranks
    compiled_elsewhere = {
        rank.rank
        for rank in ranks
        for event in rank.events
        if event.kind == "compile" and code_of(event) == moment.code
    }
    never = moment.is_first_compile and compiled_elsewhere.isdisjoint(others)
    return replace(
        _difference("function" if never else "recompile", moment.compiles, others),
        dynamic_on=() if never else _dynamic_on(moment, others, ranks),
    )


def _dynamic_on(
    moment: Moment, others: Sequence[int], ranks: Sequence[Rank]
) -> tuple[int, ...]:
    """The others whose first graph left sizes open that the first of these fixed."""
    first: dict[int, RankEvent] = {}
    for code, by_rank in compiles_by_function(ranks).items():
        if code == moment.code:
            first = {rank: events[0] for rank, events in by_rank.items()}
    fixed = [set(first[rank].dynamic) for rank in moment.compiles]
    return tuple(
        rank
        for rank in others
        if rank in first and any(set(first[rank].dynamic) - own for own in fixed)
    )


def _unequal(moment: Moment) -> Iterator[RankDifference]:
    """What differs between ranks that compiled the same function in the same step."""
    compiles = moment.compiles
    cached = {rank: e.cached for rank, e in compiles.items() if e.cached is not None}
    cold = {rank: e for rank, e in compiles.items() if e.cached is False}
    if cold and len(cold) < len(cached):
        yield _difference("cache", cold, [r for r in cached if r not in cold])
    inside = {rank: e.collectives for rank, e in compiles.items()}
    odd, others = minority(inside)
    if odd:
        yield _difference("collectives", {r: compiles[r] for r in odd}, others)
        return
    graphs = {
        rank: event.graph
        for rank, event in compiles.items()
        if event.graph is not None and event.dynamic == moment.first.dynamic
    }
    odd, others = minority(graphs) if graphs else ((), ())
    if odd:
        yield _difference("graph", {r: compiles[r] for r in odd}, others)


# -- breaks ----------------------------------------------------------------------------


def _breaks(ranks: Sequence[Rank], alone: set[_Compile]) -> Iterator[RankDifference]:
    """Lines that break the graph on some ranks, and never on others."""
    by_line: dict[tuple[str | None, int | None], dict[int, RankEvent]] = {}
    for rank in ranks:
        for event in rank.events:
            if event.kind == "break":
                at = by_line.setdefault((event.file, event.line), {})
                at.setdefault(rank.rank, event)
    for at in by_line.values():
        own = {r: e for r, e in at.items() if (r, e.compile_id) not in alone}
        first = next(iter(own.values()), None)
        others = [
            rank.rank
            for rank in ranks
            if first is not None
            and rank.rank not in at
            and reached(rank, first)
            and _compiled(rank, first.function)
        ]
        if others:
            yield _difference("break", own, others)


def _compiled(rank: Rank, function: str) -> bool:
    """Whether a rank compiled a function, so that it could have broken there."""
    return any(e.kind == "compile" and e.function == function for e in rank.events)


def _difference(
    kind: DifferenceKind, events: Mapping[int, RankEvent], others: Iterable[int]
) -> RankDifference:
    """A difference of the ranks that have an event to the others."""
    first = next(iter(events.values()))
    seconds = [event.seconds for event in events.values()]
    return RankDifference(
        kind=kind,
        ranks=tuple(events),
        others=tuple(others),
        function=first.function,
        file=first.file,
        line=first.line,
        nth=first.nth,
        step=first.step,
        call=first.call,
        reason=first.reason,
        # A compile that did not end took longer than any that did.
        seconds=None if None in seconds else max(filter(None, seconds), default=None),
        compile_ids=tuple(event.compile_id for event in events.values()),
    )


# -- the table -------------------------------------------------------------------------


def function_rows(ranks: Sequence[Rank]) -> tuple[CompiledFunctionRow, ...]:
    """What each rank did for each compiled function; those that differ come first."""
    rows = [
        _row(code, by_rank, ranks)
        for code, by_rank in compiles_by_function(ranks).items()
    ]
    return tuple(sorted(rows, key=lambda row: not row.differs))


def _row(
    code: Code, by_rank: Mapping[int, Sequence[RankEvent]], ranks: Sequence[Rank]
) -> CompiledFunctionRow:
    file, line, function, resumed_at = code
    cells = tuple(
        _cell(rank, by_rank.get(rank.rank, ()), _breaks_of(rank, code))
        for rank in ranks
    )
    return CompiledFunctionRow(
        function=function,
        file=file,
        line=line,
        resumed_at=resumed_at,
        ranks=cells,
        differs=_differing(cells),
    )


def _differing(cells: Sequence[FunctionOnRank]) -> tuple[str, ...]:
    """The columns in which ranks differ; what is not known does not differ."""
    columns = {
        "compiles": [cell.compiles - cell.recompiles for cell in cells],
        "recompiles": [cell.recompiles for cell in cells],
        "breaks": [cell.breaks for cell in cells],
        "graphs": [frozenset(cell.graphs) - {None} or None for cell in cells],
        "cached": [cell.cached for cell in cells],
    }
    return tuple(
        name
        for name, values in columns.items()
        if len({value for value in values if value is not None}) > 1  # type: ignore[attr-defined]
    )


def _cell(
    rank: Rank, compiles: Sequence[RankEvent], breaks: Sequence[RankEvent]
) -> FunctionOnRank:
    cached = [event.cached for event in compiles if event.cached is not None]
    seconds = [event.seconds for event in compiles if event.seconds is not None]
    return FunctionOnRank(
        rank=rank.rank,
        compiles=len(compiles),
        recompiles=sum(not is_first(event) for event in compiles),
        breaks=len(breaks),
        cached=sum(cached) if cached else None,
        graphs=tuple(event.graph for event in compiles),
        seconds=sum(seconds) if seconds else None,
        unfinished=any(event.seconds is None for event in compiles),
    )


def _breaks_of(rank: Rank, code: Code) -> list[RankEvent]:
    """The breaks in the compiles of a function."""
    ids = {
        event.compile_id
        for event in rank.events
        if event.kind == "compile" and code_of(event) == code
    }
    return [e for e in rank.events if e.kind == "break" and e.compile_id in ids]
