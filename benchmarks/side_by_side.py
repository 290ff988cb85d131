"""The arms of one step: begun anywhere, timed in turn by who has the machine alone.

In comes a step and the strategies to run it under; out goes a run, as `torchproof
bench` writes them. Each arm is a process of its own with caches of its own. Beginning
(the first call) and finishing (numerics, memory) may go on in several threads at once;
timing may not.
"""

from __future__ import annotations

import contextlib
import datetime
import statistics
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchproof.measure import rows
from torchproof.measure.replies import (
    Compared,
    Done,
    Examined,
    Facts,
    FirstPass,
    Reference,
    Sampled,
)
from torchproof.measure.specs import EAGER, Plan, StrategySpec
from torchproof.measure.strategy_state import StrategyState
from torchproof.measure.worker_process import WorkerError, WorkerProcess
from torchproof.records import stats
from torchproof.records.run import Run, UserError
from torchproof.strategies.strategy import NotApplicable, parse
from torchproof.targets.target import parse as parse_target

ROUNDS = 4
ROUND_SAMPLES = 30  # at least 100 in all
ROUND_S = (0.05, 2.5)  # at least, at most
WARM_UP_S = 0.2
# Elements of each output and gradient, evenly spaced: all would take minutes to judge.
COMPARED = 1 << 16


@dataclass(frozen=True)
class Step:
    """One row of the table. `slot_s`: what its arms take to begin, one by one."""

    name: str
    title: str
    train: bool
    slot_s: float

    @property
    def target(self) -> str:
        return f"benchmarks/step_targets.py:{self.name.replace('-', '_')}"


class Arms:
    """The arms of one step, and the process that judges their answers."""

    def __init__(
        self, step: Step, strategies: Sequence[str], folder: Path, *, limit_s: float
    ) -> None:
        specs = tuple(StrategySpec(parse(name)) for name in strategies)
        self.step, self.limit_s, self.folder = step, limit_s, folder
        self.plan = Plan(parse_target(step.target), specs, train=step.train, quiet=True)
        self.states = [
            StrategyState(spec, folder / f"{step.name}-{number}")
            for number, spec in enumerate(specs)
        ]
        self.started = datetime.datetime.now()
        self.error: str | None = None  # why there is nothing to compare with
        self.reference = Reference()
        self._judge: WorkerProcess | None = None
        self._referred, self._judging = threading.Event(), threading.Lock()

    # -- with others at the same time ----------------------------------------------

    def refer(self) -> None:
        """Eager's answers, in float64 as well: what the arms are judged by."""
        try:
            job = self.plan.job(StrategySpec(EAGER), {})
            job = replace(job, compared_elements=COMPARED)
            self._judge = WorkerProcess(job, {}, quiet=True)
            self.reference = self._judge.ask(
                Reference, "make_reference", self.limit_s, number=0, shape={}
            )
        except (WorkerError, UserError) as error:
            self.error = str(error)
        finally:
            self._referred.set()

    def begin(self, state: StrategyState) -> None:
        """The first call, cold, and some more to warm up."""
        with failing(state):
            job = self.plan.job(state.spec, {})
            job = replace(job, compared_elements=COMPARED)
            state.process = WorkerProcess(job, state.environment, quiet=True)
            first = state.ask(FirstPass, "prepare", self.limit_s, answers=None)
            warm = state.ask(Sampled, "sample", self.limit_s, seconds=WARM_UP_S)
            pass_ms = statistics.median(warm.times_ms)
            facts = Facts(rounds=((),), pass_ms=pass_ms, steady=False)
            state.facts.append(facts.adding(first))

    def finish(self, state: StrategyState) -> None:
        """The verdict on its answers after all that was timed; and its memory."""
        if not state.spec.is_eager:
            path = self.folder / f"{state.caches.name}.pt"
            with failing(state):
                state.ask(Done, "save_outputs", self.limit_s, answers=str(path))
                numerics = self._verdict(path)
                state.facts[0] = replace(state.facts[0], numerics=numerics)
        if state.runs and state.facts[0].memory is None:
            self.examine(state, alone=False)

    def _verdict(self, path: Path) -> dict[str, Any]:
        self._referred.wait()
        with self._judging:
            if self._judge is None or self.error:
                return {"verdict": None, "why": f"no reference: {self.error}"}
            try:
                told = {"number": 0, "path": str(path)}
                judged = self._judge.ask(
                    Compared, "compare_outputs", self.limit_s, **told
                )
                return dict(judged.numerics)
            except WorkerError as error:
                self.error = f"the comparison failed: {error}"
                return {"verdict": None, "why": self.error}
            finally:
                path.unlink(missing_ok=True)

    # -- alone ---------------------------------------------------------------------

    @property
    def running(self) -> list[StrategyState]:
        return [state for state in self.states if state.runs and state.facts]

    def time(self) -> None:
        """Rounds of all arms in turn, so that drift hits all alike."""
        for turn in range(ROUNDS):
            for state in self.running[:: -1 if turn % 2 else 1]:
                with failing(state):
                    self._sample(state)

    def _sample(self, state: StrategyState) -> None:
        facts = state.facts[0]
        least, most = ROUND_S
        seconds = min(max(least, ROUND_SAMPLES * facts.pass_ms / 1e3), most)
        reply = state.ask(Sampled, "sample", self.limit_s, seconds=seconds)
        times = list(reply.times_ms)
        facts = facts.sampled(reply)
        every = [time for part in facts.rounds[0] for time in part]
        state.facts[0] = replace(
            facts, pass_ms=statistics.median(times), steady=stats.steady(every)
        )

    def examine(self, state: StrategyState, *, alone: bool) -> None:
        """Memory; and what kernels take, where nothing else is on the device."""
        with failing(state):
            facts = state.facts[0].adding(state.ask(Examined, "examine", self.limit_s))
            state.facts[0] = facts if alone else replace(facts, profile=None)

    def fastest(self, strategies: Sequence[str]) -> StrategyState | None:
        """Of these, the arm with the shortest step."""
        timed = [
            state
            for state in self.running
            if state.spec.strategy.name in strategies and state.facts[0].rounds[0]
        ]
        return min(timed, key=_median, default=None)

    # -- the end -------------------------------------------------------------------

    def run(self, command: str, conditions: dict[str, Any]) -> Run:
        found = rows.rows(self.states, self.plan, {(None, 0): self.reference})
        return Run(
            id=f"{self.started:%Y%m%d-%H%M}-{self.step.name}",
            target=self.step.target,
            strategy=", ".join(row.strategy for row in found),
            environment=self.reference.environment,
            counts={},
            measurements=found,
            verb="bench",
            command=command,
            started=self.started.isoformat(timespec="seconds"),
            error=self.error,
            other={"title": self.step.title, "conditions": conditions},
        )

    def close(self) -> None:
        for state in self.states:
            state.close()
        if self._judge is not None:
            self._judge.close()


def _median(state: StrategyState) -> float:
    rounds = state.facts[0].rounds[0]
    return float(statistics.median([time for part in rounds for time in part]))


@contextlib.contextmanager
def failing(state: StrategyState) -> Iterator[None]:
    """An arm that fails is out; the others go on."""
    try:
        yield
    except NotApplicable as error:
        state.skipped = str(error)
        state.close()
    except (WorkerError, UserError) as error:
        state.error = str(error)
        state.close()
