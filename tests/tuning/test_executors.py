"""Pools of workers: which one gets which trial, and one that breaks or is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
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
from torchproof.tuning.executors import TRIES, Local, Lost, Member, Pool, Task
from torchproof.tuning.trial_worker import TimingLock

FULL, REGIONAL = (Candidate(StrategySpec(parse(name))) for name in ("full", "regional"))
GPUS = {"device": "cuda", "threads": 2, "gpus": ["H200", "H200"]}
EAGER = Eager(Trial("eager"), {}, GPUS)


def ended(pool: Pool, count: int) -> dict[str, Trial]:
    trials: list[Trial] = []
    for _ in range(10):
        if len(trials) < count:
            trials += pool.wait(2)
    return {trial.name: trial for trial in trials}


# -- this machine ----------------------------------------------------------------------


class Device:
    """Stands in for a worker: ends trials once `open` is set."""

    broken: str | None = None
    open = threading.Event()
    alone = True

    def __init__(self, plan: Plan, folder: Path, *, where: str, **more: Any) -> None:
        self.where = where

    def probe(self, limit_s: float) -> Eager:
        if self.where == self.broken:
            raise UserError("the target fails in eager: no such device")
        return EAGER

    def trial(self, candidate: Candidate, limit_s: float) -> Trial:
        self.open.wait(10)
        return Trial(candidate.name, "forms", "measured", where=self.where)

    def close(self) -> None:
        self.open.set()


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.setattr(executors, "Worker", Device)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(Device, "open", threading.Event())
    made: list[Local] = []

    def new(*, broken: str | None = None, shares_caches: bool = True) -> Local:
        monkeypatch.setattr(Device, "broken", broken)
        plan = Plan(parse_target("workload:gpt"), ())
        made.append(Local(Task(plan, tmp_path, shares_caches), lambda text: None))
        made[-1].probe(10.0)
        return made[-1]

    yield new
    for each in made:
        each.close()


def all_slots(pool: Pool) -> int:
    """The slots once every worker has measured eager or has failed."""
    while any(member.eager is None for member in pool.members):
        pool.slots()
    return pool.slots()


def test_trials_are_spread_over_the_gpus(local: Any) -> None:
    pool = local()
    assert all_slots(pool) == 2 and pool.name == "2 GPUs"
    for candidate in (FULL, REGIONAL):
        pool.submit(candidate, 5.0)
    assert pool.slots() == 0
    Device.open.set()
    places = {name: trial.where for name, trial in ended(pool, 2).items()}
    assert places == {"full": "", "regional": "GPU 1"}
    assert pool.slots() == 2


def test_broken_gpu_is_left_out(local: Any) -> None:
    pool = local(broken="GPU 1")
    assert all_slots(pool) == 1 and pool.name == "this machine"
    with pytest.raises(UserError, match=r"^the target fails in eager: no such device"):
        local(broken="")


def test_cold_first_calls_have_the_machine_to_themselves(local: Any) -> None:
    pool = local(shares_caches=False)
    assert all_slots(pool) == 1
    pool.submit(FULL, 5.0)
    assert pool.slots() == 0


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


# -- workers that join and leave -------------------------------------------------------


class Nodes(Pool):
    """Two workers, whose places are filled again when one is lost."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.lines: list[str] = []
        super().__init__(self.lines.append)
        self._answer, self.started = answer, 0

    def recruit(self) -> None:
        while len(self.members) + len(self.left_out) < 2:
            self.started += 1
            self.join(self._member(f"w{self.started}"))

    def _member(self, where: str) -> Member:
        def call(name: str, *arguments: Any) -> Future[Any]:
            future: Future[Any] = Future()
            try:
                future.set_result(self._answer(where, name, *arguments))
            except Exception as error:
                future.set_exception(error)
            return future

        member = Member(where, call, lambda: None, node=where)
        member.running, member.has_joined = call("join"), False
        return member


def nodes(answer: Callable[..., Any] = lambda *call: None) -> Nodes:
    """A pool of workers that join; trials and finals answer with their worker."""

    def answered(where: str, name: str, *arguments: Any) -> Any:
        changed = answer(where, name, *arguments)
        if changed is not None:
            return changed
        if name == "trial":
            return Trial(arguments[0].name, numerics={"verdict": "same"}, where=where)
        return {"join": where, "probe": EAGER}.get(name, [where])

    pool = Nodes(answered)
    pool.probe(10.0)
    return pool


def losing(lost: Callable[..., bool]) -> Callable[..., None]:
    def answer(*call: Any) -> None:
        if lost(*call):
            raise Lost("gone")

    return answer


def test_trial_is_lost_after_three_workers() -> None:
    pool = nodes(losing(lambda _, name, *more: name == "trial" and more[0] is FULL))
    for candidate in (FULL, REGIONAL):
        pool.submit(candidate, 10.0)
    trials = ended(pool, 2)
    outcomes = {name: trial.outcome for name, trial in trials.items()}
    assert outcomes == {"full": "lost", "regional": "measured"}
    assert sum("is lost" in line for line in pool.lines) == TRIES


def test_trial_that_a_worker_refuses_has_failed() -> None:
    def refuse(where: str, name: str, *more: Any) -> None:
        if name == "trial":
            raise UserError("no")

    pool = nodes(refuse)
    pool.submit(FULL, 10.0)
    [trial] = ended(pool, 1).values()
    assert (trial.outcome, trial.why, trial.where) == ("failed", "no", "w1")
    assert all_slots(pool) == 2


def test_finals_begin_again_on_another_worker() -> None:
    pool = nodes(losing(lambda where, name, *_: name == "compare" and where == "w1"))
    assert pool.compare([], 4) == ("w2",)
    with pytest.raises(UserError, match="one after the other"):
        nodes(losing(lambda _, name, *__: name == "compare")).compare([], 4)


def test_worker_unlike_the_first_is_left_out() -> None:
    other = replace(EAGER, environment={**EAGER.environment, "threads": 1})
    pool = nodes(lambda w, name, *_: other if (w, name) == ("w2", "probe") else None)
    assert all_slots(pool) == 1
    assert "threads is 1" in str(pool.left_out["w2"])


def test_workers_that_cannot_join_are_the_error() -> None:
    with pytest.raises(UserError, match="is not used: gone"):
        nodes(losing(lambda _, name, *__: name == "join"))
