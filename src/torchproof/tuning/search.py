"""The search: successive halving over a fixed list of candidates.

Each candidate gets one short trial. The best trials then run in alternation with eager,
and the slower half drops out after each rung, while the rounds of the others grow. The
executor runs the trials.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torchproof.measure import WorkerError
from torchproof.records import Measurement, SearchState, Skip, Trial, UserError
from torchproof.records.options import Effort, TuneOptions
from torchproof.tuning.candidates import Candidate, Eager
from torchproof.tuning.executors import Executor
from torchproof.tuning.trial_worker import is_short_of_memory, outcome_of

# How many candidates are tried. `full` tries all that apply.
MOST_TRIALS: dict[Effort, float] = {"quick": 4, "normal": 8, "full": math.inf}
FINALISTS = 4
REPLAYS = 1000  # of a winner whose kernels may race, all equal bit by bit
_ALIKE = 1.01  # within this factor trials count as equal, and the simpler one wins
_RUNGS = (4, 12)  # rounds before and after the slower half drops out
_PASSES = 2  # passes of a strategy in a round; short passes run more often
_RESERVE = 0.15  # share of the budget for the finals
_MOST = 0.5  # share of the remaining time for one trial, in case it hangs
_LEAST_S = 120.0  # a trial gets at least this long, if so much time remains


def too_small(budget_s: float, why: str) -> UserError:
    """The error of a budget that sufficed for no trial."""
    return UserError(
        f"--budget {budget_s:g}s is too small for one trial: {why}; give at least"
        f" --budget {math.ceil(3 * budget_s)}s"
    )


class Search:
    """One search; it calls `show` with its state whenever that changes.

    `deadline` is a time of the monotonic clock, `timeout_s` the user's limit of a
    trial. `earlier` has the trials of an interrupted search, which are not run again.
    """

    def __init__(
        self,
        executor: Executor,
        options: TuneOptions,
        *,
        eager: Eager,
        deadline: float,
        timeout_s: float | None = None,
        earlier: Mapping[str, Trial] | None = None,
        show: Callable[[SearchState], None] = lambda state: None,
    ) -> None:
        self.executor = executor
        self.options = options
        self.eager, self.probe = eager.trial, eager.probe
        self.environment = eager.environment
        self.deadline, self.timeout_s = deadline, timeout_s
        self._earlier = earlier or {}
        self._show = show
        self.trials: dict[str, Trial] = {self.eager.name: self.eager}
        self.candidates: dict[str, Candidate] = {}
        self.skipped: list[Skip] = []
        self.rows: tuple[Measurement, ...] = ()
        self._spent = False  # the time for trials
        self._waiting: list[Candidate] = []
        self._running: dict[str, Candidate] = {}
        most = MOST_TRIALS[options.effort]
        self._most_trials = math.inf if options.names else most
        self._last: list[str] = []  # the trials that ran to the end of the finals

    def value(self, trial: Trial) -> float | None:
        return self.options.objective.value(trial)

    @property
    def ranked(self) -> list[Trial]:
        """The measured trials with correct outputs, eager included, best first."""
        trials = [trial for trial in self.trials.values() if self.value(trial)]
        return sorted(trials, key=lambda trial: self.value(trial) or 0.0)

    @property
    def stopped(self) -> str:
        if self._spent:
            return "the budget is spent"
        return "all candidates of this effort were tried"

    def time_left_s(self) -> float:
        return self.deadline - time.monotonic()

    def run(self, candidates: Sequence[Candidate]) -> Trial:
        """Run the search and return the winner, which may be eager."""
        self.skipped += [Skip(c.name, c.why_not) for c in candidates if c.why_not]
        self._try_all([c for c in candidates if not c.why_not])
        self._assert_something_tried()
        self._finals()
        return self._proved()

    # -- trials ------------------------------------------------------------------------

    def _try_all(self, candidates: Sequence[Candidate]) -> None:
        self._waiting = list(candidates)
        self.candidates = {each.name: each for each in candidates}
        while self._waiting or self._running:
            while self.executor.slots() and (candidate := self._next()):
                self._running[candidate.name] = candidate
                self.executor.submit(candidate, self._limit_s())
            self.show()
            for trial in self.executor.wait(1.0) if self._running else ():
                candidate = self._running.pop(trial.name)
                self.trials[trial.name] = replace(trial, stage=candidate.stage)
                if trial.outcome == "timed out" and self._trial_time_s() <= 0:
                    self._spent = True

    def _trial_time_s(self) -> float:
        """The seconds that remain for trials, without those reserved for the finals."""
        return self.time_left_s() - _RESERVE * self.options.budget_s

    def _limit_s(self) -> float:
        limit, left_s = self.timeout_s, max(1.0, self._trial_time_s())
        most = max(_MOST * left_s, min(left_s, _LEAST_S))
        return most if limit is None else min(limit, most)

    def _next(self) -> Candidate | None:
        """The next candidate that can start now; skips those that are not worth it."""
        for candidate in list(self._waiting):
            others = {*self._running, *(each.name for each in self._waiting)}
            if candidate.follows & others:
                continue  # the result of that trial may rule this one out
            self._waiting.remove(candidate)
            if trial := self._tried_earlier(candidate.name):
                stage = candidate.stage
                self.trials[trial.name] = replace(trial, resumed=True, stage=stage)
            elif why := self._why_skipped(candidate):
                self.skipped.append(Skip(candidate.name, why))
            else:
                return candidate
        return None

    def _tried_earlier(self, name: str) -> Trial | None:
        """An earlier trial; one that timed out counts only if its limit was as long."""
        trial = self._earlier.get(name)
        if trial is None or trial.outcome == "lost":
            return None
        late = trial.outcome == "timed out"
        return None if late and (trial.limit_s or 0.0) < self._limit_s() else trial

    def _why_skipped(self, candidate: Candidate) -> str | None:
        base = self.trials.get(candidate.base or "")
        if base and base.outcome != "measured":
            return f"it builds on {base.name}, whose outcome is: {base.outcome}"
        full = self.trials.get("full")
        if candidate.fallback and full and full.graph_breaks == 0 and full.is_ranked:
            return "full compiles the whole target without a graph break"
        tried = len(self.trials) - 1 + len(self._running)
        if tried >= self._most_trials:
            return f"--effort {self.options.effort} tries {tried} candidates"
        if self._trial_time_s() > 0:
            return None
        self._spent = True
        return "the budget was spent"

    def _assert_something_tried(self) -> None:
        """Fail if the budget was too small for a single trial."""
        tried = [t for t in self.trials.values() if not t.is_eager]
        if self._spent and all(trial.outcome == "timed out" for trial in tried):
            why = f"eager alone took {self.eager.seconds or 0.0:.0f} s"
            raise too_small(self.options.budget_s, why)

    # -- finals ------------------------------------------------------------------------

    def _finals(self) -> None:
        """Halve the best trials; if all of them fail, halve the next best."""
        while names := self._finalists():
            for rounds in _RUNGS:
                self._time(names, rounds)
                names = self._better_half(names)
            self._last = names
            if names:
                return

    def _finalists(self) -> list[str]:
        """The trials that may win with more precise timing, best first."""
        objective, least = self.options.objective, self.options.least
        able = [
            trial.name
            for trial in self.ranked
            if trial.name in self.candidates
            and objective.may_allow(trial, self.eager, least=least)
        ]
        return able[:FINALISTS]

    def _time(self, names: Sequence[str], rounds: int) -> None:
        """Take rounds of eager and these in alternation, so that drift hits all."""
        rounds = min(rounds, self._affordable(names)) if names else 0
        if not rounds:
            return
        finalists = [(self.candidates[name], self.trials[name]) for name in names]
        rows = self.executor.compare(finalists, rounds)
        if rows[0].median_ms is None or rows[0].error:
            return  # without eager there is no comparison: keep the trials' values
        self.rows = rows
        for name, row in zip(names, rows[1:], strict=True):
            self.trials[name] = _timed(self.trials[name], row)
        self.eager = self.trials[self.eager.name] = _timed(self.eager, rows[0])
        self.show()

    def _affordable(self, names: Sequence[str]) -> int:
        """The number of rounds that fit in the remaining time.

        A confidence interval needs at least the rounds of the first rung.
        """
        passes_ms = [self.trials[name].pass_ms or 0.0 for name in names]
        round_ms = _PASSES * (sum(passes_ms) + (self.eager.pass_ms or 0.0))
        fit = int(self.time_left_s() * 1e3 / round_ms) if round_ms else sum(_RUNGS)
        compared = all(self.trials[name].final for name in names)
        return max(fit, 0 if compared else _RUNGS[0])

    def _better_half(self, names: Sequence[str]) -> list[str]:
        """The faster half, and all that equal the best: one of those may be simpler."""
        ranked = [trial for trial in self.ranked if trial.name in names]
        limit = _ALIKE * min((self.value(t) or 0.0 for t in ranked), default=0.0)
        half = (len(ranked) + 1) // 2
        return [
            trial.name
            for place, trial in enumerate(ranked)
            if place < half or (self.value(trial) or 0.0) <= limit
        ]

    def chosen(self) -> Trial:
        """The winner among the last finalists, else all finalists, else all trials.

        If several are equally fast, the simplest one wins.
        """
        last = [self.trials[name] for name in self._last]
        finals = [trial for trial in self.trials.values() if trial.final]
        for among in (last, finals or list(self.trials.values())):
            if allowed := self._allowed(among):
                break
        else:
            return self.eager
        limit = _ALIKE * min(self.value(trial) or 0.0 for trial in allowed)
        alike = [trial for trial in allowed if (self.value(trial) or 0.0) <= limit]
        return min(alike, key=lambda t: (t.stage != "forms", len(t.name)))

    def _allowed(self, trials: Sequence[Trial]) -> list[Trial]:
        objective, least = self.options.objective, self.options.least
        return [t for t in trials if objective.allows(t, self.eager, least=least)]

    # -- the winner --------------------------------------------------------------------

    def _proved(self) -> Trial:
        """The winner; one whose kernels may race has passed its replays."""
        while True:
            chosen = self.chosen()
            candidate = self.candidates.get(chosen.name)
            switch = candidate.switch if candidate else None
            if switch is None or not switch.may_race or chosen.replays == REPLAYS:
                return chosen
            assert candidate is not None and candidate.base is not None
            base = self.candidates[candidate.base]
            self.trials[chosen.name] = self._replayed(chosen, candidate, base)
            if not any(self.value(self.trials[name]) for name in self._last):
                self._finals()

    def _replayed(self, trial: Trial, candidate: Candidate, base: Candidate) -> Trial:
        """The trial with its equal replays; it is out if one of them differs."""
        left_s = self.time_left_s()
        takes_s = REPLAYS * (trial.pass_ms or 0.0) / 1e3
        if left_s < takes_s:
            why = (
                f"{REPLAYS:,} replays would take about {takes_s:.0f} s, and"
                f" {max(0.0, left_s):.0f} s remain"
            )
            return replace(trial, outcome="failed", why=why, final=False)
        try:
            replayed = self.executor.replay(candidate, base, REPLAYS, left_s)
        except (WorkerError, UserError) as error:
            why = f"its replays could not be compared: {error}"
            return replace(trial, outcome="failed", why=why, final=False)
        if replayed.differs is None:
            return replace(trial, replays=replayed.equal)
        why = (
            f"replay {replayed.equal + 1} of {REPLAYS:,} differs from {base.name} in"
            f" {replayed.differs}"
        )
        equal = replayed.equal
        return replace(trial, outcome="wrong", why=why, replays=equal, final=False)

    # -- progress ----------------------------------------------------------------------

    def show(self) -> None:
        self._show(
            SearchState(
                trials=self.valued(),
                running=tuple(self._running),
                left=len(self._waiting),
                time_left_s=max(0.0, self.time_left_s()),
                objective=str(self.options.objective),
            )
        )

    def valued(self) -> tuple[Trial, ...]:
        """The trials with the value of each, as reports show them."""
        return tuple(replace(t, value=self.value(t)) for t in self.trials.values())


def _timed(trial: Trial, row: Measurement) -> Trial:
    """The trial with its values from the finals; one that failed there is out.

    One that ran out of memory next to the other finalists keeps its earlier values.
    """
    if row.error and is_short_of_memory(row.error):
        return trial
    if row.error or row.median_ms is None:
        return replace(trial, outcome="failed", why=row.error, final=False)
    outcome, why = outcome_of(row)
    return replace(
        trial,
        outcome=outcome,
        why=why,
        step_ms=row.median_ms,
        mfu=row.mfu,
        vs_eager=row.vs_eager,
        vs_eager_low=row.vs_eager_low,
        vs_eager_high=row.vs_eager_high,
        final=outcome == "measured",
    )
