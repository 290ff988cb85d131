"""A candidate and the result of its trial: plain data that can be saved and sent."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torchproof.measure import StrategySpec
from torchproof.strategies import Strategy

Stage = Literal["forms", "switches", "together"]
Outcome = Literal[
    "measured",
    "wrong",
    "failed",
    "timed out",
    "out of memory",
    "not applicable",
    "lost",
]


@dataclass(frozen=True)
class Candidate:
    """A strategy that the search may try.

    `follows` names the candidate that runs the same kernels or compiles the same code
    first: the result of that trial bounds the result of this one.
    """

    spec: StrategySpec
    stage: Stage = "forms"
    follows: str | None = None

    @property
    def name(self) -> str:
        return self.spec.label

    @property
    def strategy(self) -> Strategy:
        return self.spec.strategy


@dataclass(frozen=True)
class Trial:
    """The result of a trial.

    `start_s` is the whole start: imports, the first call, and compilation in later
    calls. `cold` is False if the trial reused compiled code of other trials, or if
    others started at the same time: its first call is then not cold. `facts` are the
    raw values that the strategy's process reported.
    """

    name: str
    stage: Stage
    outcome: Outcome
    why: str | None = None
    seconds: float = 0.0
    limit_s: float | None = None
    step_ms: float | None = None
    first_call_s: float | None = None
    start_s: float | None = None
    cold: bool | None = None
    peak_bytes: int | None = None
    kernel_ms: float | None = None
    generated_ms: float | None = None  # the part of it in kernels Inductor generated
    numerics: Mapping[str, Any] | None = field(default=None, hash=False)
    vs_eager: float | None = None
    vs_eager_low: float | None = None
    vs_eager_high: float | None = None
    where: str = ""
    resumed: bool = False
    final: bool = False
    source: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Trial:
        fields = {item.name for item in dataclasses.fields(cls)}
        return cls(**{key: value for key, value in plain.items() if key in fields})

    def summary(self, value: float | None) -> dict[str, Any]:
        """The trial as the run stores it: without raw facts, with its value."""
        values = {k: v for k, v in self.to_json().items() if k not in _OWN}
        return values | {"value": value}


_OWN = ("facts", "limit_s", "start_s")
