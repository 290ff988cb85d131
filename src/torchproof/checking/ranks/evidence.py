"""Explains what differs between ranks: cause, fix and place, from all that is known.

The comparison of the ranks says what differs. The rules for one process say why: the
guard that failed, the line that breaks the graph, and what cures it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence

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
    ranks_in_words,
    shown_briefly,
    user_frame,
    whose,
)

_LEAST_GC_S = 0.2  # of a wait that makes a finding
_LEAST_SLOW_S = 1.0
_LEAST_SLOW_SHARE = 0.1  # of the time that the late rank was observed
_MOST_DETAILS = 5
_TOGETHER = (
    "torch.compiler.set_enable_guard_collectives(True) makes all ranks recompile"
)


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
            return self._fixed_size(difference, guard, what, matched)
        if guard is not None and _is_short_batch(guard):
            return self._short_batch(difference, guard, what, matched)
        cause = _first(matched, "cause") or _why_alone(difference)
        fix = "call it in the same step on every rank"
        if difference.reason:
            fix = _first(matched, "fix") or "keep what the guard checks the same"
            fix = f"on every rank alike: {fix}; {_TOGETHER}"
        return self._of(
            difference, "RK101", what=what, cause=cause, fix=fix, matched=matched
        )

    def _fixed_size(
        self,
        difference: RankDifference,
        guard: Guard,
        what: str,
        matched: Sequence[Matched],
    ) -> RankEvidence:
        others = ranks_in_words(difference.dynamic_on)
        own = ranks_in_words(difference.ranks)
        size = f"size {guard.dim} of `{guard.source}`"
        return self._of(
            difference,
            "RK101",
            what=what,
            cause=f"the first graph of {others} leaves {size} open, as after"
            f" mark_dynamic, and that of {own} fixes it; the guard that failed:"
            f" {_text(guard)}",
            fix="mark the same sizes before the first call on every rank",
            matched=matched,
            root="marks",
        )

    def _short_batch(
        self,
        difference: RankDifference,
        guard: Guard,
        what: str,
        matched: Sequence[Matched],
    ) -> RankEvidence:
        rank = self._ranks[difference.ranks[0]]
        is_last = (
            rank.outcome == "finished" and rank.steps == (difference.step or 0) + 1
        )
        sizes = f"a batch of {guard.actual} instead of {guard.expected}"
        if guard.cause == "size_one":
            sizes = f"a batch of size 1, after {guard.expected}"
            if guard.expected == "1":
                sizes = f"a batch of {guard.actual}, after one of size 1"
        fix = (
            "give every rank batches of the same size: drop_last=True in the data"
            " loader or sampler, or pad the last batch"
        )
        if matched:
            fix += f"; or, on every rank: {matched[0].finding.fix}"
        return self._of(
            difference,
            "RK105",
            what=f"{what} for {sizes}{', its last batch,' if is_last else ''}",
            cause=f"the batches of the ranks do not have the same size; the guard that"
            f" failed: {_text(guard)}",
            fix=fix,
            matched=matched,
            root="batch",  # one change of the data, whatever functions notice it
        )

    def _function(self, difference: RankDifference) -> RankEvidence:
        others = ranks_in_words(difference.others)
        return self._of(
            difference,
            "RK102",
            what=f"compiled {difference.function}, and {others} never did",
            cause="only some ranks call it, or it is only compiled there",
            fix="call and compile it on every rank, or run it where no rank waits",
        )

    def _graph(self, difference: RankDifference) -> RankEvidence:
        others = ranks_in_words(difference.others)
        has = "has" if len(difference.others) == 1 else "have"
        change = self._changed_operation(difference)
        own, other = change or (None, None)
        frame = _line(own) or _line(other)
        cause = "the operations differ"
        if change is not None:
            cause = f"the first difference: {_operation(own)} where {others} {has}"
            cause += f" {_operation(other)}"
        return self._of(
            difference,
            "RK102",
            what=f"traced another graph of {difference.function} than {others}",
            cause=cause,
            fix="take the same branch on every rank; move what only one rank does out"
            " of the compiled function",
            place=None if frame is None else Place(frame, "user", None),
        )

    def _changed_operation(
        self, difference: RankDifference
    ) -> tuple[Operation | None, Operation | None] | None:
        """The first operations in which two graphs differ; None if they are unknown."""
        partner = self._partner(difference)
        if partner is None:
            return None
        mine = self._operations(difference.ranks[0], difference.compile_ids[0])
        theirs = self._operations(difference.others[0], partner.compile_id)
        if mine is None or theirs is None:
            return None
        for number in range(max(len(mine), len(theirs))):
            own, other = (each[number : number + 1] for each in (mine, theirs))
            if [o.name for o in own] != [o.name for o in other]:
                return next(iter(own), None), next(iter(other), None)
        return None

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

    def _operations(
        self, rank: int, compile_id: str | None
    ) -> tuple[Operation, ...] | None:
        observation = self._observations.get(rank)
        for event in observation.of(GraphEvent) if observation else ():
            if _compile_of(event) == compile_id:
                operations = event.operations or ()
                return tuple(o for o in operations if o.name != INPUT) or None
        return None

    def _break(self, difference: RankDifference) -> RankEvidence:
        matched = self._matched(difference, GraphBreak)
        here = [m for m in matched if m.finding.line == difference.line] or matched
        fix = "move it out of the compiled function"
        if here:
            fix = f"{here[0].finding.fix}; or {fix}"
        return self._of(
            difference,
            "RK103",
            what=f"alone broke the graph of {difference.function}",
            cause=_first(here, "cause") or difference.reason or "the reason is unknown",
            fix=fix,
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
            what=f"compiled {difference.function} anew{seconds}, which {others} loaded"
            " from a cache",
            cause=f"the cache of {ranks_in_words(difference.ranks)}{where} does not"
            " have the compiled code",
            fix="let all ranks use one cache folder (TORCHINDUCTOR_CACHE_DIR on storage"
            " that all nodes share), or load one pack on every rank: torchproof.load",
            root=("cache", difference.ranks),
        )

    def _collectives(self, difference: RankDifference) -> RankEvidence:
        own = self._compile(difference.ranks[0], difference.compile_ids[0])
        partner = self._partner(difference)
        inside, elsewhere = (e.collectives if e else () for e in (own, partner))
        unmatched = [name for name in inside if name not in elsewhere]
        less = [name for name in elsewhere if name not in inside]
        others = ranks_in_words(difference.others)
        what = (
            f"has {_listed(unmatched)} inside the graph of {difference.function}, and"
        )
        what += f" {others} not"
        rank, compile, names = difference.ranks[0], own, unmatched
        if not unmatched:
            has = "has" if len(difference.others) == 1 else "have"
            what = f"lacks {_listed(less)} inside the graph of {difference.function},"
            what += f" which {others} {has} there"
            rank, compile, names = difference.others[0], partner, less
        operations = self._operations(rank, compile.compile_id) if compile else None
        operation = next((o for o in operations or () if o.name in names), None)
        frame = _line(operation)
        cause = "the ranks do not trace the same code around the collective"
        if frame is not None:
            having = difference.ranks if unmatched else difference.others
            cause = f"only {ranks_in_words(having)} traced {_operation(operation)}"
        return self._of(
            difference,
            "RK106",
            what=what,
            cause=cause,
            fix="run the same code on every rank up to the collective, or call it"
            " outside of the compiled function on every rank",
            place=None if frame is None else _owned(frame),
        )

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
            what=f"{did} ran no compiled code, and {ranks_in_words(difference.others)}"
            " did",
            cause=_first(matched, "cause") or "no call reaches compiled code there",
            fix=_first(matched, "fix") or "compile and call the model on every rank",
            matched=matched,
        )

    def _of(
        self,
        difference: RankDifference,
        code: str,
        *,
        what: str,
        cause: str,
        fix: str,
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
        return RankEvidence(
            code=code,
            root=root or (difference.function, cause),
            ranks=difference.ranks,
            place=place,
            what=what,
            cause=cause,
            fix=fix,
            name=difference.function,
            is_users=_place(difference).owner == "user",
            step=difference.step,
            waited_s=difference.waited_s,
            waiting=difference.waiting,
            shown=tuple(each.finding for each in matched),
            details=_details(difference),
            compiles=tuple(zip(difference.ranks, difference.compile_ids, strict=True)),
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
        doing = "; ".join(
            f"rank {rank.rank} was {activity}{_ending(rank, failed_s)}"
            for rank, activity in zip(missing, timeout.activities, strict=True)
        )
        compiles = tuple(zip(timeout.missing, timeout.compile_ids, strict=True))
        compiled = [self._compile(rank, each) for rank, each in compiles if each]
        reasons = [event.reason for event in compiled if event and event.reason]
        cause = "a member of the group did not come"
        if compiled:
            cause = "a member of the group was compiling"
            if any(each and self._is_cached_elsewhere(each) for each in compiled):
                cause += " what another rank loaded from a cache"
        if reasons:
            cause += f"; the guard that failed: {reasons[0]}"
        after = "" if timeout.seconds is None else f" after {timeout.seconds:.1f} s"
        at = "" if timeout.step is None else f" at step {timeout.step}"
        line = _frame(timeout.file, timeout.line, "")
        return RankEvidence(
            code="RK110",
            root="timeout",
            ranks=timeout.missing,
            place=_owned(line),
            what=f"{timeout.collective} failed{at}{after} on"
            f" {ranks_in_words(timeout.ranks)}: {doing}",
            cause=cause,
            fix=_timeout_fix(compiled=bool(compiled), again=bool(reasons)),
            name=timeout.collective,
            step=timeout.step,
            waited_s=timeout.seconds,
            waiting=timeout.ranks,
            details=(timeout.error,) if timeout.error else (),
            compiles=compiles,
        )


def _timeout_fix(*, compiled: bool, again: bool) -> str:
    if not compiled:
        return "see why the missing rank ended or is late: its own output and findings"
    cure = "stop the recompile on this rank" if again else "fill the compile caches"
    return (
        f"{cure}, compile before the first collective (a warm-up step and a barrier"
        " with its own long timeout), or pass a longer timeout to init_process_group"
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
    frame = _frame(longest.file, longest.line, longest.collective)
    return RankEvidence(
        code="RK109",
        root=(late, cause),
        ranks=(late,),
        place=_owned(frame),
        what=f"{doing} while others waited in {longest.collective}",
        cause="Python's garbage collector stopped the rank"
        if is_gc
        else "the rank neither compiled nor collected garbage meanwhile",
        fix="after warm-up call gc.collect() and gc.freeze(); or gc.disable(), and"
        " gc.collect() on all ranks in the same step"
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
        place=_owned(_frame(event.file, event.line, event.function)),
        what=f"compiled a module after {event.function}, and its hooks break the graph",
        cause="the hooks that gather parameters are not traced",
        fix="compile each block before sharding it: block.compile(), then"
        " fully_shard(block)",
        name=event.function,
    )


def _details(difference: RankDifference) -> tuple[str, ...]:
    pairs = zip(difference.ranks, difference.compile_ids, strict=True)
    return tuple(f"rank {rank}: compile id {each}" for rank, each in pairs if each)


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


def _text(guard: Guard) -> str:
    return guard.text.split("  #")[0].strip()


def _why_alone(difference: RankDifference) -> str:
    if difference.reason:
        return f"the guard that failed: {difference.reason}"
    return f"{ranks_in_words(difference.others)} compiled it in another step"


def _first(matched: Sequence[Matched], field: str) -> str:
    return str(getattr(matched[0].finding, field)) if matched else ""


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
    return _owned(_frame(difference.file, difference.line, difference.function))


def _frame(file: str | None, line: int | None, function: str) -> Frame | None:
    if file is None or line is None:
        return None
    return Frame(file, line, function)


def _owned(frame: Frame | None) -> Place:
    if frame is None:
        return Place(None, None, None)
    return Place(frame, "user" if whose(frame.file) == "user" else "library", None)
