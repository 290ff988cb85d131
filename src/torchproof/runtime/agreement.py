"""Decisions that the ranks of a distributed run take together about one model.

Replicas may run different code: as long as compiled code contains no collective, a rank
that fails goes to eager alone. Code with collectives must not be mixed: compiled code
may merge or reorder collectives that eager runs one by one, and then every rank waits
for another one. So the ranks of the groups in its graphs (the *peers*) decide together:

- A compilation, and a verification, is settled before its outcome is used. Each rank
  votes, confirms that it has read all votes, and reads the decision, of which the first
  one written counts. If a rank objects, all run the function eager. If a rank does not
  answer in time, or a rank cannot reach the store, the model runs eager.
- A failure that only one rank meets (a guard that fails there alone, a first run)
  calls a meeting. Each rank writes the number of a call that it has not begun, and all
  switch the model to eager at the highest of them.

Votes and notices lie in the store of the process group. A call of compiled code reads
none of them: a thread looks at the store, and replaces what the next call runs.

A rank whose store fails between its confirmation and the decision runs eager and cannot
say so, while the others use the code. No protocol over one channel can exclude this.
So each rank says that it uses the code, and the others go eager if one does not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from torchproof.process import forks
from torchproof.records import JsonObject
from torchproof.runtime.background import Task, process_is_exiting
from torchproof.runtime.rank_messages import (
    NO_ANSWER,
    NO_STORE,
    Notice,
    RankMessages,
    StoreLost,
)
from torchproof.runtime.status_report import Fallback
from torchproof.torch_private import process_groups

if TYPE_CHECKING:
    from torch import fx

    from torchproof.runtime.interfaces import Forward

KIND: Final = "agreement"  # of fallbacks that follow another rank
WHOLE = "the model"
_LONGEST_WAIT_S = 600.0  # for other ranks, if there is no deadline
_VOTE_EVERY_S = 0.02
_WATCH_EVERY_S = 0.25
_POST_S = 10.0  # how long a call waits until the store has taken a message
_STATUS_S = 1.0  # how long `status` waits for the store
# How long after the deadline a vote may come: a peer needs time to end its compilers.
_GRACE_S = 1.0
# How long after the last vote a confirmation may come, and how long after the deadline.
_CONFIRM_S = 30.0
_LATE_CONFIRM_S = 0.4
# A store that answers late delays a call by at most this.
_PATIENCE_S = 0.5
# A rank that says nothing for so long does not reach the store: its thread beats four
# times a second.
_SILENT_S = 5.0
# How long after a decision every rank must have said that it uses the code.
_USED_S = 10.0
_SHOWN = 20  # notices in `status`

# How many models of each name had their first call. Ranks with collectives in common
# call their models in the same order, so the number names the same model on each.
_numbers: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)


def join(forward: Forward) -> Agreement | None:
    """The agreement of a model at its first call; None without several ranks."""
    group = process_groups.default_group()
    if group is None:
        return None
    name = forward.telemetry.name
    model = f"{name}/{next(_numbers[name])}"
    agreement = Agreement(group, model, forward)
    agreement.begin_attempt()
    return agreement


class Agreement:
    """One model's agreement between this rank and its peers."""

    def __init__(
        self, group: process_groups.ProcessGroup, model: str, forward: Forward
    ) -> None:
        self._group = group
        self._model = model
        self._forward = weakref.ref(forward)
        self._telemetry = forward.telemetry
        self._limit_s = min(forward.options.deadline_s, _LONGEST_WAIT_S)
        self._attempts = itertools.count()
        self._lock = forks.lock()
        self._reading = forks.lock()  # held while the store answers, which may hang
        self._watcher: Task | None = None
        self._groups: frozenset[frozenset[int]] = frozenset()  # in captured graphs
        self.peers: frozenset[int] = frozenset()
        self.alone: str | None = None  # why this rank decides alone
        self.lost: str | None = None  # why it cannot agree with its peers
        self.doubt: Notice | None = None  # why the model runs eager
        self.decisions: list[str] = []
        forks.register(self)

    def after_fork(self) -> None:
        """A forked process is no rank, and must not use the rank's connection."""
        self.alone = "this process was forked from a rank"

    def begin_attempt(self) -> None:
        """Says how this rank runs the model; also after `torchproof.retry`."""
        forward = self._forward()
        assert forward is not None
        self.doubt = None
        if self.lost is not None:  # the store may answer again
            self.lost = self.alone = self._watcher = None
        self._messages = RankMessages(
            self._group.store,
            self._group.rank,
            self._model,
            attempt=next(self._attempts),
        )
        self._notices: list[Notice] = []
        self._settled: set[tuple[int, str]] = set()  # (rank, what) already acted on
        self._strategy = forward.strategy
        self.arrival: int | None = None  # the first call at which this rank can switch
        self._beats = itertools.count()
        # The subjects of code in use, and until when their voters must use it too.
        self._used: dict[str, tuple[frozenset[int], float]] = {}
        messages = self._messages
        self._post(lambda: messages.set_strategy(self._strategy))
        for item in self._telemetry.fallbacks:
            self.announce(item)
        if forward.has_packed_collectives or (
            process_groups.compiling_runs_collectives()
        ):
            self._add_peers(self._group.others)
        self._compare_with_timeout(forward.options.deadline_s)

    def _compare_with_timeout(self, deadline_s: float) -> None:
        timeout_s = self._group.timeout_s
        if timeout_s is not None and deadline_s >= timeout_s:
            self._telemetry.note(
                f"the deadline of {deadline_s:g} s is not below the process group's"
                f" timeout of {timeout_s:g} s: while this rank compiles, the others may"
                " time out in a collective; pass a shorter deadline="
            )

    # -- what this rank knows ----------------------------------------------------------

    def note_graph(self, gm: fx.GraphModule) -> None:
        """Adds the ranks whose collectives a captured graph contains."""
        groups = process_groups.groups_in_graph(gm)
        ranks = frozenset().union(*groups) - {self._group.rank}
        self._groups |= groups
        largest = max(self._groups, key=len, default=frozenset())
        if not all(group <= largest for group in self._groups):
            # Its peers have peers that this rank does not know, and would decide apart.
            ranks = self._group.others
        self._add_peers(ranks)

    def _add_peers(self, ranks: Iterable[int]) -> None:
        with self._lock:
            self.peers |= frozenset(ranks)
            if self.peers and self._watcher is None:
                self._watcher = Task(self._watch, "torchproof-ranks")

    @property
    def is_needed(self) -> bool:
        """Whether other ranks must decide as this one does."""
        is_alone = self.alone is not None and self.lost is None
        return bool(self.peers) and not is_alone

    # -- votes -------------------------------------------------------------------------

    def announce(self, item: Fallback) -> None:
        """Tells all ranks about a fallback, without waiting for the store."""
        notice = self._notice(item)
        messages = self._messages
        if self._is_connected():
            self._start(lambda: messages.notify(notice))

    def begin(self, subject: str) -> None:
        """Tells the peers that this rank compiles, before it does."""
        if self.is_needed:
            messages = self._messages
            self._post(lambda: messages.begin(subject))

    def settle(
        self,
        subject: str,
        what: str,
        *,
        failure: Fallback | None = None,
        until: float,
        by_all: bool,
    ) -> Notice | None:
        """Votes on `what`, and returns why the peers run it eager, or None.

        Waits for the votes of all peers, at most until then. Without `by_all`, peers
        that have not begun are not waited for: they use code that they have. If it is
        not certain that all decide alike, the model runs eager.
        """
        if not self.is_needed:
            return None
        own = None if failure is None else self._notice(failure)
        left_s = max(0.0, until - time.monotonic())  # 0 after a missed deadline
        wait_s = min(left_s, self._limit_s) + _GRACE_S
        ballot = _Ballot(
            agreement=self,
            subject=subject,
            what=what,
            call=self._telemetry.call,
            until=time.monotonic() + wait_s,
            by_all=by_all,
        )
        decision = self._decision(
            ballot, own, wait_s=wait_s + _LATE_CONFIRM_S + _PATIENCE_S
        )
        if decision is None:
            return None
        self._note_decision(decision, ballot)
        if decision.is_doubt:
            self._go_eager(decision)
        return decision

    def _decision(
        self, ballot: _Ballot, own: Notice | None, *, wait_s: float
    ) -> Notice | None:
        try:
            decision = self._in_time(lambda: ballot.cast(own), wait_s)
        except StoreLost as error:
            return Notice(self._group.rank, WHOLE, NO_STORE, str(error))
        assert decision is None or isinstance(decision, Notice)
        if decision is None and self.alone is None:
            self._say_that_it_is_used(ballot.subject, ballot.voters)
        return decision

    def _say_that_it_is_used(self, subject: str, voters: frozenset[int]) -> None:
        """Without waiting for the store; if it fails, the peers go eager, as it does.

        They cannot know whether this rank has read the decision.
        """
        messages = self._messages
        with self._lock:
            self._used[subject] = voters, time.monotonic() + _USED_S

        def say() -> None:
            try:
                messages.use(subject)
            except StoreLost as error:
                self._lose(f"the store failed: {error}")
                if self.lost is not None:  # else there are no other ranks any more
                    self._go_eager(Notice(self._group.rank, WHOLE, NO_STORE, self.lost))

        self._start(say)

    def _note_decision(self, decision: Notice, ballot: _Ballot) -> None:
        with self._lock:
            self._settled |= {
                (each.rank, each.what)
                for each in (decision, *self._notices)
                if each.call == ballot.call or each.what in (ballot.what, WHOLE)
            }
        if decision.rank != self._group.rank or decision.kind == NO_STORE:
            self.decisions.append(str(decision))

    def _go_eager(self, why: Notice) -> None:
        """Runs the model eager, from what this call has not begun yet on."""
        self.doubt = why
        forward = self._forward()
        if forward is not None and forward.strategy != "eager":
            forward.go_eager(Fallback(KIND, WHOLE, str(why)))
            self._telemetry.mark_current_call_eager()

    def _notice(self, item: Fallback) -> Notice:
        call = self._telemetry.call
        if call is None:  # in another thread, such as one of the autograd engine
            call = self._telemetry.calls - 1
        return Notice(self._group.rank, item.what, item.kind, item.why, call)

    def objection_of(self, rank: int, what: str, call: int | None) -> Notice | None:
        """Why a rank does not run compiled code of `what`, from what it has said."""
        for notice in self._notices:
            # After its deadline, a rank compiles nothing else in the same call.
            is_late = notice.kind == "deadline" and notice.call == call
            if notice.rank == rank and (is_late or notice.what in (what, WHOLE)):
                return notice
        strategy = self._messages.strategy_of(rank)
        if strategy is not None and strategy != self._strategy:
            why = f"strategy {strategy} there, {self._strategy} here"
            return Notice(rank, WHOLE, "strategy", why)
        return None

    def refresh(self) -> None:
        """Reads the notices that other ranks have written since."""
        with self._reading:
            self._notices += self._messages.new_notices()

    @property
    def messages(self) -> RankMessages:
        return self._messages

    @property
    def first_rank(self) -> int:
        """The lowest of the ranks that decide together: it names their decisions."""
        return min(self.peers | {self._group.rank})

    # -- the switch at an agreed call --------------------------------------------------

    def _watch(self) -> None:
        """Looks at the store until the model or the process ends."""
        while not process_is_exiting.wait(_WATCH_EVERY_S):
            forward = self._forward()
            if forward is None or not self._is_connected():
                return
            try:
                self._look(forward)
            except StoreLost as error:
                self._lose(f"the store failed: {error}")
            del forward  # the model may be deleted while this thread sleeps

    def _look(self, forward: Forward) -> None:
        if forward.strategy == "eager":
            return  # until `torchproof.retry`
        self._messages.beat(next(self._beats))
        self.refresh()
        why = self._messages.meeting()
        if why is None:
            why = next((each for each in self._notices if self._calls_for(each)), None)
            why = why or self._unused()
            if why is not None and not forward.is_voting:
                self._messages.call_meeting(why)
        if why is not None and not forward.is_voting:
            AgreedSwitch.install(forward, self, why)
            self._arrive()

    def _unused(self) -> Notice | None:
        """A notice about a rank that does not say that it uses what all compiled."""
        with self._lock:
            used = dict(self._used)
        for subject, (voters, until) in used.items():
            missing = [r for r in voters if not self._messages.uses(subject, r)]
            if not missing:
                with self._lock:
                    self._used.pop(subject, None)
            elif time.monotonic() >= until:
                why = "did not say that it uses the code that all ranks compiled"
                return Notice(min(missing), WHOLE, NO_ANSWER, why)
        return None

    def _arrive(self) -> None:
        """Writes from which call on the installed switch is obeyed.

        A call that is about to take its number may have read what it runs before. This
        thread writes it, because the call in progress may wait for another rank.
        """
        if self.arrival is None:
            self.arrival = self._telemetry.calls + 1
            self._messages.arrive(self.arrival)

    def _calls_for(self, notice: Notice) -> bool:
        """Whether this rank still runs compiled what a peer began to run eager."""
        if notice.rank not in self.peers or notice.kind == KIND:
            return False
        if (notice.rank, notice.what) in self._settled:
            return False
        # Before this rank begins the call, its vote in that call may settle it.
        if notice.call is None or self._telemetry.calls <= notice.call:
            return False
        return notice.what not in {each.what for each in self._telemetry.fallbacks}

    def agreed_call(self, call: int) -> int:
        """The call at which all peers switch; this rank is about to run `call`."""
        until = time.monotonic() + self._limit_s
        try:
            switch = self._in_time(
                lambda: self._meet(call, until), self._limit_s + _PATIENCE_S
            )
        except StoreLost:
            return call
        return call if switch is None else switch

    def _meet(self, call: int, until: float) -> int:
        missing = set(self.peers)
        latest = call
        beats = Beats(self._messages, missing)
        while missing and time.monotonic() < until:
            self.refresh()
            for rank in sorted(missing):
                arrival = self._messages.arrival_of(rank)
                if arrival is not None:
                    latest = max(latest, arrival)
                if arrival is not None or not self._will_arrive(rank):
                    missing.discard(rank)
            if all(beats.silent_s(rank) > _SILENT_S for rank in missing):
                break
            if missing and process_is_exiting.wait(_VOTE_EVERY_S):
                break
        if missing:
            # The others may never come: this rank switches now, and they with it.
            latest = call
            self.decisions.append(f"no answer of ranks {_listed(missing)}")
        return self._messages.decide_call(f"switch/{self.first_rank}", latest)

    def _will_arrive(self, rank: int) -> bool:
        """False if the rank runs eager, or has no compiled code with collectives."""
        is_eager = any(
            each.rank == rank and each.what == WHOLE for each in self._notices
        )
        return not is_eager and self._messages.beat_of(rank) is not None

    # -- the store ---------------------------------------------------------------------

    def _in_time(self, work: Callable[[], Any], seconds: float) -> Any:
        """The result, from a thread of its own: a store that hangs delays no call.

        None if there are no other ranks any more. Raises `StoreLost` if the store fails
        or does not answer.
        """
        if self.lost is not None:
            raise StoreLost(self.lost)
        if not self._is_connected():
            return None
        thread = self._start(work)
        if not thread.wait(time.monotonic() + seconds):
            self._lose(f"the store did not answer for {seconds:.0f} s")
        elif isinstance(thread.error, StoreLost):
            self._lose(f"the store failed: {thread.error}")
        elif thread.error is not None:
            raise thread.error
        else:
            return thread.value
        raise StoreLost(self.lost)

    def _post(self, work: Callable[[], None]) -> None:
        """Writes a message; without it, the peers wait in vain and run eager."""
        with contextlib.suppress(StoreLost):
            self._in_time(work, _POST_S)

    def _start(self, work: Callable[[], Any]) -> Task:
        return Task(work, "torchproof-store")

    def _is_connected(self) -> bool:
        if self.alone is None and not process_groups.is_open():
            self.alone = "the process group was closed"
        return self.alone is None

    def _lose(self, why: str) -> None:
        """From now on, nothing with collectives is compiled: the peers do not know."""
        if self.alone is None:
            self.lost = self.alone = why
            if self.peers:
                self._telemetry.note(
                    f"this rank cannot agree with the others ({why}): it compiles no"
                    " more code with collectives"
                )

    # -- status ------------------------------------------------------------------------

    def to_json(self) -> JsonObject:
        """`fallbacks` are those of other ranks; null if the store did not answer."""
        fallbacks = None
        if self._is_connected():
            thread = self._start(self.refresh)
            if thread.wait(time.monotonic() + _STATUS_S) and thread.error is None:
                latest = self._notices[-_SHOWN:]
                fallbacks = [dataclasses.asdict(each) for each in latest]
        return {
            "rank": self._group.rank,
            "world_size": self._group.world_size,
            "decides_with": sorted(self.peers),
            "alone": self.alone,
            "decisions": [*self.decisions],
            "fallbacks": fallbacks,
        }


