"""The devices of this machine: which one gets which trial, and a broken one."""

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
from torchproof.tuning.candidates import Candidate, Eager
from torchproof.tuning.executors import Local, Task
from torchproof.tuning.trial_worker import TimingLock

FULL, REGIONAL = (Candidate(StrategySpec(parse(name))) for name in ("full", "regional"))


class Device:
    """Stands in for a worker: ends trials once `open` is set."""

    broken: str | None = None
    open = threading.Event()
    alone = True

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
    monkeypatch.setattr(Device, "open", threading.Event())
    yield
    Device.open.set()


def local(folder: Path, *, shares_caches: bool = True) -> Local:
    plan = Plan(parse_target("workload:gpt"), ())
    found = Local(Task(plan, folder, shares_caches), lambda text: None)
    found.probe(10.0)
    return found


@pytest.mark.parametrize("broken", [None, "GPU 1"])
def test_trials_are_spread_over_the_gpus_that_work(
    broken: str | None, tmp_path: Path, gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "broken", broken)
    executor = local(tmp_path)
    assert executor.name == "2 GPUs" and executor.slots() == 2
    for candidate in (FULL, REGIONAL):
        executor.submit(candidate, 5.0)
    assert executor.slots() == 0
    Device.open.set()
    ended: list[Trial] = []
    for _ in range(3):
        ended += executor.wait(10)
    places = {trial.name: trial.where for trial in ended}
    assert places == {"full": "", "regional": "" if broken else "GPU 1"}
    assert executor.slots() == (1 if broken else 2)
    assert executor.name == ("this machine" if broken else "2 GPUs")
    executor.close()


def test_broken_first_device_is_an_error(
    tmp_path: Path, gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "broken", "")
    executor = local(tmp_path)
    executor.submit(FULL, 5.0)
    with pytest.raises(UserError, match="no such device"):
        executor.wait(10)
    executor.close()


def test_workers_compile_together_and_are_timed_alone(tmp_path: Path) -> None:
    """Each worker has a lock of its own, as in processes of their own."""
    timed = threading.Event()

    def take_time() -> None:
        with TimingLock(tmp_path).exclusive():
            timed.set()

    thread = threading.Thread(target=take_time)
    with TimingLock(tmp_path).shared(), TimingLock(tmp_path).shared():
        thread.start()
        assert not timed.wait(0.2)
    thread.join(60)
    assert timed.is_set()
    with TimingLock(tmp_path).shared():  # the lock was released
        pass


def test_cold_first_calls_have_the_machine_to_themselves(
    tmp_path: Path, gpus: None
) -> None:
    executor = local(tmp_path, shares_caches=False)
    assert executor.slots() == 1
    executor.submit(FULL, 5.0)
    assert executor.slots() == 0
    executor.close()
