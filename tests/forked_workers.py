"""Sessions of `bench` whose strategy workers are forked where torch is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forked_commands import forked

from torchproof.measure.session import Session
from torchproof.measure.specs import EAGER, MeasureResult, Plan, Progress, StrategySpec
from torchproof.records import stats
from torchproof.records.run import Measurement
from torchproof.strategies.strategy import parse, with_arguments
from torchproof.targets.target import parse as parse_target


def backends(*names: str) -> tuple[StrategySpec, ...]:
    """Eager, and full with each of these backends."""
    full = parse("full")
    return (
        StrategySpec(EAGER),
        *(
            StrategySpec(with_arguments(full, backend=n), variant={"backend": n})
            for n in names
        ),
    )


def measured(
    target: str,
    specs: Sequence[StrategySpec],
    *,
    rounds: int = 4,
    progress: Progress = lambda text: None,
    **more: Any,
) -> MeasureResult:
    """A short session of forked strategies, with rounds of 10 ms."""
    plan = Plan(parse_target(target), tuple(specs), quiet=True)
    plan = replace(plan, **({"seconds": 0.01 * rounds, "repeats": 1} | more))
    with forked(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats, "ROUNDS", rounds)
        return Session(plan, Path(), progress).run()


def by_backend(found: MeasureResult) -> dict[str, Measurement]:
    return {str(row.variant.get("backend", row.strategy)): row for row in found.rows}
