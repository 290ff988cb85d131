"""Compares the ranks of a run, and finds what is wrong on each and between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torchproof.checking import rules
from torchproof.checking.counts import counts_of
from torchproof.checking.ranks.differences import find_differences, function_rows
from torchproof.checking.ranks.evidence import Evidence
from torchproof.checking.ranks.waits import (
    MOST_WAITS,
    find_timeout,
    find_waits,
    waited_for,
)
from torchproof.checking.rules import Matched
from torchproof.records import Observation, Rank, RankEvent, RankRun, RankWait


@dataclass(frozen=True)
class CheckedRanks:
    """The compared ranks, and the findings with the rules and events behind them."""

    ranks: RankRun
    found: tuple[Matched, ...]
    counts: Mapping[str, int | None]  # the most that any rank has, of each


def check_ranks(
    ranks: RankRun, observations: Mapping[int, Observation]
) -> CheckedRanks:
    """Compares the ranks, and finds what is wrong on each and between them."""
    compared = compare_ranks(ranks)
    by_rank = {rank: rules.matched(each) for rank, each in observations.items()}
    evidence = Evidence(compared, observations, by_rank)
    between = rules.matched(Observation(tuple(evidence.collect()), {}))
    counts = [
        counts_of(observations[rank], [each.finding for each in found])
        for rank, found in by_rank.items()
    ]
    return CheckedRanks(compared, (*between, *merged(by_rank)), most_of(counts))


def compare_ranks(run: RankRun) -> RankRun:
    """The run with what its ranks did differently, and who waited for whom."""
    every = find_waits(run.ranks)
    waits = every[:MOST_WAITS]
    differences = []
    for difference in find_differences(run.ranks):
        seconds, waiting = waited_for(difference, every)
        differences.append(replace(difference, waited_s=seconds, waiting=waiting))
    notes = run.notes
    if len(every) > len(waits):
        notes += (f"of {len(every)} waits, only the {len(waits)} longest are counted",)
    return replace(
        run,
        notes=notes,
        ranks=tuple(_without_routine(rank, waits) for rank in run.ranks),
        functions=function_rows(run.ranks),
        differences=tuple(differences),
        waits=waits,
        timeout=find_timeout(run.ranks),
    )


def _without_routine(rank: Rank, waits: Sequence[RankWait]) -> Rank:
    """The rank without steps and collectives that nobody waited in.

    A long training has a hundred thousand of them.
    """
    waited_in = {(wait.group, wait.nth) for wait in waits}

    def is_kept(event: RankEvent) -> bool:
        if event.kind == "collective":
            waited = (event.group, event.nth) in waited_in
            return waited or event.seconds is None
        return event.kind != "step"

    return replace(rank, events=tuple(filter(is_kept, rank.events)))


def most_of(counts: Sequence[Mapping[str, int | None]]) -> dict[str, int | None]:
    """The largest of each count; None where no rank has it."""
    return {
        name: max((n for c in counts if (n := c[name]) is not None), default=None)
        for name in (counts[0] if counts else ())
    }


def merged(by_rank: Mapping[int, Sequence[Matched]]) -> list[Matched]:
    """The findings of all ranks, each once, with the ranks that have it.

    Its numbers are those of the rank on which it occurred most often.
    """
    same: dict[str, list[tuple[int, Matched]]] = {}
    for rank, found in by_rank.items():
        for each in found:
            same.setdefault(each.finding.identity, []).append((rank, each))
    return [
        most._replace(
            finding=replace(
                most.finding, ranks=tuple(dict.fromkeys(rank for rank, _ in having))
            )
        )
        for having in same.values()
        for most in [max(having, key=lambda pair: pair[1].finding.count or 0)[1]]
    ]
