"""Explains what differs between ranks: cause, remedy and place, from all that is known.

The comparison of the ranks says what differs. The rules for one process say why: the
guard that failed, the line that breaks the graph, and what cures it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from torchproof.checking import causes
from torchproof.checking.ranks.alignment import code_of
from torchproof.checking.ranks.waits import covered_s
from torchproof.checking.rules import Matched
from torchproof.checking.rules.breaks import GraphBreak
from torchproof.checking.rules.no_ops import NoOp
from torchproof.checking.rules.ranks import RankEvidence
from torchproof.checking.rules.recompiles import Recompile, RecompileLimit
from torchproof.observe import guard_failures
from torchproof.records import (
    INPUT,
    SIZE_CAUSES,
    BreakEvent,
    CollectiveTimeout,
    Event,
    Frame,
    GraphEvent,
    Guard,
    GuardEvent,
    Observation,
    Operation,
    Place,
    Rank,
    RankDifference,
    RankEvent,
    RankRun,
    RankWait,
    Remedy,
    ranks_in_words,
    shown_briefly,
    user_frame,
    whose,
)

_LEAST_GC_S = 0.2  # of a wait that makes a finding
_LEAST_SLOW_S = 1.0
_LEAST_SLOW_SHARE = 0.1  # of the time that the late rank was observed
_MOST_DETAILS = 5


class Evidence:
    """Collects the evidence for the rules about ranks."""

    def __init__(
        self,
        run: RankRun,
        observations: Mapping[int, Observation],
        found: Mapping[int, Sequence[Matched]],
    ) -> None:
        self._run = run
        self._ranks = {rank.rank: rank for rank in run.ranks}
        self._observations = observations
        self._found = found
        self._explanations = {r: causes.explain(each) for r, each in found.items()}

    def collect(self) -> Iterator[RankEvidence]:
        explained = {
            "recompile": self._recompile,
            "function": self._function,
            "graph": self._graph,
            "break": self._break,
            "cache": self._cache,
            "collectives": self._collectives,
            "eager": self._eager,
        }
        for difference in self._run.differences:
            yield explained[difference.kind](difference)
        yield from self._wraps()
        yield from self._late_ranks()
        if self._run.timeout is not None:
            yield self._failed_collective(self._run.timeout)

    # -- what the rules for one process say ----------------------------------------

    def _matched(
        self, difference: RankDifference, *families: type[object]
    ) -> list[Matched]:
        """The findings of these ranks about the compiles of a difference."""
        pairs = zip(difference.ranks, difference.compile_ids, strict=True)
        return [
            each
            for rank, compile_id in pairs
            for each in self._found.get(rank, ())
            if isinstance(each.rule, families)
            and any(_compile_of(event) == compile_id for event in each.group.events)
        ]

    def _root(self, rank: int, matched: Matched) -> str:
        """The finding of the same kind that explains a finding.

        A recompile that follows from a break is a recompile of its own.
        """
        kinds = {m.finding.identity: m.finding.kind for m in self._found[rank]}
        explanations = self._explanations[rank]
        identity = matched.finding.identity
        while identity in explanations:
            cause = explanations[identity].causes[0]
            if kinds.get(cause) != matched.finding.kind:
                break
            identity = cause
        return identity

    def _compile(self, rank: int, compile_id: str | None) -> RankEvent | None:
        events = self._ranks[rank].events if rank in self._ranks else ()
        same = (e for e in events if e.kind == "compile" and e.compile_id == compile_id)
        return next(same, None)

    # -- differences ---------------------------------------------------------------

    def _recompile(self, difference: RankDifference) -> RankEvidence:
        matched = self._matched(difference, Recompile, RecompileLimit)
        guard = _guard(difference, matched)
        again = "recompiled" if difference.reason else "compiled"
        what = f"{again} {difference.function} alone"
        if guard is not None and guard.cause in SIZE_CAUSES and difference.dynamic_on:
            mark = f"torch._dynamo.mark_dynamic({guard.source}, {guard.dim})"
            return self._of(
                difference,
                "RK101",
                what,
                f"the graph of {ranks_in_words(difference.dynamic_on)} leaves size"
                f" {guard.dim} of `{guard.source}` open, and the one here fixes it:"
                f" {_text(guard)}",
                advice=f"on every rank, before the first call: {mark}",
                matched=matched,
                root="marks",
            )
        if guard is not None and _is_short_batch(guard):
            last = ", its last batch," if self._ends_with(difference) else ""
            return self._of(
                difference,
                "RK105",
                f"{what} for {_batch(guard)}{last}",
                f"the ranks have batches of other sizes; the guard that failed:"
                f" {_text(guard)}",
                matched=matched,
                root="batch",  # one change of the data, whatever functions notice it
            )
        remedies = [each.finding.remedy for each in matched]
        cause = f"{ranks_in_words(difference.others)} compiled it in another step"
        if difference.reason:
            cause = f"the guard that failed: {difference.reason}"
        return self._of(
            difference,
            "RK101",
            what,
            _first(matched) or cause,
            advice=""
            if difference.reason
            else "call it in the same step on every rank",
            remedy=next((r for r in remedies if r and r.kind != "none"), None),
            matched=matched,
        )

    def _ends_with(self, difference: RankDifference) -> bool:
        """Whether it was in the last step of a rank."""
        rank = self._ranks[difference.ranks[0]]
        return rank.outcome == "finished" and rank.steps == (difference.step or 0) + 1

    def _function(self, difference: RankDifference) -> RankEvidence:
        others = ranks_in_words(difference.others)
        return self._of(
            difference,
            "RK102",
            f"compiled {difference.function}, and {others} never did",
            "only some ranks call it, or it is only compiled there",
            advice="call and compile it on every rank",
        )

    def _graph(self, difference: RankDifference) -> RankEvidence:
        others = ranks_in_words(difference.others)
        own, other = self._changed_operation(difference)
        frame = _line(own) or _line(other)
        cause = "the operations differ"
        if own or other:
            theirs = f"{others} {_has(difference)} {_operation(other)}"
            cause = f"the first difference: {_operation(own)} where {theirs}"
        return self._of(
            difference,
            "RK102",
            f"traced another graph of {difference.function} than {others}",
            cause,
            place=None if frame is None else Place(frame, "user", None),
        )

    def _changed_operation(
        self, difference: RankDifference
    ) -> tuple[Operation | None, Operation | None]:
        """The first operations in which two graphs differ; None if they are unknown."""
        partner = self._partner(difference)
        mine = self._operations(difference.ranks[0], difference.compile_ids[0])
        theirs = partner and self._operations(difference.others[0], partner.compile_id)
        for own, other in zip_longest(mine, theirs) if mine and theirs else ():
            if (own and own.name) != (other and other.name):
                return own, other
        return None, None

    def _partner(self, difference: RankDifference) -> RankEvent | None:
        """The compile of the same function, in the same step, on another rank."""
        for event in self._ranks[difference.others[0]].events:
            same = (event.function, event.file, event.line)
            if (
                event.kind == "compile"
                and same == (difference.function, difference.file, difference.line)
                and (event.step, event.call) == (difference.step, difference.call)
            ):
                return event
        return None

    def _operations(self, rank: int, compile_id: str | None) -> list[Operation]:
        observation = self._observations.get(rank)
        for event in observation.of(GraphEvent) if observation else ():
            if _compile_of(event) == compile_id:
                return [o for o in event.operations or () if o.name != INPUT]
        return []

    def _break(self, difference: RankDifference) -> RankEvidence:
        matched = self._matched(difference, GraphBreak)
        here = [m for m in matched if m.finding.line == difference.line] or matched
        return self._of(
            difference,
            "RK103",
            f"alone broke the graph of {difference.function}",
            _first(here) or difference.reason or "the reason is unknown",
            remedy=here[0].finding.remedy if here else None,
            matched=here,
        )

    def _cache(self, difference: RankDifference) -> RankEvidence:
        others = ranks_in_words(difference.others)
        hosts = {self._ranks[rank].host for rank in difference.ranks} - {None}
        where = f" on {', '.join(sorted(map(str, hosts)))}" if hosts else ""
        took = difference.seconds
        seconds = f" in {took:.1f} s" if took is not None else ""
        return self._of(
            difference,
            "RK104",
            f"compiled {difference.function} anew{seconds}, which {others} loaded from"
            " a cache",
            f"the cache of {ranks_in_words(difference.ranks)}{where} does not have the"
            " compiled code",
            root=("cache", difference.ranks),
        )

    def _collectives(self, difference: RankDifference) -> RankEvidence:
        own = self._compile(difference.ranks[0], difference.compile_ids[0])
        partner = self._partner(difference)
        inside, elsewhere = (e.collectives if e else () for e in (own, partner))
        more = [name for name in inside if name not in elsewhere]
        less = [name for name in elsewhere if name not in inside]
        others, function = ranks_in_words(difference.others), difference.function
        what = f"has {_listed(more)} inside the graph of {function}, and {others} not"
        having, compile, names = difference.ranks, own, more
        if not more:
            what = f"lacks {_listed(less)} inside the graph of {function}, which"
            what += f" {others} {_has(difference)} there"
            having, compile, names = difference.others, partner, less
        found = self._operations(having[0], compile.compile_id) if compile else []
        operation = next((o for o in found if o.name in names), None)
        frame = _line(operation)
        cause = "the ranks do not trace the same code around the collective"
        if frame is not None:
            cause = f"only {ranks_in_words(having)} traced {_operation(operation)}"
        place = None if frame is None else _owned(frame)
        return self._of(difference, "RK106", what, cause, place=place)

    def _eager(self, difference: RankDifference) -> RankEvidence:
        matched = [
            each
            for rank in difference.ranks
            for each in self._found.get(rank, ())
            if isinstance(each.rule, NoOp)
        ]
        calls = self._ranks[difference.ranks[0]].calls
        did = f"made {calls} calls and" if calls else "called no compiled function and"
        return self._of(
            difference,
            "RK108",
            f"{did} ran no compiled code, and {ranks_in_words(difference.others)} did",
            _first(matched) or "no call reaches compiled code there",
            remedy=matched[0].finding.remedy if matched else None,
            matched=matched,
        )

    def _of(
        self,
        difference: RankDifference,
        code: str,
        what: str,
        cause: str,
        *,
        advice: str = "",
        remedy: Remedy | None = None,
        matched: Sequence[Matched] = (),
        place: Place | None = None,
        root: object = None,
    ) -> RankEvidence:
        if root is None and matched:
            root = self._root(difference.ranks[0], matched[0])
        if root is None and difference.kind == "recompile" and difference.reason:
            guard = guard_failures.parse(difference.reason)
            root = (guard.cause, guard.source, guard.dim)
        if place is None:
            place = matched[0].group.place if matched else _place(difference)
        compiles = tuple(zip(difference.ranks, difference.compile_ids, strict=True))
        return RankEvidence(
            code=code,
            root=root or (difference.function, cause),
            ranks=difference.ranks,
            place=place,
            what=what,
            cause=cause,
            advice=advice,
            remedy=remedy,
            name=difference.function,
            is_users=_place(difference).owner == "user",
            step=difference.step,
            waited_s=difference.waited_s,
            waiting=difference.waiting,
            shown=tuple(each.finding for each in matched),
            details=tuple(f"rank {r}: compile id {c}" for r, c in compiles if c),
            compiles=compiles,
        )

    # -- order of wrapping -----------------------------------------------------------

    def _wraps(self) -> Iterator[RankEvidence]:
        """Compiled code around FSDP whose hooks break it."""
        wraps: dict[str, tuple[RankEvent, list[int]]] = {}
        for rank in self._run.ranks:
            for event in rank.events:
                # DDP is none of them: torch splits its graphs in both orders.
                is_fsdp = event.function != "DistributedDataParallel"
                is_outside = event.kind == "wrap" and event.order == "wrapped_first"
                if is_fsdp and is_outside and self._breaks_in_fsdp(rank):
                    ranks = wraps.setdefault(event.function, (event, []))[1]
                    ranks.append(rank.rank)
        for event, ranks in wraps.values():
            yield _wrapped(event, tuple(dict.fromkeys(ranks)))

    def _breaks_in_fsdp(self, rank: Rank) -> bool:
        observation = self._observations.get(rank.rank)
        return any(
            "/distributed/fsdp/" in frame.file
            for event in (observation.of(BreakEvent) if observation else ())
            for frame in event.frames
        )

    # -- waits -----------------------------------------------------------------------

    def _late_ranks(self) -> Iterator[RankEvidence]:
        """Ranks that others waited for, and that did not compile meanwhile."""
        waits: dict[tuple[int, str], list[RankWait]] = {}
        for wait in self._run.waits:
            # Before the first step, ranks still load data and models.
            if wait.cause in ("gc", "slow") and wait.ended and wait.step:
                waits.setdefault((wait.late, wait.cause), []).append(wait)
        for (late, cause), each in waits.items():
            if self._is_noticeable(late, cause, each):
                yield _late(late, cause, each)

    def _is_noticeable(self, late: int, cause: str, waits: list[RankWait]) -> bool:
        longest = max(wait.seconds for wait in waits)
        if cause == "gc":
            return longest >= _LEAST_GC_S
        rank = self._ranks[late]
        observed_s = (rank.last_seen_s or 0.0) - (rank.first_seen_s or 0.0)
        total = covered_s(waits)
        share = total >= max(_LEAST_SLOW_S, _LEAST_SLOW_SHARE * observed_s)
        return longest >= _LEAST_SLOW_S or share

    def _is_cached_elsewhere(self, compile: RankEvent) -> bool:
        """Whether another rank had the same function from a cache, in the same step."""
        same = (code_of(compile), compile.step)
        return any(
            event.kind == "compile"
            and (code_of(event), event.step) == same
            and event.cached is True
            for rank in self._run.ranks
            for event in rank.events
        )

    def _failed_collective(self, timeout: CollectiveTimeout) -> RankEvidence:
        missing = [self._ranks[rank] for rank in timeout.missing]
        failed_s = (timeout.start_s or 0.0) + (timeout.seconds or 0.0)
        cause = "; ".join(
            f"rank {rank.rank} was {activity}{_ending(rank, failed_s)}"
            for rank, activity in zip(missing, timeout.activities, strict=True)
        )
        compiles = tuple(zip(timeout.missing, timeout.compile_ids, strict=True))
        compiled = [self._compile(rank, each) for rank, each in compiles if each]
        if any(each and self._is_cached_elsewhere(each) for each in compiled):
            cause += ", which another rank loaded from a cache"
        if reasons := [event.reason for event in compiled if event and event.reason]:
            cause += f"; the guard that failed: {reasons[0]}"
        after = "" if timeout.seconds is None else f" after {timeout.seconds:.1f} s"
        at = "" if timeout.step is None else f" at step {timeout.step}"
        return RankEvidence(
            code="RK110",
            root="timeout",
            ranks=timeout.missing,
            place=_at(timeout.file, timeout.line, ""),
            what=f"{timeout.collective} failed{at}{after} on"
            f" {ranks_in_words(timeout.ranks)}: {ranks_in_words(timeout.missing)} did"
            " not come",
            cause=cause,
            advice="" if compiled else "see what the missing rank printed and found",
            name=timeout.collective,
            step=timeout.step,
            waited_s=timeout.seconds,
            waiting=timeout.ranks,
            details=(timeout.error,) if timeout.error else (),
            compiles=compiles,
        )


def _ending(rank: Rank, failed_s: float) -> str:
    """How a rank ended, if that was before a collective failed."""
    if rank.last_seen_s is None or rank.last_seen_s >= failed_s:
        return ""
    if rank.exit_code is not None and rank.exit_code < 0:
        return f" (killed by {signal.Signals(-rank.exit_code).name})"
    return f" (failed: {rank.error})" if rank.error else ""


def _late(late: int, cause: str, waits: Sequence[RankWait]) -> RankEvidence:
    longest = max(waits, key=lambda wait: wait.seconds)
    is_gc = cause == "gc"
    doing = "collected garbage" if is_gc else "came late"
    return RankEvidence(
        code="RK109",
        root=(late, cause),
        ranks=(late,),
        place=_at(longest.file, longest.line, longest.collective),
        what=f"{doing} while others waited in {longest.collective}",
        cause="Python's garbage collector stopped the rank"
        if is_gc
        else "the rank neither compiled nor collected garbage meanwhile",
        advice=""
        if is_gc
        else "look at what only this rank does: its data, its files, its machine",
        name=longest.collective,
        step=min((wait.step for wait in waits if wait.step is not None), default=None),
        waited_s=covered_s(waits),
        waiting=tuple(sorted({rank for wait in waits for rank in wait.waiting})),
        details=tuple(
            f"step {wait.step}: {wait.seconds:.2f} s in {wait.collective}, {wait.text}"
            for wait in sorted(waits, key=lambda wait: -wait.seconds)[:_MOST_DETAILS]
        ),
    )


def _wrapped(event: RankEvent, ranks: tuple[int, ...]) -> RankEvidence:
    return RankEvidence(
        code="RK107",
        root=event.function,
        ranks=ranks,
        place=_at(event.file, event.line, event.function),
        what=f"compiled a module after {event.function}, and its hooks break the graph",
        cause="the hooks that gather parameters are not traced",
        name=event.function,
    )


def _guard(difference: RankDifference, matched: Sequence[Matched]) -> Guard | None:
    """The guard that failed, as the rules for recompiles read it."""
    for each in matched:
        for event in each.group.events:
            guard = event.callers_guard if isinstance(event, GuardEvent) else None
            if guard is not None and _compile_of(event) in difference.compile_ids:
                return guard
    return guard_failures.parse(difference.reason) if difference.reason else None


def _is_short_batch(guard: Guard) -> bool:
    """Whether the first size shrank, or is or was 1."""
    if guard.dim != 0 or guard.cause not in ("size", "size_one"):
        return False
    if guard.cause == "size_one":
        return True
    sizes = (guard.actual or "", guard.expected or "")
    return all(map(str.isdigit, sizes)) and int(sizes[0]) < int(sizes[1])


def _batch(guard: Guard) -> str:
    """The batch that a guard failed for, in words."""
    if guard.cause != "size_one":
        return f"a batch of {guard.actual} instead of {guard.expected}"
    if guard.expected == "1":
        return f"a batch of {guard.actual}, after one of size 1"
    return f"a batch of size 1, after {guard.expected}"


def _text(guard: Guard) -> str:
    return guard.text.split("  #")[0].strip()


def _first(matched: Sequence[Matched]) -> str:
    return matched[0].finding.cause if matched else ""


def _has(difference: RankDifference) -> str:
    return "has" if len(difference.others) == 1 else "have"


def _compile_of(event: Event) -> str | None:
    """The compile id without the number of the attempt: `0/1` of `0/1_2`."""
    return event.compile_id.split("_")[0] if event.compile_id else None


def _line(operation: Operation | None) -> Frame | None:
    return user_frame(operation.frames) if operation else None


def _operation(operation: Operation | None) -> str:
    """``x * 2` (model.py:12)`, or the name of the operation."""
    if operation is None:
        return "nothing more"
    frame = _line(operation)
    if frame is None:
        return f"`{operation.name}`"
    return f"`{frame.code}` ({shown_briefly(frame.file)}:{frame.line})"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _place(difference: RankDifference) -> Place:
    return _at(difference.file, difference.line, difference.function)


def _at(file: str | None, line: int | None, function: str) -> Place:
    if file is None or line is None:
        return Place(None, None, None)
    return _owned(Frame(file, line, function))


def _owned(frame: Frame) -> Place:
    return Place(frame, "user" if whose(frame.file) == "user" else "library", None)
