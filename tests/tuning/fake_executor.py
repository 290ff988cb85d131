"""An executor without processes: a table says how each candidate's trial ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchproof.measure.replies import Replayed
from torchproof.measure.worker_process import WorkerError
from torchproof.records import Measurement, Outcome, Trial
from torchproof.tuning import space
from torchproof.tuning.candidate import Candidate, Eager
from torchproof.tuning.executors import Finalists
from torchproof.tuning.objectives import Objective
from torchproof.tuning.search import Effort, Search, SearchOptions
from torchproof.tuning.trial_store import TrialStore

EAGER_MS = 10.0
FACTS = {"compile_s": None, "steady": True}
FACTS |= {"first_call_s": 1.0}


@dataclass(frozen=True)
class Fate:
    """How a candidate does; `final_ms` where the finals find another time."""

    step_ms: float = EAGER_MS
    outcome: Outcome = "measured"
    spread: float = 1.02  # of what is known about its gain, to both sides
    start_s: float = 1.0
    peak_bytes: int = 1000
    seconds: float = 0.0
    pass_ms: float = 1.0
    final_ms: float | None = None
    final_spread: float | None = None
    final_error: str | None = None
    graph_breaks: int = 0
    differs_at: int | None = None  # the first replay with another bit

    def gains(self, step_ms: float, spread: float) -> dict[str, float]:
        gain = EAGER_MS / step_ms
        low, high = gain / spread, gain * spread
        return {"vs_eager": gain, "vs_eager_low": low, "vs_eager_high": high}

    def trial(self, name: str) -> Trial:
        if self.outcome != "measured":
            why = f"it was to be {self.outcome}"
            return Trial(name, "forms", self.outcome, why, seconds=self.seconds)
        return Trial(
            name,
            "forms",
            "measured",
            seconds=self.seconds,
            step_ms=self.step_ms,
            first_call_s=self.start_s,
            start_s=self.start_s,
            cold=True,
            peak_bytes=self.peak_bytes,
            numerics={"verdict": "same"},
            facts={
                **FACTS,
                "pass_ms": self.pass_ms,
                "counts": {"graphs": 2, "graph_breaks": self.graph_breaks},
            },
            **self.gains(self.step_ms, self.spread),
        )

    def row(self, name: str) -> Measurement:
        if self.final_error:
            return Measurement(name, error=self.final_error)
        step_ms = self.final_ms or self.step_ms
        gains = self.gains(step_ms, self.final_spread or self.spread)
        same = {"verdict": "same"}
        return Measurement(name, median_ms=step_ms, numerics=same, **gains)


EAGER = Fate(start_s=0.1, spread=1.0)


class Fake:
    """Does as many trials at once as it has lanes, and ends them in turn."""

    name = "a table"

    def __init__(self, fates: Mapping[str, Fate], *, lanes: int = 1) -> None:
        self.fates, self.lanes = fates, lanes
        self.eager_fails = False
        self.tried: list[str] = []
        self.limits: dict[str, float] = {}
        self.turned: list[tuple[str, ...]] = []
        self.rounds: list[int] = []
        self.repeats: list[tuple[int, tuple[str, ...]]] = []
        self.clock_s = 0.0  # what trials would have taken
        self.replayed: list[tuple[str, str, int]] = []
        self._going: list[Candidate] = []

    def fate(self, name: str) -> Fate:
        return self.fates.get(name, Fate())

    def probe(self, limit_s: float) -> Eager:
        raise NotImplementedError

    def cache_in(self, folder: Path) -> None: ...

    def slots(self) -> int:
        return self.lanes - len(self._going)

    def submit(self, candidate: Candidate, limit_s: float) -> None:
        assert self.slots() > 0 and limit_s > 0
        self._going.append(candidate)
        self.tried.append(candidate.name)
        self.limits[candidate.name] = limit_s

    def wait(self, seconds: float) -> list[Trial]:
        assert self._going
        name = self._going.pop(0).name
        fate = self.fate(name)
        limit_s = self.limits[name]
        if fate.seconds > limit_s:
            fate = Fate(outcome="timed out", seconds=limit_s)
        self.clock_s += fate.seconds
        return [replace(fate.trial(name), limit_s=limit_s)]

    def keep(self, names: Collection[str]) -> None: ...

    def prepare_finals(self, finalists: Finalists, repeat: int) -> None:
        self.repeats.append((repeat, tuple(c.name for c, _ in finalists)))

    def turns(self, names: Sequence[str], rounds: int) -> tuple[Measurement, ...]:
        self.turned.append(tuple(names))
        self.rounds.append(rounds)
        eager = EAGER.row("eager")
        if self.eager_fails:
            eager = Measurement("eager", error="killed")
        return (eager, *(self.fate(name).row(name) for name in names))

    def replay(
        self, candidate: Candidate, sound: Candidate, count: int, limit_s: float
    ) -> Replayed:
        self.replayed.append((candidate.name, sound.name, count))
        at = self.fate(candidate.name).differs_at
        return Replayed(count) if at is None else Replayed(at - 1, "call 0: output")

    def cold_start(self, candidate: Candidate, limit_s: float) -> tuple[float, float]:
        raise WorkerError("not cold")

    def close(self) -> None: ...


@dataclass
class Setting:
    """A search over this table in a folder of its own."""

    root: Path
    fates: Mapping[str, Fate] = field(default_factory=dict)
    objective: str = "step"
    effort: Effort = "normal"
    budget_s: float = 600.0
    timeout_s: float | None = None
    lanes: int = 1
    resume: bool = False
    device: str = "cpu"
    probe: Mapping[str, Any] = field(
        default_factory=lambda: {"blocks": {"Block": 4}, "varying": []}
    )

    def search(self) -> tuple[Search, Fake]:
        fake = Fake(self.fates, lanes=self.lanes)
        begun = time.monotonic()
        terms = SearchOptions(
            Objective.parse(self.objective),
            self.effort,
            1.05,
            self.budget_s,
            begun + self.budget_s,
            timeout_s=self.timeout_s,
            device=self.device,
            probe=self.probe,
        )
        saved_trials = TrialStore(
            {"target": "fake"}, resume=self.resume, root=self.root
        )
        return Search(fake, terms, saved_trials, eager=EAGER.trial("eager")), fake

    def forms(self, *names: str) -> space.Space:
        objective = Objective.parse(self.objective)
        if names:
            order = space.Order.of(self.probe, self.device, objective)
            return space.named(names, order, {})
        return space.forms(self.probe, self.device, objective, {})

    def run(
        self, *names: str, change: Callable[[Fake], None] = lambda fake: None
    ) -> tuple[Trial, Search, Fake]:
        search, fake = self.search()
        change(fake)
        left_s = search.left_s
        # Seconds of the table pass without being waited for.
        search.left_s = lambda: left_s() - fake.clock_s  # type: ignore[method-assign]
        try:
            return search.run(self.forms(*names)), search, fake
        finally:
            search.saved_trials.close(finished=True)
