"""The findings of a run with ranks: those of each rank, and those between ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torchproof.checking import rules
from torchproof.checking.counts import counts_of
from torchproof.checking.ranks.compare import compare_ranks
from torchproof.checking.ranks.evidence import Evidence
from torchproof.checking.rules import Matched
from torchproof.records import Observation, RankRun


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
