"""A candidate, and the facts about eager that the search starts with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torchproof import strategies
from torchproof.measure import StrategySpec
from torchproof.records import Stage, Trial
from torchproof.strategies import Strategy


@dataclass(frozen=True)
class Switch:
    """A setting of Inductor or Dynamo that is off by default.

    `changes` says what it can make faster: the kernels that Inductor generates, matrix
    products, the gaps between kernels, or the graphs that are compiled. `device` is the
    only one on which it is tried.
    """

    name: str
    of: Literal["inductor", "dynamo"] = "inductor"
    changes: Literal["kernels", "products", "launches", "graphs"] = "kernels"
    device: str | None = None

    @property
    def setting(self) -> str:
        return f"{self.of}.{self.name}"

    @property
    def may_race(self) -> bool:
        """Whether kernels may overlap, so that one could read what is not written."""
        return self.changes == "launches"

    def __str__(self) -> str:
        return f"{self.name}=True"


@dataclass(frozen=True)
class Candidate:
    """A strategy that the search may try.

    `follows` names the candidate that runs the same kernels or compiles the same code
    first: the result of that trial bounds the result of this one. `switches` are what
    it has in addition to that one.
    """

    spec: StrategySpec
    stage: Stage = "forms"
    follows: str | None = None
    switches: tuple[Switch, ...] = ()

    @property
    def name(self) -> str:
        return self.spec.label

    @property
    def strategy(self) -> Strategy:
        return self.spec.strategy

    @property
    def options(self) -> dict[str, Any]:
        """Inductor's options, those that a mode stands for included."""
        arguments = self.strategy.arguments
        mode_options = strategies.MODE_OPTIONS.get(
            arguments.get("mode") or "default", {}
        )
        return {**mode_options, **arguments.get("options", {})}

    @property
    def tunes_products(self) -> bool:
        """Whether Inductor tries many kernels for one matrix product."""
        return bool(
            self.options.get("max_autotune") or self.options.get("max_autotune_gemm")
        )


@dataclass(frozen=True)
class Eager:
    """What measuring eager showed: its trial, the machine, and the target."""

    trial: Trial
    probe: Mapping[str, Any]
    environment: Mapping[str, Any]
