"""Lines up what the ranks compiled: the same function in the same step.

In a distributed program all ranks make the same steps, so a compile on one rank belongs
to the compile of the same function in the same step on the others. Where no step is
known, the number of the call stands for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchproof.records import Rank, RankEvent

# File, line, qualified name, and the line after a break at which the code begins.
Code = tuple[str | None, int | None, str, int | None]
_When = tuple[str, int | None]


@dataclass(frozen=True)
class Moment:
    """The compiles of one function that belong together.

    `absent` are the ranks that came as far as this and compiled nothing then.
    """

    code: Code
    compiles: Mapping[int, RankEvent]  # by rank
    absent: tuple[int, ...] = ()

    @property
    def first(self) -> RankEvent:
        return next(iter(self.compiles.values()))

    @property
    def is_first_compile(self) -> bool:
        return all(is_first(event) for event in self.compiles.values())


def is_first(event: RankEvent) -> bool:
    """Whether a compile is the first of its function: no guard has failed."""
    return event.reason is None and event.nth in (None, 1)


def code_of(event: RankEvent) -> Code:
    return event.file, event.line, event.function, event.resumed_at


def compiles_by_function(
    ranks: Sequence[Rank],
) -> dict[Code, dict[int, list[RankEvent]]]:
    """The compiles of each function by rank, in the order of their begin."""
    functions: dict[Code, dict[int, list[RankEvent]]] = {}
    for rank in ranks:
        for event in rank.events:
            if event.kind == "compile":
                by_rank = functions.setdefault(code_of(event), {})
                by_rank.setdefault(rank.rank, []).append(event)
    return functions


def moments(ranks: Sequence[Rank]) -> Iterator[Moment]:
    """Everything that was compiled, function by function, lined up over the ranks."""
    for code, by_rank in compiles_by_function(ranks).items():
        by_time: dict[_When, dict[int, list[RankEvent]]] = {}
        for rank, events in by_rank.items():
            for event in events:
                at = by_time.setdefault(_when(event), {})
                at.setdefault(rank, []).append(event)
        for at in by_time.values():
            yield from _paired(code, at, ranks)


def _paired(
    code: Code, at: Mapping[int, list[RankEvent]], ranks: Sequence[Rank]
) -> Iterator[Moment]:
    """A function may be compiled several times in a step: the n-th go together."""
    for number in range(max(map(len, at.values()))):
        compiles = {rank: e[number] for rank, e in at.items() if number < len(e)}
        example = next(iter(compiles.values()))
        absent = tuple(
            rank.rank
            for rank in ranks
            if rank.rank not in compiles and reached(rank, example)
        )
        yield Moment(code, compiles, absent)


def _when(event: RankEvent) -> _When:
    if event.step is not None:
        return ("step", event.step)
    if event.call is not None:
        return ("call", event.call)
    return ("nth", event.nth)


def reached(rank: Rank, event: RankEvent) -> bool:
    """Whether a rank began the step, or made the call, of an event of another rank."""
    if _still_compiles(rank, event):
        return False
    if event.step is not None and rank.steps is not None:
        return rank.steps > event.step
    if event.call is not None and rank.calls is not None:
        return rank.calls > event.call
    return rank.outcome == "finished"


def _still_compiles(rank: Rank, event: RankEvent) -> bool:
    """Whether the rank ended while it compiled something else in the same step."""
    return any(
        own.kind == "compile"
        and own.seconds is None
        and own.step == event.step
        and code_of(own) != code_of(event)
        for own in rank.events
    )


def minority(values: Mapping[int, object]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranks whose value differs from that of most ranks, and the others.

    If no value is that of most ranks, it is that of the lowest rank.
    """
    every = list(values.values())
    common = max(every, key=every.count)
    odd = tuple(rank for rank, value in values.items() if value != common)
    return odd, tuple(rank for rank in values if rank not in odd)
