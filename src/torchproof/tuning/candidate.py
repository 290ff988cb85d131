"""A candidate, and the facts about eager that the search starts with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchproof.measure import StrategySpec
from torchproof.records import Stage, Trial
from torchproof.strategies import Strategy


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
class Eager:
    """What measuring eager showed: its trial, the machine, and the target."""

    trial: Trial
    probe: Mapping[str, Any]
    environment: Mapping[str, Any]
