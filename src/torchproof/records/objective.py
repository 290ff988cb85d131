"""The objective of a search: what it minimises, and which trials may win.

For every objective, the winner returns eager's outputs and beats eager's value by at
least the minimum gain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torchproof.records.tuning import Trial

Kind = Literal["step", "first", "memory", "steps"]


@dataclass(frozen=True)
class Objective:
    """`step`: the time of a step. `first`: the time of the first call, among strategies
    that are faster than eager. `memory`: peak memory, among strategies that are not
    slower than eager. `steps`: the time of `steps` steps, compilation included.
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
        raise ValueError(f"{text}: choose step, first, memory or steps:N, N above 0")

    def __str__(self) -> str:
        return f"steps:{self.steps}" if self.kind == "steps" else self.kind

    @property
    def needs_cold_starts(self) -> bool:
        """Whether code that another trial compiled would falsify the first call."""
        return self.kind in ("first", "steps")

    @property
    def is_about_steps(self) -> bool:
        """Whether faster steps improve the objective."""
        return self.kind in ("step", "steps")

    def value(self, trial: Trial) -> float | None:
        """The trial's value in seconds or bytes; None if it was not measured."""
        if trial.outcome != "measured" or trial.step_ms is None:
            return None
        step_s = trial.step_ms / 1e3
        if self.kind == "step":
            return step_s
        if self.kind == "memory":
            return trial.peak_bytes
        if trial.start_s is None:
            return None
        later = (self.steps - 1) * step_s if self.kind == "steps" else 0.0
        return trial.start_s + later

    def gain(self, trial: Trial, eager: Trial) -> float | None:
        """The factor by which the trial beats eager.

        No compiled first call is shorter than eager's, so `first` uses the step's gain.
        """
        if self.kind in ("step", "first"):
            return trial.vs_eager
        value, base = self.value(trial), self.value(eager)
        return base / value if value and base else None

    def allows(self, trial: Trial, eager: Trial, *, least: float) -> bool:
        """Whether the trial may win: its whole confidence interval beats eager."""
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
        """Whether it pays at the lower end of the confidence interval."""
        base, start_s, eager_ms = self.value(eager), trial.start_s, eager.step_ms
        if base is None or start_s is None or eager_ms is None or low <= 0:
            return False
        return start_s + (self.steps - 1) * eager_ms / 1e3 / low < base

    def may_allow(self, trial: Trial, eager: Trial, *, least: float) -> bool:
        """Whether more precise timing could still make it a winner."""
        value, base = self.value(trial), self.value(eager)
        if value is None or base is None:
            return False
        if self.kind == "steps":
            return value < base
        high = trial.vs_eager_high or 0.0
        return high >= 1 and value < base if self.kind == "memory" else high >= least
