"""Worker processes that answer late, end early, or may not start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from torchproof.measure.replies import Facts
from torchproof.measure.specs import EAGER, StrategyJob
from torchproof.measure.worker_process import (
    STRATEGY_WORKER,
    Worker,
    WorkerError,
    Workers,
    WorkerTimeout,
)


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
