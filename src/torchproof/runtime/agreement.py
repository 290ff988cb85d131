"""The agreement of the ranks of a distributed run on each compilation.

Compiled code may merge or reorder collectives that eager runs one by one. If one rank
ran it beside a rank in eager, each could wait for the other. So before a rank uses code
with collectives, the ranks of their groups agree: each says in the store of the process
group that it has compiled the function, or why not. If one objects, or says nothing
until the deadline, all run the function eager. The first conclusion that is written
counts, so that ranks which waited for different times do not differ.

A rank whose code has no collective waits for nobody. One that fails says so anyway: it
does not know what the others find in the function. Nothing is decided later, and no
call of compiled code reads the store. If a rank alone has to recompile, the others use
the code that they have: they have not begun, so it does not wait for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from torchproof.process import forks
from torchproof.records import JsonObject
from torchproof.runtime.background import Task, process_is_exiting
from torchproof.runtime.status_report import Fallback
from torchproof.torch_private import process_groups

if TYPE_CHECKING:
    from torch import fx

    from torchproof.runtime.interfaces import Forward
    from torchproof.runtime.telemetry import Telemetry

KIND: Final = "agreement"  # of fallbacks that follow another rank
NO_ANSWER = "no answer"  # the kind of an objection to a rank that says nothing
LONGEST_WAIT_S = 600.0  # for other ranks, if there is no deadline
# How long after the deadline an answer may come: ending compilers takes a moment.
_GRACE_S = 1.0
_STORE_S = 0.5  # how long a call waits for a store that does not answer
_LOOK_EVERY_S = 0.25
_MODEL = "the model"

# How many models of each name took part in votes. Ranks with collectives in common call
# their models in the same order, so the number names the same model on each.
_numbers: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)


class StoreLost(Exception):
    """The store fails or does not answer: the rank that serves it may have ended."""


@dataclass(frozen=True)
class Vote:
    """What one rank says. `kind` and `why` are those of its objection, if it has one.

    Ranks that agree do `what` alike, for example use the same pack.
    """

    rank: int
    kind: str | None = None
    why: str = ""
    what: JsonObject | None = None

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.kind}): {self.why}"


class Votes:
    """The votes of the ranks on one topic, such as a model; each rank votes once.

    Every use of the store is in a thread of its own: a store that hangs delays a call
    by half a second.
    """

    def __init__(self, group: process_groups.ProcessGroup, topic: str) -> None:
        self._group = group
        self._prefix = f"torchproof/{topic}"
        self._lost: str | None = None  # why the store is not used any more

    def say(self, subject: str, vote: Vote) -> None:
        """Votes. Without a vote the others wait in vain, and then run eager."""
        if self._lost is None:
            with contextlib.suppress(RuntimeError):  # no further thread
                task = Task(lambda: self._set(subject, vote), "torchproof-store")
                task.wait(time.monotonic() + _STORE_S)

    def hear(
        self, subject: str, others: Iterable[int], *, until: float
    ) -> dict[int, Vote]:
        """The votes of other ranks that come until then; none if the store fails."""
        try:
            votes: dict[int, Vote] = self._in_time(
                lambda: self._gather(subject, others, until, all_of_them=True), until
            )
        except StoreLost:
            return {}
        return votes

    def agree(
        self,
        subject: str,
        own: Vote,
        others: Iterable[int],
        *,
        until: float,
        only: str | None = None,
    ) -> Vote | None:
        """Votes, waits for the others, and returns the objection that counts.

        With `only`, does not wait for ranks that have not voted on that subject yet.
        """
        until = min(until, time.monotonic() + LONGEST_WAIT_S)
        until = max(until, time.monotonic()) + _GRACE_S

        def decide() -> Vote | None:
            self._set(subject, own)
            waits = {r for r in others if only is None or self._get(only, r)}
            votes = self._gather(subject, waits, until)
            proposed = next(self._objections(own, waits, votes), None)
            # Groups that do not overlap decide about a subject on their own.
            key = self._key(subject, f"of {min({own.rank, *others})}")
            counts = self._store(lambda s: s.compare_set(key, "", _dumps(proposed)))
            return _loads(counts)

        try:
            decided: Vote | None = self._in_time(decide, until)
        except StoreLost as error:
            return Vote(own.rank, "no store", str(error))
        return decided

    def _objections(
        self, own: Vote, others: Iterable[int], votes: Mapping[int, Vote]
    ) -> Iterator[Vote]:
        yield from (vote for vote in votes.values() if vote.kind is not None)
        for rank in sorted(others):
            if (vote := votes.get(rank)) is None:
                yield Vote(rank, NO_ANSWER, "nothing heard of it until the deadline")
            elif vote.what != own.what:
                why = f"it has {_text(vote.what)}, rank {own.rank} {_text(own.what)}"
                yield Vote(rank, "different", why)

    def _gather(
        self,
        subject: str,
        others: Iterable[int],
        until: float,
        *,
        all_of_them: bool = False,
    ) -> dict[int, Vote]:
        """Waits until then, or until all have voted, or one objects."""
        waiting: set[int] = set(others)
        votes: dict[int, Vote] = {}
        pause_s = 0.005
        while True:
            for rank in sorted(waiting):
                vote = self._get(subject, rank) or self._get(_MODEL, rank)
                if vote is not None:
                    votes[rank] = vote
                    waiting.discard(rank)
                    if vote.kind is not None and not all_of_them:
                        return votes
            is_over = not waiting or time.monotonic() >= until
            if is_over or process_is_exiting.wait(pause_s):
                return votes
            pause_s = min(2 * pause_s, _LOOK_EVERY_S)

    # -- the store ---------------------------------------------------------------------

    def _in_time(self, work: Callable[[], Any], until: float) -> Any:
        """The result, or `StoreLost` if the store fails or does not answer."""
        if self._lost is None:
            try:
                task = Task(work, "torchproof-store")
            except RuntimeError as error:  # no further thread
                raise StoreLost(str(error)) from None
            if not task.wait(until + _STORE_S):
                self._lost = "the store of the process group did not answer"
            elif isinstance(task.error, StoreLost):
                self._lost = f"the store of the process group failed: {task.error}"
            elif task.error is not None:
                raise task.error
            else:
                return task.value
        raise StoreLost(self._lost)

    def _set(self, subject: str, vote: Vote) -> None:
        key = self._key(subject, vote.rank)
        self._store(lambda store: store.set(key, _dumps(vote)))

    def _get(self, subject: str, rank: int) -> Vote | None:
        key = self._key(subject, rank)
        if not self._store(lambda store: store.check([key])):
            return None  # `get` would wait for it
        return _loads(self._store(lambda store: store.get(key)))

    def _key(self, subject: str, who: object) -> str:
        return f"{self._prefix}/{subject}/{who}"

    def _store(self, operation: Callable[[Any], Any]) -> Any:
        try:
            return operation(self._group.store)
        except Exception as error:  # stores of other libraries raise errors of theirs
            lines = str(error).splitlines()
            raise StoreLost(lines[0] if lines else type(error).__name__) from None


def _dumps(vote: Vote | None) -> str:
    return json.dumps(None if vote is None else dataclasses.asdict(vote))


def _loads(text: bytes) -> Vote | None:
    fields = json.loads(text)
    return None if fields is None else Vote(**fields)


def _text(what: JsonObject | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in (what or {}).items())


# -- models ----------------------------------------------------------------------------


@dataclass
class Ballot:
    """One compilation of a function, on which the ranks vote.

    The first one with collectives is that of all ranks. `objection` is this rank's own,
    which stands until `torchproof.retry`, unless the `call` raises.
    """

    subject: str
    is_first: bool = True
    has_collectives: bool = False
    objection: Vote | None = None
    call: int | None = None


def join(forward: Forward) -> Agreement | None:
    """The agreement of a model at its first call; None without several ranks."""
    group = process_groups.default_group()
    if group is None:
        return None
    agreement = Agreement(group, forward.telemetry)
    agreement.begin_attempt(forward)
    return agreement


class Agreement:
    """The agreement of this rank with others about one model."""

    def __init__(
        self, group: process_groups.ProcessGroup, telemetry: Telemetry
    ) -> None:
        self._group = group
        self._telemetry = telemetry
        self._model: str | None = None  # its name and number
        self._attempt = 0
        self._lock = forks.lock()
        self._is_forked = False
        self._peers: frozenset[int] = frozenset()  # ranks of collectives in its graphs
        self._decisions: list[str] = []
        forks.register(self)

    def after_fork(self) -> None:
        """A forked process is no rank, and must not use the rank's connection."""
        self._is_forked = True

    @property
    def _is_alone(self) -> bool:
        return self._is_forked or not process_groups.is_open()

    def begin_attempt(self, forward: Forward) -> None:
        """At the first call, and after `torchproof.retry`."""
        self._attempt += 1
        self._box: Votes | None = None
        self._ballots: dict[CodeType, Ballot] = {}  # of first compilations
        self._named = Counter[str]()
        if forward.strategy == "eager":
            self.goes_eager("strategy", forward.why)
        deadline_s, timeout_s = forward.options.deadline_s, self._group.timeout_s
        if timeout_s is not None and deadline_s >= timeout_s:
            self._telemetry.note(
                f"the deadline of {deadline_s:g} s is not below the process group's"
                f" timeout of {timeout_s:g} s: while this rank compiles, the others may"
                " time out in a collective; pass a shorter deadline="
            )

    @property
    def _votes(self) -> Votes:
        """Made at the first use: other models may run on some ranks only."""
        with self._lock:
            name = self._telemetry.name
            self._model = self._model or f"{name}/{next(_numbers[name])}"
            if self._box is None:
                self._box = Votes(self._group, f"{self._model}/{self._attempt}")
            return self._box

    def goes_eager(self, kind: str, why: str) -> None:
        """Tells the others not to wait for this rank."""
        self._say(_MODEL, Vote(self._group.rank, kind, why))

    def ranks_in(self, gm: fx.GraphModule) -> frozenset[int]:
        """The ranks with which this one must agree before it uses a captured graph."""
        groups = process_groups.groups_in_graph(gm)
        ranks = max(groups, key=len, default=frozenset())
        if not all(group <= ranks for group in groups):
            # Its peers have peers that this rank does not know, and would decide apart.
            ranks = self._group.others
        return ranks - {self._group.rank}

    def begin(self, code: CodeType, name: str) -> Ballot:
        """Before a compilation of a function; `agree` or `object` has to follow."""
        with self._lock:
            first = self._ballots.get(code)
            if first is None:
                number = self._count(name)  # functions may have the same name
                ballot = self._ballots[code] = Ballot(f"{name}/{number}")
                return ballot
            if first.objection is not None or not first.has_collectives:
                return first
            again = f"{first.subject}/{self._telemetry.call}"
            ballot = Ballot(f"{again}/{self._count(again)}", is_first=False)
        self._say(_begun(ballot), Vote(self._group.rank))
        return ballot

    def _count(self, name: str) -> int:
        self._named[name] += 1
        return self._named[name]

    def object(self, ballot: Ballot, item: Fallback) -> None:
        """Says that this rank runs the function eager."""
        ballot.objection = Vote(self._group.rank, item.kind, item.why)
        ballot.call = self._telemetry.call
        self._say(ballot.subject, ballot.objection)
        if item.kind == "deadline":  # it compiles nothing else in this call
            self._say(_MODEL, ballot.objection)

    def call_raised(self, call: int | None) -> None:
        """What failed in it may be compiled again, as if for the first time."""
        with self._lock:
            for code, ballot in list(self._ballots.items()):
                if ballot.objection is not None and ballot.call == call is not None:
                    del self._ballots[code]

    def agree(
        self, ballot: Ballot, ranks: frozenset[int], *, until: float
    ) -> Vote | None:
        """Why the function must run eager; None if all ranks have compiled it.

        `ranks` are those of the collectives in its code.
        """
        if process_groups.compiling_runs_collectives():
            ranks = self._group.others
        own = Vote(self._group.rank)
        if not ranks or self._is_alone or ballot.objection is not None:
            if not ballot.is_first and ballot.objection is None:
                self._say(ballot.subject, own)
            return ballot.objection if ranks else None
        self._peers |= ranks
        ballot.has_collectives = True
        only = None if ballot.is_first else _begun(ballot)
        objection = self._votes.agree(
            ballot.subject, own, ranks, until=until, only=only
        )
        if objection is not None:
            self._decisions.append(str(objection))
        return objection

    def agree_on_verification(self, *, until: float) -> Vote | None:
        """Why the model must run eager, after a call that passed its verification."""
        ballot = Ballot(f"verification/{self._telemetry.call}")
        return self.agree(ballot, self._peers, until=until)

    def _say(self, subject: str, vote: Vote) -> None:
        if not self._is_alone:
            self._votes.say(subject, vote)

    def to_json(self) -> JsonObject:
        return {
            "rank": self._group.rank,
            "world_size": self._group.world_size,
            "decides_with": sorted(self._peers),
            "decisions": [*self._decisions],
        }


def _begun(ballot: Ballot) -> str:
    return f"begun/{ballot.subject}"
