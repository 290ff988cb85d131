"""Executors run trials on the devices of this machine or of a cluster.

An executor takes candidates, returns trials as they end, and compares the finalists on
one of its workers. The search decides which candidates run, and in which order.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torchproof.measure import Plan, Replayed
from torchproof.records import Measurement, Trial, UserError
from torchproof.tuning.candidates import Candidate, Eager
from torchproof.tuning.trial_worker import Finalists, Progress, Worker

T = TypeVar("T")


class ExecutorLost(UserError):
    """No machine is left to run trials; those that ended remain valid."""


class Executor(Protocol):
    @property
    def name(self) -> str:
        """The executor as a report names it, such as `this machine` or `2 GPUs`."""

    def probe(self, limit_s: float) -> Eager:
        """Measure eager and inspect the target, as `Worker.probe` does."""

    def slots(self) -> int:
        """The number of trials that can start now."""

    def submit(self, candidate: Candidate, limit_s: float) -> None:
        """Start a trial; call it only while `slots` is above 0."""

    def wait(self, seconds: float) -> list[Trial]:
        """The trials that ended; waits up to `seconds` for the first one."""

    def compare(self, finalists: Finalists, rounds: int) -> tuple[Measurement, ...]:
        """Measure eager and the finalists in alternating rounds on one worker."""

    def replay(
        self, candidate: Candidate, base: Candidate, count: int, limit_s: float
    ) -> Replayed:
        """Compare passes of a candidate with one of its base, as `Worker.replay`."""

    def close(self) -> None:
        """End all processes."""


@dataclass(frozen=True)
class Task:
    """The settings that all workers of a search share."""

    plan: Plan
    folder: Path  # for caches and answers
    shares_caches: bool


class Local:
    """Runs trials on this machine, with one worker per GPU.

    Trials on several GPUs compile at once; only one is timed at a time. If the
    objective needs cold first calls, or a trial is a group of ranks, which has all
    devices, there is one worker.
    """

    def __init__(self, task: Task, progress: Progress) -> None:
        self._task = task
        self._progress = progress
        self._workers: list[Worker] = []
        self._pools: list[ThreadPoolExecutor] = []
        self._running: dict[Future[Trial], tuple[int, Candidate, float]] = {}
        self._unusable: set[int] = set()  # workers on whose device not even eager runs
        self._add(None)

    def _add(self, gpu: str | None) -> None:
        task = self._task
        environment = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        folder = task.folder if gpu is None else task.folder / f"gpu-{gpu}"
        folder.mkdir(parents=True, exist_ok=True)
        worker = Worker(
            replace(task.plan, environment=environment),
            folder,
            home=task.folder,
            shares_caches=task.shares_caches,
            alone=gpu is None,
            where="" if gpu is None else f"GPU {gpu}",
            progress=self._progress,
        )
        self._workers.append(worker)
        self._pools.append(ThreadPoolExecutor(1))

    @property
    def name(self) -> str:
        count = len(self._workers) - len(self._unusable)
        return "this machine" if count == 1 else f"{count} GPUs"

    def probe(self, limit_s: float) -> Eager:
        eager = self._on_first(self._workers[0].probe, limit_s)
        cold = not self._task.shares_caches
        alone = cold or self._task.plan.ranks is not None
        if eager.environment["device"] == "cuda" and not alone:
            # The first worker keeps the device that torch selects.
            for gpu in visible_gpus()[1:]:
                self._add(gpu)
                self._workers[0].alone = False
        return eager

    def slots(self) -> int:
        return len(self._workers) - len(self._unusable) - len(self._running)

    def submit(self, candidate: Candidate, limit_s: float) -> None:
        busy = Counter(number for number, _, _ in self._running.values())
        able = [n for n in range(len(self._workers)) if n not in self._unusable]
        number = min(able, key=busy.__getitem__)
        trial = self._workers[number].trial
        future = self._pools[number].submit(trial, candidate, limit_s)
        self._running[future] = number, candidate, limit_s

    def wait(self, seconds: float) -> list[Trial]:
        done, _ = wait_for(self._running, seconds, FIRST_COMPLETED)
        trials: list[Trial] = []
        for future in done:
            number, candidate, limit_s = self._running.pop(future)
            try:
                trials.append(future.result())
            except UserError as error:  # not even eager runs on that device
                if number == 0:
                    raise
                self._unusable.add(number)
                self._progress(f"{self._workers[number].where} is not used: {error}")
                self.submit(candidate, limit_s)
        return trials

    def compare(self, finalists: Finalists, rounds: int) -> tuple[Measurement, ...]:
        return self._on_first(self._workers[0].compare, finalists, rounds)

    def replay(
        self, candidate: Candidate, base: Candidate, count: int, limit_s: float
    ) -> Replayed:
        replay = self._workers[0].replay
        return self._on_first(replay, candidate, base, count, limit_s)

    def _on_first(self, method: Callable[..., T], *arguments: Any) -> T:
        """Call a method of the first worker in its own thread.

        The strategy processes may end with the thread that started them.
        """
        future = self._pools[0].submit(method, *arguments)
        while True:  # Ctrl-C does not interrupt a wait without a timeout
            done, _ = wait_for([future], 0.2)
            if done:
                return future.result()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)
        for worker in self._workers:  # processes that a thread started meanwhile
            worker.close()


def visible_gpus() -> list[str]:
    """The GPUs that torch can see, by number or id."""
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    if variable is not None:
        return [name.strip() for name in variable.split(",") if name.strip()]
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return answer.stdout.split() if answer.returncode == 0 else []
