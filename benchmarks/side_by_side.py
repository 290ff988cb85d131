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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchproof.measure import rows
from torchproof.measure.specs import EAGER, Plan, Spec
from torchproof.measure.strategy_state import Seat
from torchproof.measure.worker_process import ArmError, Process
from torchproof.records import stats
from torchproof.records.run import Run, UserError
from torchproof.strategies.strategy import NotApplicable, parse
from torchproof.targets.target import parse as parse_target

ROUNDS = 4
ROUND_SAMPLES = 30  # at least 100 in all
ROUND_S = (0.05, 2.5)  # at least, at most
WARM_UP_S = 0.2
# Of each output and gradient, evenly spaced: all of them would take minutes to judge.
COMPARED = {"compared_elements": 1 << 16}


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
        specs = tuple(Spec(parse(name)) for name in strategies)
        self.step, self.limit_s, self.folder = step, limit_s, folder
        self.plan = Plan(parse_target(step.target), specs, train=step.train, quiet=True)
        self.seats = [
            Seat(spec, folder / f"{step.name}-{number}")
            for number, spec in enumerate(specs)
        ]
        self.started = datetime.datetime.now()
        self.error: str | None = None  # why there is nothing to compare with
        self.reference: dict[str, Any] = {}
        self._judge: Process | None = None
        self._referred, self._judging = threading.Event(), threading.Lock()

    # -- with others at the same time ----------------------------------------------

    def refer(self) -> None:
        """Eager's answers, in float64 as well: what the arms are judged by."""
        try:
            job = {**self.plan.job(Spec(EAGER), {}), **COMPARED}
            self._judge = Process(job, {}, quiet=True)
            self.reference = self._judge.ask("refer", self.limit_s, number=0, shape={})
        except (ArmError, UserError) as error:
            self.error = str(error)
        finally:
            self._referred.set()

    def begin(self, seat: Seat) -> None:
        """The first call, cold, and some more to warm up."""
        with failing(seat):
            job = {**self.plan.job(seat.spec, {}), **COMPARED}
            seat.process = Process(job, seat.environment, quiet=True)
            facts = seat.ask("prepare", self.limit_s, answers=None)
            warm = seat.ask("sample", self.limit_s, seconds=WARM_UP_S)["times_ms"]
            none = dict.fromkeys(("compilations", "steps", "interrupted"), 0)
            more = {"rounds": [[]], "pass_ms": statistics.median(warm)}
            seat.facts.append(facts | none | more | {"steady": False})

    def finish(self, seat: Seat) -> None:
        """The verdict on its answers after all that was timed; and its memory."""
        facts = seat.facts[0]
        if not seat.spec.is_eager:
            path = self.folder / f"{seat.caches.name}.pt"
            with failing(seat):
                seat.ask("answer", self.limit_s, answers=str(path))
                facts["numerics"] = self._verdict(path)
        if seat.runs and "memory" not in facts:
            self.examine(seat, alone=False)

    def _verdict(self, path: Path) -> dict[str, Any]:
        self._referred.wait()
        with self._judging:
            if self._judge is None or self.error:
                return {"verdict": None, "why": f"no reference: {self.error}"}
            try:
                told = {"number": 0, "path": str(path)}
                return dict(self._judge.ask("judge", self.limit_s, **told)["numerics"])
            except ArmError as error:
                self.error = f"the comparison failed: {error}"
                return {"verdict": None, "why": self.error}
            finally:
                path.unlink(missing_ok=True)

    # -- alone ---------------------------------------------------------------------

    @property
    def running(self) -> list[Seat]:
        return [seat for seat in self.seats if seat.runs and seat.facts]

    def time(self) -> None:
        """Rounds of all arms in turn, so that drift hits all alike."""
        for turn in range(ROUNDS):
            for seat in self.running[:: -1 if turn % 2 else 1]:
                with failing(seat):
                    self._sample(seat)

    def _sample(self, seat: Seat) -> None:
        facts = seat.facts[0]
        least, most = ROUND_S
        seconds = min(max(least, ROUND_SAMPLES * facts["pass_ms"] / 1e3), most)
        answer = seat.ask("sample", self.limit_s, seconds=seconds)
        times, spoiled = answer["times_ms"], answer["interrupted"]
        clean = [t for t, bad in zip(times, spoiled, strict=True) if not bad]
        facts["rounds"][0].append(clean or times)
        facts["pass_ms"] = statistics.median(times)
        every = [time for part in facts["rounds"][0] for time in part]
        facts["steady"] = stats.steady(every)
        facts["compilations"] += answer["compilations"]
        facts["steps"] += len(times)
        facts["interrupted"] += sum(spoiled)

    def examine(self, seat: Seat, *, alone: bool) -> None:
        """Memory; and what kernels take, where nothing else is on the device."""
        with failing(seat):
            found = seat.ask("examine", self.limit_s)
            if not alone:
                del found["profile"]
            seat.facts[0] |= found

    def fastest(self, strategies: Sequence[str]) -> Seat | None:
        """Of these, the arm with the shortest step."""
        timed = [
            seat
            for seat in self.running
            if seat.spec.strategy.name in strategies and seat.facts[0]["rounds"][0]
        ]
        return min(timed, key=_median, default=None)

    # -- the end -------------------------------------------------------------------

    def run(self, command: str, conditions: dict[str, Any]) -> Run:
        found = rows.rows(self.seats, self.plan, {(None, 0): self.reference})
        return Run(
            id=f"{self.started:%Y%m%d-%H%M}-{self.step.name}",
            target=self.step.target,
            strategy=", ".join(row.strategy for row in found),
            environment=self.reference.get("environment", {}),
            counts={},
            measurements=found,
            verb="bench",
            command=command,
            started=self.started.isoformat(timespec="seconds"),
            error=self.error,
            other={"title": self.step.title, "conditions": conditions},
        )

    def close(self) -> None:
        for seat in self.seats:
            seat.close()
        if self._judge is not None:
            self._judge.close()


def _median(seat: Seat) -> float:
    rounds = seat.facts[0]["rounds"][0]
    return float(statistics.median([time for part in rounds for time in part]))


@contextlib.contextmanager
def failing(seat: Seat) -> Iterator[None]:
    """An arm that fails is out; the others go on."""
    try:
        yield
    except NotApplicable as error:
        seat.skipped = str(error)
        seat.close()
    except (ArmError, UserError) as error:
        seat.error = str(error)
        seat.close()
