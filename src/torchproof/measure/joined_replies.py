"""Joins the replies of several ranks into one: the slowest and the largest count.

Counts are those of rank 0; `rank_counts` keeps all, to tell where ranks differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from torchproof.measure.replies import (
    CacheUse,
    Facts,
    OutputComparison,
    Reference,
    SampledRound,
)

Reply = TypeVar("Reply")
# From the best to the worst.
_VERDICTS = ("same", "rounding", None, "wrong")


def joined(kind: type[Reply], replies: Sequence[Reply]) -> Reply:
    """One reply for those of all ranks; rank 0's if the ranks cannot differ."""
    join = _JOINS.get(kind)
    return replies[0] if join is None else join(replies)


def _reference(replies: Sequence[Reference]) -> Reference:
    known = [each.deterministic for each in replies]
    return replace(
        replies[0],
        compiled=any(each.compiled for each in replies),
        draws=any(each.draws for each in replies),
        stateful=any(each.stateful for each in replies),
        deterministic=None if None in known else all(known),
        host_copies=_first(each.host_copies for each in replies),
        not_exact=_first(each.not_exact for each in replies),
        work=_work([each.work for each in replies]),
    )


def _work(each: Sequence[tuple[Any, ...] | None]) -> tuple[Any, ...] | None:
    """The work of all ranks together, if they count it in the same unit."""
    known = [work for work in each if work is not None]
    if len(known) < len(each) or len({unit for _, unit in known}) != 1:
        return None
    return sum(amount for amount, _ in known), known[0][1]


def _compared(replies: Sequence[OutputComparison]) -> OutputComparison:
    """The worst verdict; it names the rank unless all ranks agree that it is right."""

    def badness(rank: int) -> tuple[int, float]:
        found = replies[rank].numerics
        return _VERDICTS.index(found["verdict"]), found.get("max_rel_error") or 0.0

    worst = max(range(len(replies)), key=badness)
    found = dict(replies[worst].numerics) | {"rank": worst}
    if found["verdict"] not in ("same", "rounding"):
        found["why"] = f"on rank {worst}: {found.get('why') or 'no reason is known'}"
    return OutputComparison(found)


def _slowest(
    phases: Sequence[Mapping[str, float] | None],
) -> Mapping[str, float] | None:
    known = [each for each in phases if each is not None]
    return max(known, key=lambda each: each["total"]) if known else None


def _cache(uses: Sequence[CacheUse | None]) -> CacheUse | None:
    known = [use for use in uses if use is not None]
    if not known:
        return None
    return replace(
        known[0],
        lookups=tuple(lookup for use in known for lookup in use.lookups),
        filled_before=_first(use.filled_before for use in known),
    )


def _facts(replies: Sequence[Facts]) -> Facts:
    """The slowest rank's times, the counts of rank 0, all cache lookups."""
    in_use = [each.bytes for each in replies if each.bytes]
    memories = [each.memory for each in replies if each.memory]
    return replace(
        replies[0],
        compile_s=_slowest([each.compile_s for each in replies]),
        rank_counts=tuple(each.counts or {} for each in replies),
        cache=_cache([each.cache for each in replies]),
        first_call_s=_largest(each.first_call_s for each in replies),
        first_compile_s=_slowest([each.first_compile_s for each in replies]),
        imports_s=_largest(each.imports_s for each in replies),
        compiled_before=max(each.compiled_before for each in replies),
        # Ranks share the memory of the machine; each has a device of its own.
        bytes={
            "host": sum(each["host"] for each in in_use),
            "cuda": max((each["cuda"] for each in in_use), default=0),
        },
        fell_back=_distinct(each.fell_back for each in replies),
        steady=all(each.steady for each in replies),
        pass_ms=max(each.pass_ms for each in replies),
        memory={n: _largest(m.get(n) for m in memories) for n in memories[0]}
        if memories
        else None,
    )


def _sampled(replies: Sequence[SampledRound]) -> SampledRound:
    """The time of each pass is that of its slowest rank."""
    by_rank = tuple(each.times_ms for each in replies)
    interrupted = zip(*(each.interrupted for each in replies), strict=True)
    return SampledRound(
        times_ms=tuple(map(max, zip(*by_rank, strict=True))),
        interrupted=tuple(map(any, interrupted)),
        compilations=max(each.compilations for each in replies),
        by_rank=by_rank,
    )


def _largest(values: Iterable[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value), None)


def _distinct(texts: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for each in texts for text in each))


_JOINS: dict[type, Callable[[Any], Any]] = {
    Reference: _reference,
    OutputComparison: _compared,
    Facts: _facts,
    SampledRound: _sampled,
}
