"""A candidate, and what trying it gave: plain data that can be saved and sent."""

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
    """A way to run the target that may be tried.

    `follows` names the candidate whose kernels it runs, or whose compiling it begins
    with: what that one gave bounds what this one can give.
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
    """`start_s` is all that is over before the second step: imports, the first call,
    and what later calls compile. `cold` is False where compiled code of other trials
    was found, or others began at the same time: then there is no cold first call to
    tell. `facts` are the arm's own.
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
    generated_ms: float | None = None  # of that, kernels that Inductor wrote
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

    def told(self, value: float | None) -> dict[str, Any]:
        """For the run: without the arm's own facts, with the objective's value."""
        values = {k: v for k, v in self.to_json().items() if k not in _OWN}
        return values | {"value": value}


_OWN = ("facts", "limit_s", "start_s")