class Beats:
    """Notices which ranks still reach the store, since it was created."""

    def __init__(self, messages: RankMessages, ranks: Iterable[int]) -> None:
        self._messages = messages
        now = time.monotonic()
        self._last = {rank: (messages.beat_of(rank), now) for rank in ranks}
        self._with_new_beat: set[int] = set()

    def has_new_beat(self, rank: int) -> bool:
        """Whether a heartbeat of the rank has arrived since the start."""
        self.silent_s(rank)
        return rank in self._with_new_beat

    def silent_s(self, rank: int) -> float:
        beat, since = self._last[rank]
        now = time.monotonic()
        if (latest := self._messages.beat_of(rank)) != beat:
            self._last[rank] = latest, now
            self._with_new_beat.add(rank)
            return 0.0
        return now - since


@dataclasses.dataclass
class _Ballot:
    """One vote on a subject, for example the compilation of a function in a call."""

    agreement: Agreement
    subject: str
    what: str
    call: int | None
    until: float
    by_all: bool
    voters: frozenset[int] = frozenset()  # the peers that voted

    def cast(self, own: Notice | None) -> Notice | None:
        """Votes, waits for the others, and returns the objection that counts."""
        messages = self.agreement.messages
        messages.vote(self.subject, own)
        if own is not None:
            return own  # the peers follow
        objection = self._objection()
        if objection is None:
            messages.confirm(self.subject)
            objection = self._confirmed()
        if objection is not None and objection.kind == NO_ANSWER and not self.by_all:
            # Ranks that use code that they have do not read the decision.
            messages.call_meeting(objection)
        return messages.decide(self._decision, objection)

    @property
    def _decision(self) -> str:
        return f"{self.subject}/{self.agreement.first_rank}"

    def _objection(self) -> Notice | None:
        """The first objection of a peer, or ours to a peer that does not answer."""
        waiting = set(self.agreement.peers)
        beats = Beats(self.agreement.messages, waiting)
        while True:
            self.agreement.refresh()
            for rank in sorted(waiting):
                objection, is_done = self._answer_of(rank, beats)
                if objection is not None:
                    return objection
                if is_done:
                    waiting.discard(rank)
            if not waiting:
                return None
            is_late = time.monotonic() >= self.until
            if is_late or process_is_exiting.wait(_VOTE_EVERY_S):
                why = f"did not vote on {self.what} until the deadline"
                return Notice(min(waiting), WHOLE, NO_ANSWER, why)

    def _answer_of(self, rank: int, beats: Beats) -> tuple[Notice | None, bool]:
        messages = self.agreement.messages
        has_voted, objection = messages.vote_of(self.subject, rank)
        if has_voted:
            self.voters |= {rank}
            return objection, True
        objection = self.agreement.objection_of(rank, self.what, self.call)
        uses_old_code = not self.by_all and not messages.has_begun(self.subject, rank)
        # A rank that does not reach the store could not say that it has begun.
        return objection, uses_old_code and beats.has_new_beat(rank)

    def _confirmed(self) -> Notice | None:
        """None if every voter has read all votes; else what decides for eager."""
        messages = self.agreement.messages
        latest = self.until + _LATE_CONFIRM_S
        until = min(latest, time.monotonic() + _CONFIRM_S)
        waiting = set(self.voters)
        while True:
            waiting -= {r for r in waiting if messages.has_confirmed(self.subject, r)}
            if not waiting or messages.is_decided(self._decision):
                return None
            if time.monotonic() >= until or process_is_exiting.wait(_VOTE_EVERY_S):
                why = f"did not confirm its vote on {self.what}"
                return Notice(min(waiting), WHOLE, NO_ANSWER, why)


class AgreedSwitch:
    """What a forward runs until the call at which all its peers switch to eager."""

    def __init__(
        self,
        forward: Forward,
        agreement: Agreement,
        why: Notice,
        *,
        run: Callable[..., Any],
    ) -> None:
        self._forward = forward
        self._agreement = agreement
        self._why = why
        self._run = run
        self._at: int | None = None

    @classmethod
    def install(cls, forward: Forward, agreement: Agreement, why: Notice) -> None:
        def around(run: Callable[..., Any]) -> Callable[..., Any]:
            is_installed = isinstance(run, cls)
            return run if is_installed else cls(forward, agreement, why, run=run)

        forward.replace_run(around)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        forward = self._forward
        call = forward.telemetry.call
        arrival = self._agreement.arrival
        if call is None or arrival is None or call < arrival:
            return self._run(*args, **kwargs)
        if self._at is None:
            self._at = self._agreement.agreed_call(call)
        if call < self._at:
            return self._run(*args, **kwargs)
        self._agreement.decisions.append(f"eager from call {self._at}: {self._why}")
        forward.go_eager(Fallback(KIND, WHOLE, str(self._why)))
        forward.telemetry.mark_current_call_eager()
        return forward.run(*args, **kwargs)


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))
