"""Runs trials on one device: each candidate in its own process, compared with eager.

Takes a plan without strategies and candidates one at a time, returns trials and the
measurements of the finalists. All of that is plain data, so that a worker can run in
another process or on another machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torchproof.measure import (
    EAGER,
    Done,
    Facts,
    Plan,
    Replayed,
    Session,
    StrategySpec,
    StrategyState,
    WorkerError,
    rows,
    starts,
)
from torchproof.records import Measurement, Outcome, Trial, UserError, Verdict
from torchproof.tuning.candidates import SWITCHES, Candidate, Eager

_OWN_REPLAYS = 100  # in which a strategy has to repeat its own outputs
ROUNDS = 4  # rounds of a trial: the fewest that give a confidence interval
_MEMORY = re.compile(r"out ?of ?memory|can't allocate memory|CUDA_ERROR_OUT_OF", re.I)
_PATIENCE_S = 120.0  # least time limit for finalists, which have answered before
# The outcomes of these verdicts; with any other verdict the trial was measured.
_OUTCOMES: dict[str, Outcome] = {
    "skipped": "not applicable",
    "wrong": "wrong",
    "unverified": "unverified",
    "not measured": "failed",
    Verdict.FELL_BACK: "failed",
}
Progress = Callable[[str], None]
Finalists = Sequence[tuple[Candidate, Trial]]


class TimingLock:
    """Lets the workers of one machine compile at once, or a single one be timed.

    They may be threads or processes: the locks are files, which the kernel releases if
    a worker is killed.
    """

    def __init__(self, folder: Path) -> None:
        self._turn, self._inside = folder / "turn", folder / "inside"

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            # A worker that waits for timing holds the turn, so no other one starts.
            with _locked(self._turn, fcntl.LOCK_EX):
                stack.enter_context(_locked(self._inside, fcntl.LOCK_SH))
            yield

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        with _locked(self._turn, fcntl.LOCK_EX), _locked(self._inside, fcntl.LOCK_EX):
            yield


@contextlib.contextmanager
def _locked(file: Path, operation: int) -> Iterator[None]:
    with open(file, "a") as opened:
        fcntl.flock(opened, operation)
        yield


class Worker:
    """Runs trials on one device.

    `home` is the directory that all workers of this machine share, for compiled code.
    With `shares_caches`, candidates reuse code that others compiled: their step times
    stay valid, their first calls do not. The same holds for first calls if the worker
    is not `alone` on the machine. `where` names the device in reports.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        *,
        home: Path | None = None,
        shares_caches: bool,
        alone: bool = True,
        where: str = "",
        progress: Progress = lambda text: None,
    ) -> None:
        self.where = where
        self.shares_caches = shares_caches
        self.alone = alone
        self.session = Session(plan, folder, progress)
        self.session.scratch = folder
        self.eager = StrategyState(StrategySpec(EAGER), folder / "caches-eager")
        self._home = home or folder
        self._timing_lock = TimingLock(self._home)
        self._finalists: dict[str, StrategyState] = {}

    # -- eager -------------------------------------------------------------------------

    def probe(self, limit_s: float) -> Eager:
        """Compute reference outputs, time eager alone, and inspect the target."""
        begin = time.monotonic()
        self.session.set_deadline(limit_s)
        with self._timing_lock.shared():
            self._refer()
        with (
            self._timing_lock.exclusive(),
            self.session.recording_failure(self.eager),
        ):
            self._sample([self.eager], ROUNDS)
            settings = [switch.setting for switch in SWITCHES]
            probed = self.eager.ask(
                Facts, "probe", self.session.limit_s, settings=settings
            )
            self.session.examine([self.eager], 0)
        if self.eager.error:
            raise UserError(f"the target fails in eager: {self.eager.error}")
        reference = self.session.references[None, 0]
        trial = self._trial(Candidate(self.eager.spec), self.eager)
        trial = replace(trial, seconds=time.monotonic() - begin)
        return Eager(trial, probed.probe or {}, reference.environment)

    def _refer(self) -> None:
        """Compute the reference outputs and start eager's process, once."""
        if self.session.references:
            return
        self.session.states = [self.eager]
        self.session.compute_references()
        if self.session.references[None, 0].compiled:
            raise UserError(
                f"{self.session.plan.target.text} compiles itself, which leaves no"
                " strategy to choose; use torchproof bench to compare it with eager"
            )
        try:
            self.session.begin(self.eager)
        except WorkerError as error:
            raise UserError(f"the target fails in eager: {error}") from None

    def _revive(self) -> None:
        """Restart eager's process if it was killed, for example for lack of memory."""
        if self.eager.runs and self.eager.process is not None:
            return
        self.eager.error = None
        with (
            self.session.recording_failure(self.eager),
            self.session.without_deadline(),
        ):
            self.session.begin(self.eager, repeat=1)

    # -- a trial -----------------------------------------------------------------------

    def trial(self, candidate: Candidate, limit_s: float) -> Trial:
        """Run a trial: it starts while others run, and is timed alone."""
        with self._timing_lock.shared():
            begin = time.monotonic()
            self.session.set_deadline(limit_s)
            self._refer()
            state = self._begun(candidate)
            spent_s = time.monotonic() - begin
        with self._timing_lock.exclusive():
            begin = time.monotonic()
            self.session.set_deadline(max(1.0, limit_s - spent_s))
            if state.runs and state.facts[0].verdict != "wrong":
                self._revive()
                self._sample([self.eager, state], ROUNDS)
                self.session.examine([state], 0)
            trial = self._trial(candidate, state)
            spent_s += time.monotonic() - begin
        state.close()
        if trial.outcome == "timed out":  # the limit of its last request says little
            trial = replace(trial, why=f"not finished within {limit_s:.0f} s")
        return replace(trial, seconds=spent_s, limit_s=limit_s)

    def _begun(self, candidate: Candidate, facts: Facts | None = None) -> StrategyState:
        """Start a candidate; with `facts` of its trial, from warm caches."""
        known = [] if facts is None else [facts]
        state = StrategyState(candidate.spec, self._caches(candidate), facts=known)
        try:
            with self.session.recording_failure(state):
                self.session.begin(state, repeat=0 if facts is None else 1)
                if facts is None:
                    self.session.recheck_random_draws(state)
        except UserError as error:  # this candidate does not apply; others may
            state.skipped = str(error)
            state.close()
        return state

    def _caches(self, candidate: Candidate) -> Path:
        name = "all" if self.shares_caches else candidate.spec.file_name
        return self._home / "caches" / name

    def _sample(self, states: Sequence[StrategyState], rounds: int) -> None:
        """Measure rounds of these strategies and discard earlier ones."""
        for state in states:
            state.facts[0] = state.facts[0].without_rounds().with_repeat()
        self._take_turns(states, rounds)

    def _take_turns(self, states: Sequence[StrategyState], rounds: int) -> None:
        for turn in range(rounds):
            for state in states if turn % 2 == 0 else states[::-1]:
                if not state.runs:
                    continue
                with contextlib.ExitStack() as stack:
                    stack.enter_context(self.session.recording_failure(state))
                    if state is self.eager:  # a late candidate must not end it
                        stack.enter_context(self.session.without_deadline())
                    self.session.sample(state, 0)

    def _rows(self, states: Sequence[StrategyState]) -> tuple[Measurement, ...]:
        session = self.session
        return rows.rows([self.eager, *states], session.plan, session.references)

    def _trial(self, candidate: Candidate, state: StrategyState) -> Trial:
        row = self._rows([] if state is self.eager else [state])[-1]
        facts = state.facts[0] if state.facts else None
        outcome, why = outcome_of(row, timed_out=state.timed_out)
        cold = None
        if facts:
            alone = self.alone or state is self.eager
            cold = row.first_call_s is not None and alone
        more_s = starts.setup_s(row.start)
        return Trial(
            name=candidate.name,
            stage=candidate.stage,
            outcome=outcome,
            why=why,
            step_ms=row.median_ms,
            first_call_s=facts.first_call_s if facts else None,
            start_s=row.first_call_s + more_s if cold and row.first_call_s else None,
            cold=cold,
            peak_bytes=row.peak_bytes,
            mfu=row.mfu,
            mfu_at_least=bool((row.flops or {}).get("not_counted")),
            kernel_ms=(row.kernels or {}).get("kernel_ms"),
            generated_ms=(row.kernels or {}).get("generated_ms"),
            numerics=row.numerics,
            vs_eager=row.vs_eager,
            vs_eager_low=row.vs_eager_low,
            vs_eager_high=row.vs_eager_high,
            where=self.where,
            source=row.source,
            pass_ms=facts.pass_ms if facts else None,
            graph_breaks=((facts and facts.counts) or {}).get("graph_breaks"),
            plan=facts.plan if facts else None,
            facts=facts.to_json() if facts else {},
        )

    # -- finals ------------------------------------------------------------------------

    def compare(self, finalists: Finalists, rounds: int) -> tuple[Measurement, ...]:
        """Measure eager and the finalists in alternating rounds, which accumulate.

        Their first call here starts them in new processes, with another memory layout;
        the rounds of the trials were measured at different times and do not count.
        """
        session = self.session
        session.set_deadline(None)
        self._refer()
        if not self._finalists:
            self._revive()
            self.eager.facts[0] = self.eager.facts[0].without_rounds().with_repeat()
        names = [candidate.name for candidate, _ in finalists]
        for name in self._finalists.keys() - names:
            self._finalists.pop(name).close()
        for candidate, trial in finalists:
            if candidate.name not in self._finalists:
                # It started within that time before, with colder caches.
                session.set_deadline(max(_PATIENCE_S, 4 * (trial.seconds or 0.0)))
                self._finalists[candidate.name] = self._started(candidate, trial)
        states = [self.eager, *(self._finalists[name] for name in names)]
        passes_s = [state.facts[0].pass_ms / 1e3 for state in states if state.facts]
        session.set_deadline(_PATIENCE_S + 10 * rounds * sum(passes_s))
        self._take_turns(states, rounds)
        return self._rows(states[1:])

    def _started(self, candidate: Candidate, trial: Trial) -> StrategyState:
        if trial.facts:
            facts = Facts.from_json(trial.facts).without_rounds()
            return self._begun(candidate, facts)
        state = self._begun(candidate)  # the trial is of an earlier search
        self.session.examine([state], 0)
        return state

    # -- the winner --------------------------------------------------------------------

    def replay(
        self, candidate: Candidate, base: Candidate, count: int, limit_s: float
    ) -> Replayed:
        """Compare passes of a candidate with one of its base, bit by bit.

        Raises `WorkerError` if the base does not repeat its own outputs.
        """
        session = self.session
        if session.plan.ranks is not None:  # a rank that differs would stop alone
            raise WorkerError("replays are not compared on several ranks")
        self._refer()
        session.set_deadline(limit_s)
        if not session.references[None, 0].deterministic:
            raise WorkerError("in eager, outputs change from pass to pass")
        path = session.scratch / "exact-outputs.pt"
        saved = {"answers": str(path)}
        try:
            without, state = self._running(base), self._running(candidate)
            session.progress(f"{candidate.name}: comparing {count:,} replays")
            without.ask(Done, "save_exact_outputs", session.limit_s, **saved)
            own = without.ask(
                Replayed, "replay", session.limit_s, count=_OWN_REPLAYS, **saved
            )
            if own.differs:
                raise WorkerError(
                    f"{base.name} does not repeat its own outputs: replay"
                    f" {own.equal + 1} differs in {own.differs}"
                )
            return state.ask(Replayed, "replay", session.limit_s, count=count, **saved)
        finally:
            path.unlink(missing_ok=True)

    def _running(self, candidate: Candidate) -> StrategyState:
        """The state of a candidate whose process runs."""
        state = self._finalists.get(candidate.name)
        if state is None or not state.runs:
            state = self._finalists[candidate.name] = self._begun(candidate)
        if not state.runs:
            raise WorkerError(f"{candidate.name}: {state.error or state.skipped}")
        return state

    def close(self) -> None:
        self.session.close()


def is_short_of_memory(error: str) -> bool:
    return bool(_MEMORY.search(error))


def outcome_of(
    row: Measurement, *, timed_out: bool = False
) -> tuple[Outcome, str | None]:
    """The outcome of a measurement, and the reason if it is not `measured`."""
    if timed_out:
        return "timed out", row.error
    if row.error:
        short = is_short_of_memory(row.error)
        return "out of memory" if short else "failed", row.error
    outcome = _OUTCOMES.get(row.verdict, "measured")
    if outcome == "measured":
        return outcome, None
    reason = (row.numerics or {}).get("why") if outcome != "not applicable" else None
    return outcome, reason or "; ".join(row.fell_back or row.notes) or row.verdict
