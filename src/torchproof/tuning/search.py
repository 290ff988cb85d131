"""The search: decides which candidate runs next, until the budget ends or none can win.

It tries the forms first, then switches of the compiler on the fastest form. The best
trials then run in alternating rounds, and the slower half drops out after each rung.
The executor runs the trials.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torchproof.measure import WorkerError
from torchproof.records import Measurement, SearchState, Skip, Trial, UserError
from torchproof.tuning import bounds, space
from torchproof.tuning.candidate import Candidate
from torchproof.tuning.executors import Executor
from torchproof.tuning.objectives import Objective
from torchproof.tuning.space import Space
from torchproof.tuning.trial_store import TrialStore
from torchproof.tuning.trial_worker import is_short_of_memory

Effort = Literal["quick", "normal", "full"]

FINALISTS = 4
_NEAR = 1.1  # a trial within this factor of the leader may win with better timing
_ALIKE = 1.01  # within this factor trials count as equal, and the simpler one wins
REPLAYS = 1000  # of a winner whose kernels may race, all equal bit by bit
_RUNGS = (4, 12)  # rounds before and after the slower half drops out
_PASSES = 2  # passes of a strategy in a round; short passes run more often
_HELPS = 0.99  # a setting that reaches this share of the form's value gets combined
_TUNING_COSTS = 4.0  # autotuning takes this many times as long as plain compilation
_RESERVE = 0.15  # share of the budget for the finals
_MOST = 0.5  # share of the remaining time for one trial, in case it hangs
_LEAST_S = 120.0  # a trial gets at least this long, if so much time remains
EFFORTS: tuple[Effort, ...] = ("quick", "normal", "full")


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search; `deadline` is a time of the monotonic clock."""

    objective: Objective
    effort: Effort
    least: float
    budget_s: float
    deadline: float
    timeout_s: float | None = None
    device: str = "cpu"
    probe: Mapping[str, Any] = field(default_factory=dict)


def least_budget_s(budget_s: float, eager_s: float, longest_s: float) -> int:
    """The smallest budget worth trying after one that sufficed for no trial.

    A trial runs eager's calls and compiles, so it takes longer than eager; one that was
    cut off takes longer than it was given. So the time is doubled.
    """
    known_s = (eager_s + max(longest_s, eager_s)) / (1 - _RESERVE)
    return math.ceil(max(known_s, 2 * budget_s))


