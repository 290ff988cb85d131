"""What a start costs is measured alike for every strategy."""

from pathlib import Path
from typing import Any

import pytest

from torchproof.measure.specs import Plan, StrategySpec
from torchproof.measure.strategy_worker import StrategyWorker
from torchproof.strategies.strategy import Strategy, parse
from torchproof.targets.target import parse as parse_target

FACTORY = """
import torch

def make():
    return torch.nn.Linear(4, 4), [(torch.randn(2, 4),)]
"""


@pytest.mark.parametrize("strategy", ["regional", "nested"])
def test_compiler_is_imported_before_blocks_are_looked_for(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking imports a part of it: seconds that full would pay for, and others not."""
    (tmp_path / "model.py").write_text(FACTORY)
    plan = Plan(parse_target(f"{tmp_path}/model.py:make"), ())
    worker = StrategyWorker(plan.job(StrategySpec(parse(strategy)), {}))
    opened: list[bool] = []

    def planned(*given: Any) -> None:
        opened.append(worker.compile_stats._costs is not None)

    monkeypatch.setattr(Strategy, "plan", planned)
    assert worker.strategy.observes and worker.compile_stats._costs is None
    worker._plan()
    assert opened == [True]
    assert worker.compile_stats.open() == worker.compile_stats.open() > 0
