"""Worker processes that answer late, end early, or may not start; what starts cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from torchproof.measure.replies import Facts
from torchproof.measure.specs import EAGER, Plan, StrategyJob, StrategySpec
from torchproof.measure.strategy_worker import StrategyWorker
from torchproof.measure.worker_process import (
    STRATEGY_WORKER,
    Worker,
    WorkerError,
    Workers,
    WorkerTimeout,
)
from torchproof.strategies import planning
from torchproof.strategies.strategy import parse
from torchproof.targets.target import parse as parse_target


@pytest.fixture
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    """A process of this module."""
    found = Worker(StrategyJob(EAGER), {}, quiet=True, module=request.param)
    yield found
    found.close()


@pytest.mark.parametrize("worker", [STRATEGY_WORKER], indirect=True)
def test_late_process_is_ended(worker: Worker) -> None:
    worker.tell("import_torch")
    with pytest.raises(WorkerTimeout, match=r"\b0 s\b"):
        worker.ask(Facts, "warm_up", 0.01)
    with pytest.raises(WorkerError, match="its process"):
        worker.ask(Facts, "warm_up", 60.0)


@pytest.mark.parametrize("worker", ["this"], indirect=True)
def test_ended_process_is_an_error(worker: Worker) -> None:
    with pytest.raises(WorkerError, match="exit code 0"):
        worker.ask(Facts, "warm_up", 60.0)


def test_closed_session_starts_no_process() -> None:
    family = Workers(quiet=True)
    family.close()
    with pytest.raises(WorkerError, match="has ended"):
        family.begin(StrategyJob(EAGER), {})


@pytest.mark.parametrize("strategy", ["regional", "nested"])
def test_compiler_is_imported_before_blocks_are_looked_for(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking imports a part of it: seconds that full would pay for, and others not."""
    plan = Plan(parse_target("workload:arrcoc-scorers"), (), size="tiny", device="cpu")
    worker = StrategyWorker(plan.job(StrategySpec(parse(strategy)), {}))
    opened: list[bool] = []

    def planned(*args: Any, **keywords: Any) -> None:
        opened.append(worker.compile_stats._costs is not None)

    monkeypatch.setattr(planning, "plan", planned)
    assert worker.strategy.observes and worker.compile_stats._costs is None
    worker._plan()
    assert opened == [True]
    assert worker.compile_stats.open() == worker.compile_stats.open() > 0