class Search:
    """One search; it calls `show` with its state whenever that changes."""

    def __init__(
        self,
        executor: Executor,
        terms: SearchOptions,
        saved_trials: TrialStore,
        *,
        eager: Trial,
        show: Callable[[SearchState], None] = lambda state: None,
    ) -> None:
        self.executor = executor
        self.terms = terms
        self.saved_trials = saved_trials
        self.eager = eager
        self._show = show
        self.trials: dict[str, Trial] = {eager.name: eager}
        self.candidates: dict[str, Candidate] = {}
        self.skipped: list[Skip] = []
        self.rows: tuple[Measurement, ...] = ()
        self._waiting: list[Candidate] = []
        self._running: dict[str, Candidate] = {}
        self._no_time = False  # a candidate was left out for lack of time
        self._spent = False
        self._last: list[str] = []  # the trials that ran to the end of the finals

    # -- results so far ----------------------------------------------------------------

    def value(self, trial: Trial) -> float | None:
        return self.terms.objective.value(trial)

    @property
    def ranked(self) -> list[Trial]:
        """The measured trials with correct outputs, eager included, best first."""
        trials = [trial for trial in self.trials.values() if self.value(trial)]
        return sorted(trials, key=lambda trial: self.value(trial) or 0.0)

    @property
    def leader(self) -> Trial:
        objective, least = self.terms.objective, self.terms.least
        best = objective.best(list(self.trials.values()), self.eager, least=least)
        return best or self.eager

    @property
    def stopped(self) -> str:
        if self._spent:
            return "the budget is spent"
        if self._no_time:
            return "the remaining candidates need more than what is left of the budget"
        untried = len(self.skipped) > self._not_applicable
        return (
            "the remaining candidates cannot win"
            if untried
            else "all candidates were tried"
        )

    def left_s(self) -> float:
        """The seconds that remain for trials, without those reserved for the finals."""
        reserve = _RESERVE * self.terms.budget_s
        return self.terms.deadline - reserve - time.monotonic()

    # -- stages ------------------------------------------------------------------------

    def run(self, forms: Space) -> Trial:
        """Run the search and return the winner, which may be eager."""
        self.skipped += forms.skipped
        self._not_applicable = len(forms.skipped)
        self._try(forms.candidates)
        self._assert_something_tried()
        if self._tries_switches:
            for base in self._fastest_forms():
                self._try_switches(base)
        self._finals()
        return self._started_cold(self._proved())

    @property
    def _tries_switches(self) -> bool:
        return self.terms.effort != "quick" and self.terms.objective.is_about_steps

    def _assert_something_tried(self) -> None:
        """Fail if the budget was too small for a single trial."""
        tried = [t for t in self.trials.values() if t.name != self.eager.name]
        late = all(trial.outcome == "timed out" for trial in tried)
        if late and self._no_time:
            eager_s = self.eager.seconds or 0.0
            longest_s = max((t.seconds or 0.0 for t in tried), default=0.0)
            least_s = least_budget_s(self.terms.budget_s, eager_s, longest_s)
            raise UserError(
                f"--budget {self.terms.budget_s:g}s is too small for one trial:"
                f" eager alone took {eager_s:.0f} s, and no strategy finished in the"
                f" remaining time; give at least --budget {least_s}s, and add --resume"
                " to reuse the finished trials"
            )

    def _fastest_forms(self) -> list[Candidate]:
        """The forms to try settings on: the fastest, or all with `--effort full`."""
        forms = [
            self.candidates[trial.name]
            for trial in self.ranked
            if trial.name in self.candidates and trial.stage == "forms"
        ]
        compiling = [each for each in forms if each.strategy.compiles]
        return compiling if self.terms.effort == "full" else compiling[:1]

    def _try_switches(self, base: Candidate) -> None:
        tried = self._switched(base)
        self._try(tried)
        base_value = self.value(self.trials[base.name]) or 0.0
        helped = [
            candidate
            for candidate in tried
            if (trial := self.trials.get(candidate.name))
            and (value := self.value(trial))
            and value < _HELPS * base_value
        ]
        combined = space.together(base, helped)
        self._try([combined] if combined else [])

    def _switched(self, base: Candidate) -> list[Candidate]:
        """The form with each switch that applies; notes those that do not."""
        terms, trial = self.terms, self.trials[base.name]
        switches = space.switched(base, trial, terms.probe, terms.device)
        self.skipped += switches.skipped
        self._not_applicable += len(switches.skipped)
        return switches.candidates

    def _try(self, candidates: Sequence[Candidate]) -> None:
        self._waiting = list(candidates)
        self.candidates |= {each.name: each for each in candidates}
        while self._waiting or self._running:
            while self.executor.slots() and (candidate := self._next()):
                self._running[candidate.name] = candidate
                self.executor.submit(candidate, self._limit_s())
            self.show()
            for trial in self.executor.wait(1.0) if self._running else ():
                stage = self._running.pop(trial.name).stage
                self._note(replace(trial, stage=stage))
                if trial.outcome == "timed out" and self.left_s() <= 0:
                    self._no_time = True

    def _limit_s(self) -> float:
        limit, left_s = self.terms.timeout_s, max(1.0, self.left_s())
        most = max(_MOST * left_s, min(left_s, _LEAST_S))
        return most if limit is None else min(limit, most)

    def _next(self) -> Candidate | None:
        """The next candidate that can start now; skips those that cannot win."""
        for candidate in list(self._waiting):
            others = {*self._running, *(each.name for each in self._waiting)}
            if candidate.follows in others:
                continue  # the result of that trial may rule this one out
            self._waiting.remove(candidate)
            if earlier := self.saved_trials.find(candidate.name, self._limit_s()):
                self._note(replace(earlier, resumed=True, stage=candidate.stage))
            elif why := self._not_worth(candidate):
                self.skipped.append(Skip(candidate.name, why))
            else:
                return candidate
        return None

    def _not_worth(self, candidate: Candidate) -> str | None:
        """The reason to skip a candidate; for `--effort full` only lack of time."""
        terms = self.terms
        if terms.effort != "full":
            evidence = bounds.Evidence(
                terms.objective, terms.probe, self.trials, self.leader
            )
            if why := bounds.cannot_win(candidate, evidence):
                return why
        left_s, cost = self.left_s(), self._cost_s(candidate)
        if left_s > (cost or 0.0):
            return None
        self._no_time = True
        self._spent |= left_s <= 0
        if cost is None or left_s <= 0:
            return "the budget was spent"
        return f"it would take about {cost:.0f} s, and {left_s:.0f} s remain"

    def _cost_s(self, candidate: Candidate) -> float | None:
        """The expected seconds of a trial, from a similar one; None without one."""
        like = [self.trials.get(name or "") for name in (candidate.follows, "full")]
        costs = [
            trial.seconds or 0.0
            for trial in like
            if trial and trial.name != self.eager.name and trial.outcome == "measured"
        ]
        if not costs:
            return None
        return costs[0] * (_TUNING_COSTS if candidate.tunes_products else 1.0)

    def _note(self, trial: Trial) -> None:
        self.trials[trial.name] = trial
        if not trial.resumed:
            self.saved_trials.add(trial)
        best = [each.name for each in self.ranked[: FINALISTS + 1]]
        self.executor.keep(best)

    # -- finals ------------------------------------------------------------------------

    def _finals(self) -> None:
        """Compare the best trials; if all of them fail, compare the next best."""
        while finalists := self._finalists():
            self._last = self._compared([trial.name for trial in finalists])
            if any(self.value(self.trials[name]) for name in self._last):
                return

    def _compared(self, names: Sequence[str]) -> list[str]:
        """The finalists that remain; alternating rounds share the same drift."""
        self.executor.prepare_finals(
            [(self.candidates[n], self.trials[n]) for n in names], 0
        )
        for rounds in _RUNGS:
            self._take(names, rounds)
            names = self._better_half(names)
        if names and self._undecided(names[0]):
            self.executor.prepare_finals(
                [(self.candidates[n], self.trials[n]) for n in names], 1
            )
            self._take(names, sum(_RUNGS))
        return list(names)

    def _finalists(self) -> list[Trial]:
        """The trials that may win with more precise timing, best first."""
        objective, least = self.terms.objective, self.terms.least
        able = [
            trial
            for trial in self.ranked
            if trial.name in self.candidates
            and objective.may_allow(trial, self.eager, least=least)
        ]
        # The machine may slow down between trials, so a trial also qualifies by its
        # ratio to the eager rounds that were measured beside it.
        faster = sorted(able, key=lambda trial: -(trial.vs_eager or 0.0))
        near = [
            trial
            for trial in able
            if (self.value(trial) or 0.0) <= _NEAR * (self.value(able[0]) or 0.0)
            or (trial.vs_eager or 0.0) >= (faster[0].vs_eager or 0.0) / _NEAR
        ]
        return near[:FINALISTS]

    def _take(self, names: Sequence[str], rounds: int) -> None:
        rounds = min(rounds, self._affordable(names)) if names else 0
        if not rounds:
            return
        rows = self.executor.turns(names, rounds)
        if rows[0].median_ms is None or rows[0].error:
            return  # without eager there is no comparison: keep the trials' values
        self.rows = rows
        for name, row in zip(names, self.rows[1:], strict=True):
            self.trials[name] = _timed(self.trials[name], row)
        eager = _timed(self.eager, self.rows[0])
        self.eager = self.trials[eager.name] = eager
        self.show()

    def _affordable(self, names: Sequence[str]) -> int:
        """The number of rounds that fit in the remaining time.

        A confidence interval needs at least the rounds of the first rung.
        """
        took = [self.trials[name].facts.get("pass_ms") or 0.0 for name in names]
        took.append(self.eager.facts.get("pass_ms") or 0.0)
        left_s = self.terms.deadline - time.monotonic()
        fit = int(left_s * 1e3 / (_PASSES * sum(took))) if any(took) else sum(_RUNGS)
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

    def _undecided(self, name: str) -> bool:
        """Whether the gain is large enough but not significant, and a repeat fits."""
        trial, terms = self.trials[name], self.terms
        gain = terms.objective.gain(trial, self.eager) or 0.0
        allowed = terms.objective.allows(trial, self.eager, least=terms.least)
        return (
            gain >= terms.least
            and not allowed
            and self.left_s() > (trial.seconds or 0.0)
        )

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
        return min(alike, key=lambda t: (_STAGES[t.stage], len(t.name)))

    def _allowed(self, trials: Sequence[Trial]) -> list[Trial]:
        objective, least = self.terms.objective, self.terms.least
        return [t for t in trials if objective.allows(t, self.eager, least=least)]

    # -- the winner --------------------------------------------------------------------

    def _proved(self) -> Trial:
        """The winner; one whose kernels may race has passed its replays."""
        while True:
            chosen = self.chosen()
            candidate = self.candidates.get(chosen.name)
            if candidate is None or chosen.replays == REPLAYS:
                return chosen
            sound = space.without_races(
                self.candidates.get(candidate.follows or "", candidate), candidate
            )
            if sound is None:
                return chosen
            self.trials[chosen.name] = self._replayed(chosen, candidate, sound)
            if not any(self.value(self.trials[name]) for name in self._last):
                self._finals()

    def _replayed(self, trial: Trial, candidate: Candidate, sound: Candidate) -> Trial:
        """The trial with its equal replays; it is out if one of them differs."""
        left_s = self.terms.deadline - time.monotonic()
        takes_s = REPLAYS * (trial.facts.get("pass_ms") or 0.0) / 1e3
        if left_s < takes_s:
            why = (
                f"{REPLAYS:,} replays would take about {takes_s:.0f} s, and"
                f" {max(0.0, left_s):.0f} s remain"
            )
            return replace(trial, outcome="failed", why=why, final=False)
        try:
            replayed = self.executor.replay(candidate, sound, REPLAYS, left_s)
        except (WorkerError, UserError) as error:
            why = f"its replays could not be compared: {error}"
            return replace(trial, outcome="failed", why=why, final=False)
        if replayed.differs is None:
            return replace(trial, replays=replayed.equal)
        why = (
            f"replay {replayed.equal + 1} of {REPLAYS:,} differs from {sound.name} in"
            f" {replayed.differs}"
        )
        equal = replayed.equal
        return replace(trial, outcome="wrong", why=why, replays=equal, final=False)

    def _started_cold(self, chosen: Trial) -> Trial:
        """The chosen trial with its cold first call, if there is time to measure it."""
        candidate = self.candidates.get(chosen.name)
        left_s = self.terms.deadline - time.monotonic()
        if (
            chosen.cold
            or candidate is None
            or left_s < 2 * (self._cost_s(candidate) or 0)
        ):
            return chosen
        try:
            first_s, start_s = self.executor.cold_start(candidate, left_s)
        except (WorkerError, UserError):  # the recipe is valid without a cold start
            return chosen
        trial = replace(chosen, first_call_s=first_s, start_s=start_s, cold=True)
        self.trials[chosen.name] = trial
        return trial

    # -- progress ----------------------------------------------------------------------

    def show(self) -> None:
        self._show(
            SearchState(
                trials=self.valued(),
                running=tuple(self._running),
                left=len(self._waiting),
                time_left_s=max(0.0, self.terms.deadline - time.monotonic()),
                objective=str(self.terms.objective),
            )
        )

    def valued(self) -> tuple[Trial, ...]:
        """The trials with the value of each, as reports show them."""
        return tuple(replace(t, value=self.value(t)) for t in self.trials.values())


_STAGES = {"forms": 0, "switches": 1, "together": 2}


def _timed(trial: Trial, row: Measurement) -> Trial:
    """The trial with its values from the finals; one that failed there is out.

    One that ran out of memory beside the other finalists keeps its earlier values.
    """
    if row.error and is_short_of_memory(row.error):
        return trial
    if row.error or row.median_ms is None:
        return replace(trial, outcome="failed", why=row.error, final=False)
    return replace(
        trial,
        step_ms=row.median_ms,
        mfu=row.mfu,
        vs_eager=row.vs_eager,
        vs_eager_low=row.vs_eager_low,
        vs_eager_high=row.vs_eager_high,
        final=True,
    )
