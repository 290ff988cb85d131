"""Runs trials on one device: each candidate in its own process, compared with eager.

Takes a plan without strategies and candidates one at a time, returns trials and the
measurements of the finalists. All of that is plain data, so that a worker can run in
another process or on another machine.
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

import psutil

from torchproof.measure import (
    EAGER,
    Done,
    Facts,
    FirstPass,
    Plan,
    Probed,
    Replayed,
    Session,
    Settled,
    StrategySpec,
    StrategyState,
    WorkerError,
    WorkerProcess,
    begin_repeat,
    rows,
    start_record,
)
from torchproof.records import Measurement, Outcome, Trial, UserError
from torchproof.tuning.candidate import Candidate, Eager
from torchproof.tuning.space import SWITCHES
from torchproof.tuning.timing_lock import TimingLock

_OWN_REPLAYS = 100  # in which a strategy has to repeat its own outputs
ROUNDS = 4  # rounds of a trial: the fewest that give a confidence interval
_MEMORY = re.compile(r"out ?of ?memory|can't allocate memory|CUDA_ERROR_OUT_OF", re.I)
_LATE = "no answer within"  # the text of a timeout in measure/worker_process.py
_PATIENCE_S = 120.0  # least time limit for finalists, which have answered before
# The outcomes of these verdicts; with any other verdict the trial was measured.
_OUTCOMES: dict[str, Outcome] = {
    "skipped": "not applicable",
    "wrong": "wrong",
    "unverified": "unverified",
    "not measured": "failed",
    rows.FELL_BACK: "failed",
}
Progress = Callable[[str], None]


class PrestartedWorkers:
    """At most `count` processes that load the target before they get a candidate.

    For many models loading takes as long as compilation: these load meanwhile.
    `start` starts a process, which loads by itself.
    """

    def __init__(self, start: Callable[[], WorkerProcess], count: int) -> None:
        self._start = start
        self._count = count
        self._ready: list[WorkerProcess] = []
        self._lock = threading.Lock()
        self._closed = False

    def fill(self) -> None:
        with self._lock:
            while len(self._ready) < self._count and not self._closed:
                self._ready.append(self._start())

    def take(self) -> WorkerProcess | None:
        """The process that has loaded for longest; None if there is none."""
        with self._lock:
            return self._ready.pop(0) if self._ready else None

    def drop(self) -> None:
        """End the processes, to free their memory."""
        with self._lock:
            for process in self._ready:
                process.close()
            self._ready.clear()

    def close(self) -> None:
        self._closed = True
        self.drop()


class Worker:
    """Runs trials on one device.

    `where` names the device in reports. `caches` is the directory for compiled code.
    With `shares_caches`, candidates reuse code that others compiled: their step times
    stay valid, their first calls do not. `prestarted` is the number of processes that
    load the target ahead; above 1, other trials start at the same time, which
    falsifies first calls too.
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
        self.where = where
        self.caches = caches
        self.shares_caches = shares_caches
        self.crowded = prestarted > 1
        self.session = Session(plan, folder, progress)
        self.session.scratch = folder
        self.eager = StrategyState(StrategySpec(EAGER), folder / "caches-eager")
        self.timing_lock = timing_lock or TimingLock()
        self.prestarted = PrestartedWorkers(self._prestart, prestarted)
        self.session.spare = self.prestarted.take
        self._states: dict[str, StrategyState] = {}
        self._referring = threading.Lock()

    # -- eager -------------------------------------------------------------------------

    def probe(self, limit_s: float) -> Eager:
        """Compute reference outputs, time eager alone, and inspect the target."""
        begin = time.monotonic()
        self.session.set_deadline(limit_s)
        self.prestarted.fill()
        self._refer()
        with self.session.recording_failure(self.eager):
            self._sample([self.eager], ROUNDS)
            settings = [switch.setting for switch in SWITCHES]
            probed = self.eager.ask(
                Probed, "probe", self.session.limit_s, settings=settings
            )
            facts = probed.probe
            self.session.examine([self.eager], 0)
        if self.eager.error:
            raise UserError(f"the target fails in eager: {self.eager.error}")
        reference = self.session.references[None, 0]
        [row] = self._rows([])
        trial = self._trial(Candidate(self.eager.spec), self.eager, row)
        trial = replace(trial, seconds=time.monotonic() - begin)
        return Eager(trial, facts, reference.environment)

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
        self.session.begin(self.eager)

    def _revive(self) -> None:
        """Restart eager's process if it was killed, for example for lack of memory."""
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
        """Run a trial: it starts beside other trials and is timed alone."""
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
                self.keep(())  # free the memory of the other trials' processes
                self.prestarted.drop()
                state = self._begun(candidate)
            if state.runs and not _is_wrong(state):
                if self.crowded:
                    _wait_until_idle()
                self._revive()
                self._sample([self.eager, state], ROUNDS)
                self.session.examine([state], 0)
            trial = self._trial(candidate, state, self._rows([state])[-1])
            spent += time.monotonic() - begin
        if trial.outcome == "measured":
            self._states[candidate.name] = state
        else:
            state.close()
        if trial.outcome == "timed out":  # the limit of its last request says little
            trial = replace(trial, why=f"not finished within {limit_s:.0f} s")
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
        except UserError as error:  # this candidate does not apply; others may
            state.skipped = str(error)
            state.close()
        return state

    def _prestart(self) -> WorkerProcess:
        plan = self.session.plan
        job = plan.job(self.eager.spec, {})
        process = WorkerProcess(job, plan.environment, quiet=plan.quiet)
        process.tell("load")
        return process

    def _caches(self, candidate: Candidate) -> Path:
        name = "all" if self.shares_caches else candidate.spec.file_name
        return self.caches / name

    def _sample(self, states: Sequence[StrategyState], rounds: int) -> None:
        """Measure rounds of these strategies and discard earlier ones."""
        for state in states:
            state.facts[0] = state.facts[0].without_rounds().with_repeat()
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
        """No deadline for eager: a late candidate must not end eager's process."""
        if state is self.eager:
            return self.session.without_deadline()
        return contextlib.nullcontext()

    def _rows(self, states: Sequence[StrategyState]) -> tuple[Measurement, ...]:
        session = self.session
        return rows.rows([self.eager, *states], session.plan, session.references)

    def _trial(
        self, candidate: Candidate, state: StrategyState, row: Measurement
    ) -> Trial:
        facts = state.facts[0] if state.facts else None
        outcome, why = _outcome(row)
        start = row.start or {}
        beside = self.crowded and not candidate.spec.is_eager
        cold = row.first_call_s is not None and not beside if facts else None
        more = [start.get(name) or 0.0 for name in ("imports_s", "later_compile_s")]
        return Trial(
            name=candidate.name,
            stage=candidate.stage,
            outcome=outcome,
            why=why,
            step_ms=row.median_ms,
            first_call_s=facts.first_call_s if facts else None,
            start_s=row.first_call_s + sum(more) if cold and row.first_call_s else None,
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
            facts=facts.to_json() if facts else {},
        )

    def keep(self, names: Collection[str]) -> None:
        """End the processes of all trials but these."""
        for name in list(self._states):  # other threads modify the dictionary
            state = None if name in names else self._states.pop(name, None)
            if state is not None:
                state.close()

    # -- finals ------------------------------------------------------------------------

    def prepare_finals(
        self, finalists: Sequence[tuple[Candidate, Trial]], repeat: int
    ) -> None:
        """Prepare to compare the finalists with eager.

        The first repeat uses the trials' processes; later ones start new processes with
        another memory layout. The rounds of the trials are discarded, since they were
        measured at different times.
        """
        self.session.set_deadline(None)
        self._refer()
        self.eager.error = None  # its process may have been killed meanwhile
        self.keep([candidate.name for candidate, _ in finalists])
        self._prepare_final(self.eager, repeat)
        for candidate, trial in finalists:
            # It started within that time before, with colder caches.
            self.session.set_deadline(max(_PATIENCE_S, 4 * (trial.seconds or 0.0)))
            self._prepare_final(self._state_of(candidate, trial), repeat)

    def _prepare_final(self, state: StrategyState, repeat: int) -> None:
        if repeat:
            state.close()
        else:
            state.facts[0] = state.facts[0].without_rounds()
        with self.session.recording_failure(state):
            self._start(state, repeat)
        begin_repeat(state)

    def _state_of(self, candidate: Candidate, trial: Trial) -> StrategyState:
        # The trial ran on another worker, or its process was ended to free memory.
        if candidate.name not in self._states:
            facts = [Facts.from_json(trial.facts)]
            state = StrategyState(candidate.spec, self._caches(candidate), facts=facts)
            self._states[candidate.name] = state
            self.session.states.append(state)
        return self._states[candidate.name]

    def _start(self, state: StrategyState, repeat: int) -> None:
        """Start a process with warm caches, unless the strategy has one."""
        session = self.session
        if state.process is not None:
            return
        session.progress(f"{state.spec.label}: first call, warm")
        session.start(state, session.plan.job(state.spec, {}), repeat)
        limit_s = session.limit_s
        state.warm = state.ask(FirstPass, "prepare", limit_s, answers=None)
        state.ask(Settled, "settle", session.limit_s, **session.settle_limit)

    def turns(self, names: Sequence[str], rounds: int) -> tuple[Measurement, ...]:
        """Measure eager and these finalists in alternating rounds, which accumulate."""
        states = [self._states[name] for name in names]
        passes_s = [state.facts[0].pass_ms / 1e3 for state in (self.eager, *states)]
        self.session.set_deadline(_PATIENCE_S + 10 * rounds * sum(passes_s))
        self._take_turns([self.eager, *states], rounds)
        return self._rows(states)

    # -- the winner --------------------------------------------------------------------

    def replay(
        self, candidate: Candidate, sound: Candidate, count: int, limit_s: float
    ) -> Replayed:
        """Compare passes of a candidate with one of another, bit by bit.

        Raises `WorkerError` if the other one does not repeat its own outputs.
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
            base, state = self._running(sound), self._running(candidate)
            session.progress(f"{candidate.name}: comparing {count:,} replays")
            base.ask(Done, "save_exact_outputs", session.limit_s, **saved)
            own = base.ask(
                Replayed, "replay", session.limit_s, count=_OWN_REPLAYS, **saved
            )
            if own.differs:
                raise WorkerError(
                    f"{sound.name} does not repeat its own outputs: replay"
                    f" {own.equal + 1} differs in {own.differs}"
                )
            return state.ask(Replayed, "replay", session.limit_s, count=count, **saved)
        finally:
            path.unlink(missing_ok=True)

    def _running(self, candidate: Candidate) -> StrategyState:
        """The state of a candidate whose process runs."""
        state = self._states.get(candidate.name)
        if state is None or not state.runs:
            state = StrategyState(candidate.spec, self._caches(candidate))
            self._states[candidate.name] = state
            self.session.states.append(state)
        self._start(state, 0)
        return state

    def cold_start(self, candidate: Candidate, limit_s: float) -> tuple[float, float]:
        """The seconds of the first call with empty caches, and of the whole start.

        Raises `WorkerError` if the start fails, or if some code was cached after all.
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
                first = state.ask(FirstPass, "prepare", session.limit_s, answers=None)
            finally:
                state.close()
        start = start_record("cold", first)
        if start.refused:
            raise WorkerError(start.refused)
        first_call_s = first.first_call_s or 0.0
        more_s = (first.imports_s or 0.0) + (first.later_compile_s or 0.0)
        return first_call_s, first_call_s + more_s

    def close(self) -> None:
        self.prestarted.close()
        self.session.close()


def is_short_of_memory(error: str) -> bool:
    return bool(_MEMORY.search(error))


def _is_wrong(state: StrategyState) -> bool:
    return state.facts[0].verdict == "wrong"


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


# -- idle processes --------------------------------------------------------------------

_LOOK_S = 0.25
_BUSY = 0.2  # cores, of all processes together
_LONGEST_WAIT_S = 8.0


def _wait_until_idle() -> None:
    """Wait until all child processes are idle, but not longer than a few seconds.

    Inductor's worker pool keeps starting for seconds after compilation. A step that is
    bound by launches takes twice as long beside it.
    """
    begin = time.monotonic()
    before = _cpu_time_s()
    while time.monotonic() - begin < _LONGEST_WAIT_S:
        time.sleep(_LOOK_S)
        now = _cpu_time_s()
        if now - before < _BUSY * _LOOK_S:
            break
        before = now


def _cpu_time_s() -> float:
    """The CPU time of all descendants that still run."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total
