"""An executor without processes: a table says how each candidate's trial ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torchproof.measure.replies import Replayed
from torchproof.records import Measurement, Outcome, Trial
from torchproof.records.objective import Objective
from torchproof.tuning import candidates
from torchproof.tuning.candidates import Candidate, Eager
from torchproof.tuning.search import Effort, Search, TuneOptions
from torchproof.tuning.trial_worker import Finalists

EAGER_MS = 10.0


@dataclass(frozen=True)
class Fate:
    """The results of a candidate; `final_ms` if the finals measure another time."""

    step_ms: float = EAGER_MS
    outcome: Outcome = "measured"
    spread: float = 1.02  # of its confidence interval, to both sides
    start_s: float = 1.0
    peak_bytes: int = 1000
    seconds: float = 0.0
    pass_ms: float = 1.0
    final_ms: float | None = None
    final_spread: float | None = None
    final_error: str | None = None
    final_verdict: str = "same"
    graph_breaks: int = 0
    differs_at: int | None = None  # the first replay with another bit

    def gains(self, step_ms: float, spread: float) -> dict[str, float]:
        gain = EAGER_MS / step_ms
        low, high = gain / spread, gain * spread
        return {"vs_eager": gain, "vs_eager_low": low, "vs_eager_high": high}

    def trial(self, name: str) -> Trial:
        if self.outcome != "measured":
            why = f"the table says {self.outcome}"
            return Trial(name, "forms", self.outcome, why, seconds=self.seconds)
        return Trial(
            name,
            seconds=self.seconds,
            step_ms=self.step_ms,
            first_call_s=self.start_s,
            start_s=self.start_s,
            cold=True,
            peak_bytes=self.peak_bytes,
            numerics={"verdict": "same"},
            pass_ms=self.pass_ms,
            graph_breaks=self.graph_breaks,
            **self.gains(self.step_ms, self.spread),
        )

    def row(self, name: str) -> Measurement:
        if self.final_error:
            return Measurement(name, error=self.final_error)
        step_ms = self.final_ms or self.step_ms
        gains = self.gains(step_ms, self.final_spread or self.spread)
        numerics = {"verdict": self.final_verdict}
        verdict = "wrong" if self.final_verdict == "wrong" else ""
        return Measurement(
            name, median_ms=step_ms, numerics=numerics, verdict=verdict, **gains
        )


EAGER = Fate(start_s=0.1, spread=1.0)


class Fake:
    """Runs as many trials at once as it has lanes, and ends them in turn."""

    name = "a table"

    def __init__(self, fates: Mapping[str, Fate], *, lanes: int = 1) -> None:
        self.fates, self.lanes = fates, lanes
        self.eager_fails = False
        self.tried: list[str] = []
        self.limits: dict[str, float] = {}
        self.compared: list[tuple[str, ...]] = []
        self.rounds: list[int] = []
        self.clock_s = 0.0  # the seconds that trials would have taken
        self.replayed: list[tuple[str, str, int]] = []
        self._running: list[Candidate] = []

    def fate(self, name: str) -> Fate:
        return self.fates.get(name, Fate())

    def probe(self, limit_s: float) -> Eager:
        raise NotImplementedError

    def slots(self) -> int:
        return self.lanes - len(self._running)

    def submit(self, candidate: Candidate, limit_s: float) -> None:
        assert self.slots() > 0 and limit_s > 0
        self._running.append(candidate)
        self.tried.append(candidate.name)
        self.limits[candidate.name] = limit_s

    def wait(self, seconds: float) -> list[Trial]:
        assert self._running
        name = self._running.pop(0).name
        fate = self.fate(name)
        limit_s = self.limits[name]
        if fate.seconds > limit_s:
            fate = Fate(outcome="timed out", seconds=limit_s)
        self.clock_s += fate.seconds
        return [replace(fate.trial(name), limit_s=limit_s)]

    def compare(self, finalists: Finalists, rounds: int) -> tuple[Measurement, ...]:
        names = tuple(candidate.name for candidate, _ in finalists)
        self.compared.append(names)
        self.rounds.append(rounds)
        eager = EAGER.row("eager")
        if self.eager_fails:
            eager = Measurement("eager", error="killed")
        return (eager, *(self.fate(name).row(name) for name in names))

    def replay(
        self, candidate: Candidate, base: Candidate, count: int, limit_s: float
    ) -> Replayed:
        self.replayed.append((candidate.name, base.name, count))
        at = self.fate(candidate.name).differs_at
        return Replayed(count) if at is None else Replayed(at - 1, "call 0: output")

    def close(self) -> None: ...


@dataclass
class Setting:
    """A search over this table."""

    fates: Mapping[str, Fate] = field(default_factory=dict)
    objective: str = "step"
    effort: Effort = "normal"
    budget_s: float = 600.0
    timeout_s: float | None = None
    lanes: int = 1
    earlier: Mapping[str, Trial] = field(default_factory=dict)
    device: str = "cpu"
    probe: Mapping[str, Any] = field(
        default_factory=lambda: {"blocks": {"Block": 4}, "varying": []}
    )

    def candidates(self, *names: str) -> list[Candidate]:
        if names:
            return candidates.named(names, {})
        objective = Objective.parse(self.objective)
        return candidates.candidates(self.probe, self.device, objective, {})

    def run(
        self, *names: str, change: Callable[[Fake], None] = lambda fake: None
    ) -> tuple[Trial, Search, Fake]:
        """The winner among these names, or among all candidates."""
        fake = Fake(self.fates, lanes=self.lanes)
        search = Search(
            fake,
            TuneOptions(
                Objective.parse(self.objective), self.budget_s, self.effort, names=names
            ),
            eager=Eager(EAGER.trial("eager"), self.probe, {}),
            deadline=time.monotonic() + self.budget_s,
            timeout_s=self.timeout_s,
            earlier=self.earlier,
        )
        change(fake)
        left_s = search.time_left_s
        # Seconds of the table pass without being waited for.
        search.time_left_s = lambda: left_s() - fake.clock_s  # type: ignore[method-assign]
        return search.run(self.candidates(*names)), search, fake
