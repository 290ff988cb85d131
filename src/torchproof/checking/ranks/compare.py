"""Compares the ranks of a run: functions, differences, waits, and a timeout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchproof.checking.ranks.differences import find_differences, function_rows
from torchproof.checking.ranks.waits import (
    MOST_WAITS,
    find_timeout,
    find_waits,
    waited_for,
)
from torchproof.records import Rank, RankEvent, RankRun, RankWait


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
