"""What a search minimises, and who may win it.

The promise is the same for every objective: who wins gives eager's answers, and what
is asked for is better than eager's by the least gain that counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torchproof.records import UserError
from torchproof.tuning.trial import Trial

Kind = Literal["step", "first", "memory", "steps"]


@dataclass(frozen=True)
class Objective:
    """`step`: time of a step. `first`: of the first call, among what is faster than
    eager. `memory`: the peak, among what is not slower. `steps`: the time of so many
    steps, all compiling included.
    """

    kind: Kind = "step"
    steps: int = 0

    @classmethod
    def parse(cls, text: str) -> Objective:
        if match := re.fullmatch(r"steps:(\d{1,12})", text.strip()):
            if int(match[1]) > 0:
                return cls("steps", int(match[1]))
        elif text.strip() in ("step", "first", "memory"):
            return cls(text.strip())  # type: ignore[arg-type]
        raise UserError(
            f"--objective {text}: choose step, first, memory or steps:N, N above 0"
        )

    def __str__(self) -> str:
        return f"steps:{self.steps}" if self.kind == "steps" else self.kind

    @property
    def needs_cold_starts(self) -> bool:
        """Whether compiled code of another trial would make a first call too short."""
        return self.kind in ("first", "steps")

    @property
    def is_about_steps(self) -> bool:
        """Whether faster steps can serve it."""
        return self.kind in ("step", "steps")

    def value(self, trial: Trial) -> float | None:
        """In seconds or bytes; None where it was not measured."""
        if trial.outcome != "measured" or trial.step_ms is None:
            return None
        step_s = trial.step_ms / 1e3
        if self.kind == "step":
            return step_s
        if self.kind == "memory":
            return None if trial.peak_bytes is None else float(trial.peak_bytes)
        if trial.start_s is None:
            return None
        later = (self.steps - 1) * step_s if self.kind == "steps" else 0.0
        return trial.start_s + later

    def gain(self, trial: Trial, eager: Trial) -> float | None:
        """By which factor it beats eager: in what is asked for, or what that is worth.

        A first call is never shorter than eager's: there the gain is that of a step.
        """
        if self.kind in ("step", "first"):
            return trial.vs_eager
        own, base = self.value(trial), self.value(eager)
        return base / own if own and base else None

    def allows(self, trial: Trial, eager: Trial, *, least: float) -> bool:
        """Whether it may win: proven, not only likely."""
        gain = self.gain(trial, eager)
        if gain is None or gain < least or self.value(trial) is None:
            return False
        low, high = trial.vs_eager_low, trial.vs_eager_high
        if low is None or high is None:
            return False
        if self.kind == "steps":
            return self._pays_surely(trial, eager, low)
        return high >= 1 if self.kind == "memory" else low > 1

    def _pays_surely(self, trial: Trial, eager: Trial, low: float) -> bool:
        """Also where its steps are as slow beside eager's as they may be."""
        base, start_s, eager_ms = self.value(eager), trial.start_s, eager.step_ms
        if base is None or start_s is None or eager_ms is None or low <= 0:
            return False
        return start_s + (self.steps - 1) * eager_ms / 1e3 / low < base

    def may_allow(self, trial: Trial, eager: Trial, *, least: float) -> bool:
        """Whether it may turn out to be allowed once it is timed better."""
        own, base = self.value(trial), self.value(eager)
        if own is None or base is None:
            return False
        if self.kind == "steps":
            return own < base
        high = trial.vs_eager_high or 0.0
        return high >= 1 and own < base if self.kind == "memory" else high >= least

    def best(
        self, trials: Sequence[Trial], eager: Trial, *, least: float
    ) -> Trial | None:
        allowed = [t for t in trials if self.allows(t, eager, least=least)]
        return min(allowed, key=lambda t: self.value(t) or 0.0, default=None)
