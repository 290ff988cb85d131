"""One device that tries candidates: each in a process of its own, beside eager.

Comes in: a plan without arms, and candidates one at a time. Goes out: trials, and the
measurements of the finalists. What it takes and gives is plain data, so that it may sit
in another process or on another machine.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchproof.measure import (
    EAGER,
    Plan,
    Session,
    StrategySpec,
    StrategyState,
    WorkerError,
    WorkerProcess,
    rows,
    start_record,
)
from torchproof.records import Measurement, UserError
from torchproof.tuning import wait_until_idle
from torchproof.tuning.prestarted_workers import PrestartedWorkers
from torchproof.tuning.timing_lock import TimingLock
from torchproof.tuning.trial import Candidate, Outcome, Trial

ROUNDS = 4  # of a trial: the fewest that give an interval
_MEMORY = re.compile(r"out ?of ?memory|can't allocate memory|CUDA_ERROR_OUT_OF", re.I)
_LATE = "no answer within"
_PATIENCE_S = 120.0  # with finalists, which have answered before
# What verdicts of measuring mean for a trial; others are of arms that were measured.
_OUTCOMES: dict[str, Outcome] = {
    "skipped": "not applicable",
    "wrong": "wrong",
    "not verified": "failed",
    "not measured": "failed",
    rows.FELL_BACK: "failed",
}
Progress = Callable[[str], None]


class Worker:
    """`where` names its device for people. `caches` is a folder for compiled code. With
    `shares_caches` candidates find what others compiled: steps are the same for it,
    first calls are not. Nor are they where others begin at the same time: then there
    are `prestarted`, processes that load the target ahead.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        *,
        caches: Path,
        shares_caches: bool,
        prestarted: int = 0,
        where: str = "",
        timing_lock: TimingLock | None = None,
        progress: Progress = lambda text: None,
    ) -> None:
        self.where, self.caches, self.shares_caches = where, caches, shares_caches
        self.crowded = prestarted > 1
        self.session = Session(plan, folder, progress)
        self.session.scratch = folder
        self.eager = StrategyState(StrategySpec(EAGER), folder / "caches-eager")
        self.timing_lock = timing_lock or TimingLock()
        self.prestarted = PrestartedWorkers(self._spare, prestarted)
        self.session.spare = self.prestarted.take
        self._states: dict[str, StrategyState] = {}
        self._referring = threading.Lock()

    # -- eager -------------------------------------------------------------------------

    def probe(self, limit_s: float) -> dict[str, Any]:
        """Reference answers, eager timed alone, and what is known of the target."""
        begin = time.monotonic()
        self.session.set_deadline(limit_s)
        self.prestarted.fill()
        self._refer()
        with self.session.recording_failure(self.eager):
            self._sample([self.eager], ROUNDS)
            facts = self.eager.ask("probe", self.session.limit_s)["probe"]
            self.session.examine([self.eager], 0)
        if self.eager.error:
            raise UserError(f"the target fails in eager: {self.eager.error}")
        reference = self.session.references[None, 0]
        [row] = self._rows([])
        trial = self._trial(Candidate(self.eager.spec), self.eager, row)
        return {
            "probe": facts,
            "environment": reference["environment"],
            "function": reference["function"],
            "trial": replace(trial, seconds=time.monotonic() - begin),
        }

    def _refer(self) -> None:
        """Once: what answers are judged by, and eager's own process."""
        if self.session.references:
            return
        self.session.states = [self.eager]
        self.session.compute_references()
        if self.session.references[None, 0]["compiled"]:
            raise UserError(
                f"{self.session.plan.target.text} does its own compiling: there is"
                " nothing to choose; torchproof bench compares it with itself"
            )
        self.session.begin(self.eager)

    def _revive(self) -> None:
        """Eager's process may have been killed, by a system short of memory say."""
        if self.eager.runs and self.eager.process is not None:
            return
        self.eager.error = None
        with (
            self.session.recording_failure(self.eager),
            self.session.without_deadline(),
        ):
            self._start(self.eager, 0)

    # -- a trial -----------------------------------------------------------------------

    def trial(self, candidate: Candidate, limit_s: float) -> Trial:
        """Begun beside others that begin, timed alone."""
        spent = 0.0
        with self.timing_lock.beside_others():
            begin = time.monotonic()
            self.session.set_deadline(limit_s)
            state = self._begun(candidate)
            spent += time.monotonic() - begin
        with self.timing_lock.alone():
            begin = time.monotonic()
            self.session.set_deadline(max(1.0, limit_s - spent))
            if state.error and is_short_of_memory(state.error) and self._states:
                self.keep(())  # the processes of other trials held what it needed
                self.prestarted.drop()
                state = self._begun(candidate)
            if state.runs and not _is_wrong(state):
                if self.crowded:
                    wait_until_idle.wait()
                self._revive()
                self._sample([self.eager, state], ROUNDS)
                self.session.examine([state], 0)
            trial = self._trial(candidate, state, self._rows([state])[-1])
            spent += time.monotonic() - begin
        if trial.outcome == "measured":
            self._states[candidate.name] = state
        else:
            state.close()
        if trial.outcome == "timed out":  # what was left for its last question is odd
            trial = replace(trial, why=f"not done within {limit_s:.0f} s")
        return replace(trial, seconds=spent, limit_s=limit_s)

    def _begun(self, candidate: Candidate) -> StrategyState:
        with self._referring:
            self._refer()
            if not self.session.has_room():
                self.keep(())
                self.prestarted.drop()
            else:
                self.prestarted.fill()
        state = StrategyState(candidate.spec, self._caches(candidate))
        self.session.states.append(state)
        try:
            with self.session.recording_failure(state):
                self.session.begin(state)
                self.session.recheck_random_draws(state)
        except UserError as error:  # this one cannot be; others can
            state.skipped = str(error)
            state.close()
        return state

    def _spare(self) -> WorkerProcess:
        plan = self.session.plan
        job = plan.job(self.eager.spec, {})
        process = WorkerProcess(job, plan.environment, quiet=plan.quiet)
        process.tell("load")
        return process

    def _caches(self, candidate: Candidate) -> Path:
        name = "all" if self.shares_caches else candidate.spec.file_name
        return self.caches / name

    def _sample(self, states: Sequence[StrategyState], rounds: int) -> None:
        """Rounds that compare these, and no earlier ones."""
        for state in states:
            state.facts[0]["rounds"] = [[]]
        self._take_turns(states, rounds)

    def _take_turns(self, states: Sequence[StrategyState], rounds: int) -> None:
        for turn in range(rounds):
            for state in states if turn % 2 == 0 else states[::-1]:
                if state.runs:
                    with (
                        self.session.recording_failure(state),
                        self._patience_for(state),
                    ):
                        self.session.sample(state, 0)

    def _patience_for(
        self, state: StrategyState
    ) -> contextlib.AbstractContextManager[None]:
        """A candidate that is late must not cost eager its process."""
        if state is self.eager:
            return self.session.without_deadline()
        return contextlib.nullcontext()

    def _rows(self, states: Sequence[StrategyState]) -> tuple[Measurement, ...]:
        session = self.session
        return rows.rows([self.eager, *states], session.plan, session.references)

    def _trial(
        self, candidate: Candidate, state: StrategyState, row: Measurement
    ) -> Trial:
        facts = state.facts[0] if state.facts else {}
        outcome, why = _outcome(row)
        start = row.start or {}
        beside = self.crowded and not candidate.spec.is_eager
        cold = row.first_call_s is not None and not beside if facts else None
        more = [start.get(name) or 0.0 for name in ("imports_s", "later_compile_s")]
        return Trial(
            candidate.name,
            candidate.stage,
            outcome,
            why,
            step_ms=row.median_ms,
            first_call_s=facts.get("first_call_s"),
            start_s=row.first_call_s + sum(more) if cold and row.first_call_s else None,
            cold=cold,
            peak_bytes=row.peak_bytes,
            kernel_ms=(row.kernels or {}).get("kernel_ms"),
            generated_ms=(row.kernels or {}).get("generated_ms"),
            numerics=row.numerics,
            vs_eager=row.vs_eager,
            vs_eager_low=row.vs_eager_low,
            vs_eager_high=row.vs_eager_high,
            where=self.where,
            source=row.source,
            facts=facts,
        )

    def keep(self, names: Collection[str]) -> None:
        """Ends the processes of all other trials."""
        for name in list(self._states):  # other threads add to it and take away
            state = None if name in names else self._states.pop(name, None)
            if state is not None:
                state.close()

    # -- finals ------------------------------------------------------------------------

    def sit(self, finalists: Sequence[tuple[Candidate, Trial]], repeat: int) -> None:
        """Makes ready to compare these and eager, at first with the trials' processes.

        A later repeat has processes and a memory layout of its own. Rounds of trials
        were taken at different times and are forgotten.
        """
        self.session.set_deadline(None)
        self._refer()
        self.eager.error = None  # it may have been killed meanwhile
        self.keep([candidate.name for candidate, _ in finalists])
        self._sits(self.eager, repeat)
        for candidate, trial in finalists:
            # It began before in that time, with colder caches: later, it hangs.
            self.session.set_deadline(max(_PATIENCE_S, 4 * trial.seconds))
            self._sits(self._state_of(candidate, trial), repeat)

    def _sits(self, state: StrategyState, repeat: int) -> None:
        if repeat:
            state.close()
        else:
            state.facts[0]["rounds"] = []
        with self.session.recording_failure(state):
            self._start(state, repeat)
        state.facts[0]["rounds"].append([])

    def _state_of(self, candidate: Candidate, trial: Trial) -> StrategyState:
        if (
            candidate.name not in self._states
        ):  # tried elsewhere, or it had to make room
            facts = [dict(trial.facts)]
            state = StrategyState(candidate.spec, self._caches(candidate), facts=facts)
            self._states[candidate.name] = state
            self.session.states.append(state)
        return self._states[candidate.name]

    def _start(self, state: StrategyState, repeat: int) -> None:
        """A process with warm caches, where it has none."""
        session = self.session
        if state.process is not None:
            return
        session.progress(f"{state.spec.label}: first call, warm")
        session.start(state, session.plan.job(state.spec, {}), repeat)
        facts = state.ask("prepare", session.limit_s, answers=None)
        state.warm = facts | state.ask(
            "settle", session.limit_s, **session.settle_limit
        )

    def turns(self, names: Sequence[str], rounds: int) -> tuple[Measurement, ...]:
        """Eager and these finalists in turns; rounds of a repeat add up."""
        states = [self._states[name] for name in names]
        passes_s = [state.facts[0]["pass_ms"] / 1e3 for state in (self.eager, *states)]
        self.session.set_deadline(_PATIENCE_S + 10 * rounds * sum(passes_s))
        self._take_turns([self.eager, *states], rounds)
        return self._rows(states)

    # -- the chosen one ----------------------------------------------------------------

    def cold_start(self, candidate: Candidate, limit_s: float) -> tuple[float, float]:
        """Its first call with empty caches and nothing beside it; and all of the start.

        Raises `WorkerError` where it fails, or where something was cached after all.
        """
        session = self.session
        with tempfile.TemporaryDirectory(dir=session.scratch) as caches:
            state = StrategyState(candidate.spec, Path(caches))
            session.states.append(state)
            session.set_deadline(limit_s)
            session.progress(f"{candidate.name}: first call, cold")
            try:
                job = session.plan.job(candidate.spec, {})
                session.start(state, job, 0)
                facts = state.ask("prepare", session.limit_s, answers=None)
            finally:
                state.close()
        start = start_record("cold", facts)
        if start["refused"]:
            raise WorkerError(start["refused"])
        more = [facts["imports_s"], rows.later_compile_s(facts) or 0.0]
        return facts["first_call_s"], facts["first_call_s"] + sum(more)

    def close(self) -> None:
        self.prestarted.close()
        self.session.close()


def is_short_of_memory(error: str) -> bool:
    return bool(_MEMORY.search(error))


def _is_wrong(state: StrategyState) -> bool:
    return (state.facts[0]["numerics"] or {}).get("verdict") == "wrong"


def _outcome(row: Measurement) -> tuple[Outcome, str | None]:
    if row.error:
        if _LATE in row.error:
            return "timed out", row.error.replace(" (--timeout)", "")
        return (
            "out of memory" if is_short_of_memory(row.error) else "failed"
        ), row.error
    outcome = _OUTCOMES.get(row.verdict, "measured")
    if outcome == "measured":
        return outcome, None
    reason = (row.numerics or {}).get("why") if outcome != "not applicable" else None
    fell = [note for note in row.notes if note.startswith(rows.FELL_BACK)]
    return outcome, reason or "; ".join(fell or row.notes) or row.verdict
