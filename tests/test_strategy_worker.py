"""What an arm's process tells besides its times."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from forked_workers import backends, measured

from torchproof.measure.specs import EAGER, StrategyJob
from torchproof.measure.strategy_worker import StrategyWorker
from torchproof.records.run import Frame
from torchproof.targets import calls
from torchproof.targets.job import Job
from torchproof.targets.target import Loaded, Target

LATE = Path(__file__).parent / "models" / "late.py"


def test_another_shape_differs_from_the_default_in_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Mapping[str, int]] = []

    def fresh(job: Job) -> Loaded:
        made.append(job.shape)
        return Loaded(len, [()], None, Frame("file.py", 1, "make"))

    monkeypatch.setattr(calls, "fresh", fresh)
    target = Target("file.py:make", "factory", "file.py")
    arm = StrategyWorker(StrategyJob(EAGER, Job(target, shape={"batch": 2})))
    arm._build({"sequence": 16})
    assert made == [{"batch": 2}, {"sequence": 16}]


def test_what_later_calls_compile_counts_for_the_break_even() -> None:
    eager, row = measured(f"{LATE}:two_kinds", backends("eager")).rows
    assert eager.start and eager.start["later_compile_s"] is None
    assert row.start and row.compile_s
    later_s = row.start["later_compile_s"]
    assert 0 < later_s < row.compile_s["total"]
