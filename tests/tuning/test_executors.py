"""The devices of this machine: who gets which trial, and what a broken one costs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchproof.measure.specs import Plan, StrategySpec
from torchproof.records import Trial
from torchproof.records.run import UserError
from torchproof.strategies.strategy import parse
from torchproof.targets.target import parse as parse_target
from torchproof.tuning import executors
from torchproof.tuning.candidate import Candidate, Eager
from torchproof.tuning.executors import Local, Task

FULL, REGIONAL = (Candidate(StrategySpec(parse(name))) for name in ("full", "regional"))


class Device:
    """Stands in for a worker: does trials while `open` is set."""

    broken: str | None = None
    open = threading.Event()

    def __init__(self, plan: Plan, folder: Path, *, where: str, **more: Any) -> None:
        self.where = where

    def probe(self, limit_s: float) -> Eager:
        return Eager(Trial("eager"), {}, {"device": "cuda"})

    def trial(self, candidate: Candidate, limit_s: float) -> Trial:
        if self.where == self.broken:
            raise UserError("the target fails in eager: no such device")
        self.open.wait(10)
        return Trial(candidate.name, "forms", "measured", where=self.where)

    def close(self) -> None:
        self.open.set()


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(executors, "Worker", Device)
    monkeypatch.setattr(executors, "visible_gpus", lambda: ["0", "1"])
    monkeypatch.setattr(executors, "_MOST_LANES", 1)
    monkeypatch.setattr(Device, "open", threading.Event())
    yield
    Device.open.set()


def local(folder: Path, *, shares_caches: bool = True) -> Local:
    plan = Plan(parse_target("workload:gpt"), ())
    found = Local(Task(plan, folder, shares_caches), lambda text: None)
    found.probe(10.0)
    return found


def both(machine: Local) -> list[tuple[str, str]]:
    found: list[Trial] = []
    while len(found) < 2:
        found += machine.wait(10)
    return sorted((trial.name, trial.where) for trial in found)


def test_trials_are_spread_over_the_gpus(tmp_path: Path, gpus: None) -> None:
    machine = local(tmp_path)
    assert machine.name == "2 GPUs" and machine.slots() == 2
    for candidate in (FULL, REGIONAL):
        machine.submit(candidate, 5.0)
    assert machine.slots() == 0
    Device.open.set()
    assert both(machine) == [("full", ""), ("regional", "GPU 1")]
    machine.close()


def test_a_gpu_where_eager_fails_costs_no_trial(
    tmp_path: Path, gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "broken", "GPU 1")
    machine = local(tmp_path)
    Device.open.set()
    for candidate in (FULL, REGIONAL):
        machine.submit(candidate, 5.0)
    assert both(machine) == [("full", ""), ("regional", "")]
    assert machine.slots() == 1 and machine.name == "this machine"
    machine.close()


def test_the_first_device_has_to_do(
    tmp_path: Path, gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "broken", "")
    machine = local(tmp_path)
    machine.submit(FULL, 5.0)
    with pytest.raises(UserError, match="no such device"):
        machine.wait(10)
    machine.close()


def test_first_calls_that_count_have_the_machine_for_themselves(
    tmp_path: Path, gpus: None
) -> None:
    machine = local(tmp_path, shares_caches=False)
    assert machine.slots() == 1
    machine.submit(FULL, 5.0)
    assert machine.slots() == 0
    machine.close()
