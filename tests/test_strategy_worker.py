"""What the process of a strategy replies besides its times."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from forked_workers import backends, measured

from torchproof.measure import command_loop, worker_process
from torchproof.measure.specs import EAGER, StrategyJob
from torchproof.measure.strategy_worker import StrategyWorker
from torchproof.measure.worker_process import WorkerError
from torchproof.records import MissingHook, UserError
from torchproof.records.run import Frame
from torchproof.strategies import NotApplicable
from torchproof.targets import calls
from torchproof.targets.job import Job
from torchproof.targets.target import Loaded, Target

LYING = Path(__file__).parent / "models" / "lying.py"
UNREPEATABLE = Path(__file__).parent / "models" / "unrepeatable.py"


def test_another_shape_differs_from_the_default_in_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Mapping[str, int]] = []

    def fresh(job: Job) -> Loaded:
        made.append(job.shape)
        return Loaded(len, [()], None, Frame("file.py", 1, "make"))

    monkeypatch.setattr(calls, "fresh", fresh)
    target = Target("file.py:make", "factory", "file.py")
    worker = StrategyWorker(StrategyJob(EAGER, Job(target, shape={"batch": 2})))
    worker._build({"sequence": 16})
    assert made == [{"batch": 2}, {"sequence": 16}]


@pytest.mark.parametrize("kind", [NotApplicable, MissingHook, UserError, WorkerError])
def test_an_error_of_a_worker_has_its_kind_here_too(kind: type[Exception]) -> None:
    def fail() -> None:
        raise ValueError("why") if kind is WorkerError else kind("why")

    reply = command_loop._reply(SimpleNamespace(do=fail), "do", {})
    with pytest.raises(kind, match="why") as raised:
        worker_process._raise_error(reply)
    assert type(raised.value) is kind


def test_what_later_calls_compile_counts_for_the_break_even() -> None:
    eager, row = measured(f"{LYING}:two_kinds", backends("eager")).rows
    assert eager.start and eager.start["later_compile_s"] is None
    assert row.start and row.compile_s
    later_s = row.start["later_compile_s"]
    assert 0 < later_s < row.compile_s["total"]


@pytest.mark.parametrize(
    ("factory", "where"),
    [
        ("another_in_each_process", "call 0: argument"),
        pytest.param("kept_by_the_function", "call 0: output", marks=pytest.mark.slow),
    ],
)
def test_results_on_other_inputs_are_not_compared(factory: str, where: str) -> None:
    """The reference in float64, of other inputs, would excuse a wrong result."""
    _, row = measured(f"{UNREPEATABLE}:{factory}", backends("eager")).rows
    assert row.verdict == "unverified"
    assert row.numerics and row.numerics["verdict"] is None
    assert row.numerics["why"].startswith(where)
    assert "each time the target is loaded" in row.numerics["why"]


@pytest.mark.slow
def test_a_wrong_result_on_the_same_inputs_is_found() -> None:
    _, row = measured(f"{UNREPEATABLE}:seeded", backends("eager")).rows
    assert row.verdict == "wrong"
